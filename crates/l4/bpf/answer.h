/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that go back to their sender: the common part of echo, RST and ICMP errors. */
#ifndef LB_ANSWER_H
#define LB_ANSWER_H

#include "rewrite.h"
#include "verdict.h"

#define ANSWER_TTL 64u

/* Uses the source address of the link layer: it needs no lookup, and is right whichever router the packet came through. */
static __always_inline bool send_back(struct __sk_buff *skb)
{
	__u8 mac[2 * ETH_ALEN];
	__u8 swapped[2 * ETH_ALEN];

	if (bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)))
		return false;
	__builtin_memcpy(swapped, mac + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(swapped + ETH_ALEN, mac, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0))
		return false;
	return bpf_redirect(skb->ifindex, 0) == TC_ACT_REDIRECT;
}

/*
 * Whether this checksum is left to the hardware (CHECKSUM_PARTIAL). A program cannot read skb->ip_summed before kernel 6.2, but the helper
 * depends on it: it then ignores a difference that is not the pseudo header's.
 */
static __always_inline bool checksum_is_partial(struct __sk_buff *skb, __u32 offset)
{
	__u16 before = 0, after = 0;

	bpf_skb_load_bytes(skb, offset, &before, sizeof(before));
	bpf_l4_csum_replace(skb, offset, 0, 1, 0);
	bpf_skb_load_bytes(skb, offset, &after, sizeof(after));
	bpf_skb_store_bytes(skb, offset, &before, sizeof(before), 0);
	return before == after;
}

/* The pseudo header's sum (RFC 9293 3.1, RFC 8200 8.1). It is the same for both directions. */
static __always_inline __u32 csum_pseudo(const struct packet *packet, __u8 proto, __u32 len)
{
	__u32 sum = be32(len);

	if (packet->ipv6) {
		sum = csum_words(sum, packet->key.saddr, 4);
		sum = csum_words(sum, packet->key.daddr, 4);
	} else {
		sum = csum_add(sum, packet->key.saddr[3]);
		sum = csum_add(sum, packet->key.daddr[3]);
	}
	return csum_add(sum, be32(proto));
}

#endif
