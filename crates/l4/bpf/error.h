/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Turns a packet that cannot be forwarded into an ICMP error that says why. If the next link cannot carry it, the error has the link's MTU
 * (RFC 1191, RFC 8201), because a connection would stall at its first full segment without it. If its TTL ends here, traceroute depends on
 * the error. The third case is a UDP port that nothing serves. The error comes from the address that the packet was sent to, which its
 * sender can reach.
 *
 * Only packets without IP options or extension headers are answered, and only the first fragment of a datagram. Others are dropped, and
 * counted as well.
 */
#ifndef LB_ERROR_H
#define LB_ERROR_H

#include "answer.h"

#define QUOTED_L4_MAX 20u /* of the packet: a TCP header, or a UDP header and some data */

struct error_ipv4 {
	struct iphdr ip;
	__u32 icmp[2];
	__u32 quoted[(sizeof(struct iphdr) + QUOTED_L4_MAX) / 4];
};

struct error_ipv6 {
	struct ipv6hdr ip;
	__u32 icmp[2];
	__u32 quoted[(sizeof(struct ipv6hdr) + QUOTED_L4_MAX) / 4];
};

/* The first four bytes of the ICMP header: type, code, and no checksum yet. */
static __always_inline __u32 error_kind(const struct packet *packet)
{
	switch (packet->answer) {
	case ANSWER_TIME_EXCEEDED:
		return be32((packet->ipv6 ? ICMPV6_TIME_EXCEEDED : ICMP_TIME_EXCEEDED) << 24);
	case ANSWER_NO_PORT:
		return packet->ipv6 ? be32(ICMPV6_UNREACHABLE << 24 | ICMPV6_NO_PORT << 16) :
				      be32(ICMP_UNREACHABLE << 24 | ICMP_NO_PORT << 16);
	default:
		return packet->ipv6 ? be32(ICMPV6_TOO_BIG << 24) : be32(ICMP_UNREACHABLE << 24 | ICMP_FRAGMENTATION_NEEDED << 16);
	}
}

/* Truncates the packet after the quoted part, and makes room for a new IP header and an ICMP header before it. */
static __always_inline bool error_reshape(struct __sk_buff *skb, __u32 quoted_end, __u32 room)
{
	return bpf_skb_change_tail(skb, quoted_end, 0) == 0 && bpf_skb_adjust_room(skb, (__s32)room, BPF_ADJ_ROOM_MAC, 0) == 0;
}

/*
 * The checksum of the ICMP message. If the checksum of the quoted segment is left to the hardware, the hardware fills its field before this
 * packet is on a wire. The segment and its checksum then sum to zero, so the segment is left out here (and its field is zero, see
 * error_send).
 */
static __always_inline __u16 error_check(__u32 sum, const __u32 *icmp, const __u32 *quoted, __u32 header_words, bool partial)
{
	__u32 words = header_words + (partial ? 0 : QUOTED_L4_MAX / 4);

	sum = csum_words(sum, icmp, 2);
	for (__u32 i = 0; i < header_words + QUOTED_L4_MAX / 4; i++) {
		if (i < words)
			sum = csum_add(sum, quoted[i]);
	}
	return (__u16)~csum_fold(sum);
}

static __always_inline bool error_ipv4(struct __sk_buff *skb, const struct packet *packet, bool partial)
{
	struct error_ipv4 out = {};
	__u32 l3 = packet->l3 & (HEADER_BYTES_MAX - 1);
	__u16 check;

	if (bpf_skb_load_bytes(skb, l3, out.quoted, sizeof(out.quoted)))
		return false;
	if (!error_reshape(skb, l3 + sizeof(out.quoted), sizeof(out.ip) + ICMP_HEADER))
		return false;
	out.ip.version = 4;
	out.ip.ihl = sizeof(out.ip) / 4;
	out.ip.tot_len = be16(sizeof(out));
	out.ip.ttl = ANSWER_TTL;
	out.ip.protocol = IPPROTO_ICMP;
	out.ip.saddr = packet->key.daddr[3];
	out.ip.daddr = packet->key.saddr[3];
	out.ip.check = (__u16)~csum_fold(csum_words(0, (const __u32 *)&out.ip, sizeof(out.ip) / 4));
	out.icmp[0] = error_kind(packet);
	out.icmp[1] = be32(packet->mtu);
	check = error_check(0, out.icmp, out.quoted, sizeof(struct iphdr) / 4, partial);
	__builtin_memcpy((__u8 *)out.icmp + 2, &check, sizeof(check));
	return bpf_skb_store_bytes(skb, l3, &out, sizeof(out), 0) == 0 && send_back(skb);
}

static __always_inline bool error_ipv6(struct __sk_buff *skb, const struct packet *packet, bool partial)
{
	struct error_ipv6 out = {};
	__u32 l3 = packet->l3 & (HEADER_BYTES_MAX - 1);
	__u32 len = sizeof(out) - sizeof(out.ip);
	__u16 check;

	if (bpf_skb_load_bytes(skb, l3, out.quoted, sizeof(out.quoted)))
		return false;
	if (!error_reshape(skb, l3 + sizeof(out.quoted), sizeof(out.ip) + ICMP_HEADER))
		return false;
	out.ip.version = 6;
	out.ip.payload_len = be16((__u16)len);
	out.ip.nexthdr = IPPROTO_ICMPV6;
	out.ip.hop_limit = ANSWER_TTL;
	__builtin_memcpy(&out.ip.saddr, packet->key.daddr, 16);
	__builtin_memcpy(&out.ip.daddr, packet->key.saddr, 16);
	out.icmp[0] = error_kind(packet);
	out.icmp[1] = be32(packet->mtu);
	check = error_check(csum_pseudo(packet, IPPROTO_ICMPV6, len), out.icmp, out.quoted, sizeof(struct ipv6hdr) / 4, partial);
	__builtin_memcpy((__u8 *)out.icmp + 2, &check, sizeof(check));
	return bpf_skb_store_bytes(skb, l3, &out, sizeof(out), 0) == 0 && send_back(skb);
}

/* False: it is not answered. */
static __always_inline bool error_send(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 header = packet->l4 - packet->l3;
	__u32 offset = (packet->l4 & (HEADER_BYTES_MAX - 1)) + (packet->key.proto == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	__u16 zero = 0;
	bool partial;

	if (header != (packet->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) || packet->fragment == FRAGMENT_LATER)
		return false;
	/* A short datagram is quoted with zeros after it, which receivers ignore: its header says where it ends. */
	if (packet->l4_len < QUOTED_L4_MAX && bpf_skb_change_tail(skb, packet->l4 + QUOTED_L4_MAX, 0))
		return false;
	partial = checksum_is_partial(skb, offset);
	if (partial && bpf_skb_store_bytes(skb, offset, &zero, sizeof(zero), 0))
		return false;
	return packet->ipv6 ? error_ipv6(skb, packet, partial) : error_ipv4(skb, packet, partial);
}

#endif
