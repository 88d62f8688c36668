/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Rewrites addresses, ports, TTL and checksums, by the differences that the flow holds.
 *
 * Headers are written in place, but checksums of layer 4 only through the helper: only the kernel knows whether the field holds the whole
 * sum, the pseudo header's, or nothing (skb->ip_summed). If the sender's kernel left the checksum to the hardware, the field holds the sum
 * of the pseudo header, so a difference of addresses counts and one of ports does not: hence two calls. Writing in place costs a third of
 * bpf_skb_store_bytes; see docs/design/2026-11-21-packet-path.md.
 */
#ifndef LB_REWRITE_H
#define LB_REWRITE_H

#include "csum.h"
#include "packet.h"

#define TCP_CHECK_OFFSET 16u
#define UDP_CHECK_OFFSET 6u
/* Kernel 6.16, and older ones that backported it. */
#define LB_F_IPV6 (1ull << 7)
#define EINVAL_RESULT (-22)

/* A pointer to `size` bytes at `offset`, or NULL. Valid until the next helper that touches the packet. */
static __always_inline void *packet_at(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;

	opaque(offset);
	offset &= HEADER_BYTES_MAX - 1;
	return data + offset + size <= end ? data + offset : NULL;
}

static __always_inline bool rewrite_ipv4(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow, bool hop)
{
	struct iphdr *ip = packet_at(skb, packet->l3, sizeof(*ip));

	if (!ip)
		return false;
	if (flow->flags & LB_FLOW_NEW_SADDR)
		ip->saddr = flow->saddr[3];
	if (flow->flags & LB_FLOW_NEW_DADDR)
		ip->daddr = flow->daddr[3];
	if (hop) {
		ip->check = csum_ipv4_forwarded(ip->check, flow->addr_diff);
		ip->ttl--;
	} else {
		ip->check = csum_apply(ip->check, flow->addr_diff);
	}
	return true;
}

static __always_inline bool rewrite_ipv6(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow, bool hop)
{
	struct ipv6hdr *ip = packet_at(skb, packet->l3, sizeof(*ip));
	__u8 left = packet->ttl - 1;

	if (!ip)
		return false;
	if (flow->flags & LB_FLOW_NEW_SADDR)
		__builtin_memcpy(&ip->saddr, flow->saddr, 16);
	if (flow->flags & LB_FLOW_NEW_DADDR)
		__builtin_memcpy(&ip->daddr, flow->daddr, 16);
	if (!hop)
		return true;
	/* No checksum in the packet compensates this change, so the sum that a device computed over the whole packet must be updated. */
	return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, hop_limit), &left, 1, BPF_F_RECOMPUTE_CSUM) == 0;
}

/*
 * Applies the difference of addresses to a checksum that includes the pseudo header. In IPv6 that field compensates for the addresses, so a
 * sum that a device has computed over the whole packet (CHECKSUM_COMPLETE) stays right: BPF_F_IPV6 tells the kernel so. A kernel that does
 * not know the flag subtracts the difference from that sum, as IPv4 needs it, and it is added back here; otherwise the receiver finds the
 * sum wrong, logs an error of the device ("hw csum failure") and computes it again. Without such a sum, bpf_csum_update changes nothing.
 */
static __always_inline bool checksum_addresses(struct __sk_buff *skb, __u32 offset, __u32 diff, __u64 flags, bool ipv6)
{
	long result = bpf_l4_csum_replace(skb, offset, 0, diff, flags | BPF_F_PSEUDO_HDR | (ipv6 ? LB_F_IPV6 : 0));

	if (result == EINVAL_RESULT && ipv6) {
		result = bpf_l4_csum_replace(skb, offset, 0, diff, flags | BPF_F_PSEUDO_HDR);
		bpf_csum_update(skb, diff);
	}
	return result == 0;
}

static __always_inline bool rewrite_checksum(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow)
{
	__u32 offset = packet->l4 + (packet->key.proto == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	/* A UDP checksum of 0 means that there is none, and stays (RFC 768). */
	__u64 flags = packet->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	if ((flow->flags & (LB_FLOW_NEW_SADDR | LB_FLOW_NEW_DADDR)) &&
	    !checksum_addresses(skb, offset, flow->addr_diff, flags, packet->ipv6))
		return false;
	return !flow->port_diff || bpf_l4_csum_replace(skb, offset, 0, flow->port_diff, flags) == 0;
}

/* `hop`: decrements the TTL here. False if the packet is shorter than before or cannot be written: it must not leave. */
static __always_inline bool rewrite(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow, bool hop)
{
	__u16 *ports;

	if (packet->fragment != FRAGMENT_LATER) {
		ports = packet_at(skb, packet->l4, 2 * sizeof(*ports));
		if (!ports)
			return false;
		ports[0] = flow->sport;
		ports[1] = flow->dport;
	}
	if (!(packet->ipv6 ? rewrite_ipv6(skb, packet, flow, hop) : rewrite_ipv4(skb, packet, flow, hop)))
		return false;
	return packet->fragment == FRAGMENT_LATER || rewrite_checksum(skb, packet, flow);
}

#endif
