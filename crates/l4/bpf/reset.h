/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Turns a segment into the RST that answers it, so that its sender learns at once what it would otherwise learn by timeout. The sequence
 * number is one that the sender must accept (RFC 9293, 3.10.7.1): its own ACK, or none and an ACK of everything that it sent.
 */
#ifndef LB_RESET_H
#define LB_RESET_H

#include "answer.h"

static __always_inline void reset_segment(struct tcphdr *reset, const struct tcphdr *segment, const struct packet *packet)
{
	__u32 sent = packet->l4_len - packet->l4_header + !!(packet->tcp_flags & TCP_SYN) + !!(packet->tcp_flags & TCP_FIN);

	__builtin_memset(reset, 0, sizeof(*reset));
	reset->source = segment->dest;
	reset->dest = segment->source;
	reset->doff = sizeof(*reset) / 4;
	reset->rst = 1;
	if (packet->tcp_flags & TCP_ACK) {
		reset->seq = segment->ack_seq;
	} else {
		reset->ack = 1;
		reset->ack_seq = be32(be32(segment->seq) + sent);
	}
}

static __always_inline bool reset_ipv4(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = packet_at(skb, packet->l3, sizeof(*ip));
	__u16 len = be16((__u16)(packet->l4 - packet->l3 + sizeof(struct tcphdr)));
	__u32 diff;

	if (!ip)
		return false;
	diff = csum_add(csum_diff16(ip->tot_len, len), csum_diff16(be16((__u16)(ip->ttl << 8)), be16(ANSWER_TTL << 8)));
	ip->check = csum_apply(ip->check, diff);
	ip->tot_len = len;
	ip->ttl = ANSWER_TTL;
	ip->saddr = packet->key.daddr[3];
	ip->daddr = packet->key.saddr[3];
	return true;
}

static __always_inline bool reset_ipv6(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6hdr *ip = packet_at(skb, packet->l3, sizeof(*ip));

	if (!ip)
		return false;
	ip->payload_len = be16((__u16)(packet->l4 - packet->l3 - sizeof(*ip) + sizeof(struct tcphdr)));
	ip->hop_limit = ANSWER_TTL;
	__builtin_memcpy(&ip->saddr, packet->key.daddr, 16);
	__builtin_memcpy(&ip->daddr, packet->key.saddr, 16);
	return true;
}

/* False: it could not be made, and nothing is sent. */
static __always_inline bool reset_send(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 l4 = packet->l4 & (HEADER_BYTES_MAX - 1);
	struct tcphdr segment, reset;
	__u32 pseudo = csum_pseudo(packet, IPPROTO_TCP, sizeof(reset));
	bool partial;

	if (bpf_skb_load_bytes(skb, l4, &segment, sizeof(segment)))
		return false;
	partial = checksum_is_partial(skb, l4 + TCP_CHECK_OFFSET);
	reset_segment(&reset, &segment, packet);
	reset.check = partial ? csum_fold(pseudo) :
				(__u16)~csum_fold(csum_words(pseudo, (const __u32 *)&reset, sizeof(reset) / 4));
	/* This also removes the GSO state of a packet of many segments. */
	if (bpf_skb_change_tail(skb, l4 + sizeof(reset), 0))
		return false;
	if (bpf_skb_store_bytes(skb, l4, &reset, sizeof(reset), 0))
		return false;
	if (!(packet->ipv6 ? reset_ipv6(skb, packet) : reset_ipv4(skb, packet)))
		return false;
	return send_back(skb);
}

#endif
