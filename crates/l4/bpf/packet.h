/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Reads a packet: a bounded walk from the Ethernet header to the ports. Pure. It decides nothing, and it trusts no length that the packet
 * does not confirm.
 */
#ifndef LB_PACKET_H
#define LB_PACKET_H

#include "base.h"

#define VLAN_TAGS_MAX 2u
#define VLAN_ID_MASK 0x0fffu
#define EXTENSIONS_MAX 6u          /* IPv6 extension headers */
#define EXTENSION_BYTES_MAX 256u   /* of all of them together */
#define HEADER_BYTES_MAX 1024u     /* all headers, and those that an ICMP error quotes; a power of two, for the verifier */

enum walk {
	WALK_OK = 0,
	WALK_OTHER,     /* neither TCP, UDP nor ICMP over IP */
	WALK_SHORT,     /* the packet ends before its headers do */
	WALK_MALFORMED, /* contradicts itself */
	WALK_LONGER,    /* has headers that this walk does not know */
};

/* How far a walk goes. It is known at compile time, so that nearly all packets need only a few comparisons at fixed offsets. */
enum pace {
	PACE_SHORT,  /* no VLAN tag, no IPv4 options, no IPv6 extension headers: otherwise WALK_LONGER */
	PACE_FULL,   /* all of them */
	PACE_QUOTED, /* in an ICMP error, truncated after 8 or more bytes of layer 4 (RFC 792; RFC 4443 2.4 c): lengths describe the original packet */
};

enum fragment {
	FRAGMENT_NONE = 0,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* has no layer 4 header */
};

enum answer {
	ANSWER_NONE = 0,
	ANSWER_RST,
	ANSWER_TOO_BIG,
	ANSWER_TIME_EXCEEDED,
	ANSWER_NO_PORT, /* nothing serves this UDP port */
};

struct packet {
	struct lb_flow_key key;
	__u32 fragment_id;
	__u32 l4_len;       /* from the layer 4 header to the end of the packet */
	__u32 vip;          /* LB_VIPS_MAX: none */
	__u32 mtu;          /* of the link that it does not fit, for ANSWER_TOO_BIG */
	__u16 l3;           /* offsets from the link layer's beginning: 0 < l3 < l4 < HEADER_BYTES_MAX */
	__u16 l4;
	__u8 l4_header;     /* bytes */
	__u8 ipv6;          /* 0 or 1 */
	__u8 ttl;
	__u8 dont_fragment; /* 0 or 1; IPv6: 1 */
	__u8 fragment;      /* enum fragment */
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 vlan_tags;     /* within the packet; a tag that hardware or kernel removed is in skb->vlan_tci */
	__u8 addressed;     /* 1: key.saddr and key.daddr are valid */
	__u8 reason;        /* enum lb_reason */
	__u8 answer;        /* enum answer */
};

_Static_assert(sizeof(struct packet) == 72, "no padding: the verifier wants every byte written");

/* pos and end are pointers into the packet; 0 <= remaining. */
struct cursor {
	const __u8 *start;
	const __u8 *pos;
	const __u8 *end;
	__u32 wire_len;     /* of the whole packet; [start, end) may be only its linear beginning */
};

/* RFC 792, RFC 4443. <linux/icmp.h> cannot be included without a C library. */
#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_NO_PORT 3              /* a code of the above */
#define ICMP_FRAGMENTATION_NEEDED 4 /* the same */
#define ICMP_ECHO_REQUEST 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_ERROR_FIRST 1        /* unreachable, too big, time exceeded, parameter problem */
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_NO_PORT 4            /* a code of the above */
#define ICMPV6_TOO_BIG 2
#define ICMPV6_TIME_EXCEEDED 3
#define ICMPV6_ERROR_LAST 4
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129
#define ICMP_HEADER 8u

#define TCP_FIN 0x01u
#define TCP_SYN 0x02u
#define TCP_RST 0x04u
#define TCP_ACK 0x10u

static __always_inline __u32 cursor_offset(const struct cursor *cursor)
{
	return (__u32)(cursor->pos - cursor->start);
}

/* Returns the next `size` bytes and moves past them. NULL if they are not there. */
static __always_inline const void *cursor_take(struct cursor *cursor, __u32 size)
{
	const __u8 *taken = cursor->pos;

	if (taken + size > cursor->end)
		return NULL;
	cursor->pos = taken + size;
	return taken;
}

static __always_inline enum walk walk_l4(struct cursor *cursor, struct packet *packet, const enum pace pace)
{
	packet->l4 = (__u16)cursor_offset(cursor);
	if (packet->fragment == FRAGMENT_LATER)
		return packet->key.proto == IPPROTO_ICMP || packet->key.proto == IPPROTO_ICMPV6 ||
				       packet->key.proto == IPPROTO_TCP || packet->key.proto == IPPROTO_UDP ?
			       WALK_OK :
			       WALK_OTHER;
	if (packet->key.proto == IPPROTO_TCP) {
		const __u8 *tcp = cursor_take(cursor, pace == PACE_QUOTED ? 8 : sizeof(struct tcphdr));

		if (!tcp)
			return WALK_SHORT;
		packet->key.sport = *(const __u16 *)tcp;
		packet->key.dport = *(const __u16 *)(tcp + 2);
		if (pace == PACE_QUOTED)
			return WALK_OK;
		packet->l4_header = (__u8)((tcp[12] >> 4) * 4);
		packet->tcp_flags = tcp[13];
		return packet->l4_header < sizeof(struct tcphdr) || packet->l4_header > packet->l4_len ? WALK_MALFORMED :
													 WALK_OK;
	}
	if (packet->key.proto == IPPROTO_UDP) {
		const __u16 *udp = cursor_take(cursor, sizeof(struct udphdr));

		if (!udp)
			return WALK_SHORT;
		packet->key.sport = udp[0];
		packet->key.dport = udp[1];
	} else if (packet->key.proto == (packet->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		const __u8 *icmp = cursor_take(cursor, 8);

		if (!icmp)
			return WALK_SHORT;
		packet->icmp_type = icmp[0];
		packet->icmp_code = icmp[1];
	} else {
		return WALK_OTHER;
	}
	packet->l4_header = 8;
	return pace != PACE_QUOTED && packet->l4_len < 8 ? WALK_MALFORMED : WALK_OK;
}

/* The length of the packet from layer 3 on. If a header says 0, the length on the wire counts: BIG TCP, RFC 2675. */
static __always_inline bool believed_len(const struct cursor *cursor, const struct packet *packet, __u32 said, __u32 *len)
{
	__u32 room = cursor->wire_len - packet->l3;

	*len = said ? said : room;
	return said <= room;
}

static __always_inline enum walk walk_ipv4(struct cursor *cursor, struct packet *packet, const enum pace pace)
{
	const struct iphdr *ip = cursor_take(cursor, sizeof(*ip));
	__u32 header, len, fragment;

	if (!ip)
		return WALK_SHORT;
	if (ip->version != 4)
		return WALK_MALFORMED;
	address_from_ipv4(packet->key.saddr, ip->saddr);
	address_from_ipv4(packet->key.daddr, ip->daddr);
	packet->addressed = 1;
	packet->key.proto = ip->protocol;
	packet->ttl = ip->ttl;
	header = ip->ihl * 4u;
	if (header < sizeof(*ip))
		return WALK_MALFORMED;
	fragment = be16(ip->frag_off);
	packet->dont_fragment = (fragment & 0x4000) != 0;
	packet->fragment_id = ip->id;
	if (fragment & 0x1fff)
		packet->fragment = FRAGMENT_LATER;
	else if (fragment & 0x2000)
		packet->fragment = FRAGMENT_FIRST;
	if (pace != PACE_QUOTED) {
		if (!believed_len(cursor, packet, be16(ip->tot_len), &len) || len < header)
			return WALK_MALFORMED;
		packet->l4_len = len - header;
	}
	if (pace == PACE_SHORT && header != sizeof(*ip))
		return WALK_LONGER;
	if (header > sizeof(*ip) && !cursor_take(cursor, header - sizeof(*ip)))
		return WALK_SHORT;
	return walk_l4(cursor, packet, pace);
}

static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT ||
	       next == IPPROTO_DSTOPTS || next == IPPROTO_AH;
}

/* One extension header (RFC 8200, 4). WALK_OK: `next` is the following header. */
static __always_inline enum walk walk_extension(struct cursor *cursor, struct packet *packet, __u8 next)
{
	const __u8 *head = cursor_take(cursor, 8);
	__u32 more;

	if (!head)
		return WALK_SHORT;
	packet->key.proto = head[0];
	if (next == IPPROTO_FRAGMENT) {
		__u32 fragment = be16(*(const __u16 *)(head + 2));

		packet->fragment_id = *(const __u32 *)(head + 4);
		/* Neither an offset nor more fragments: an atomic fragment, complete in itself (RFC 6946). */
		if (fragment >> 3)
			packet->fragment = FRAGMENT_LATER;
		else if (fragment & 1)
			packet->fragment = FRAGMENT_FIRST;
		return WALK_OK;
	}
	/* With segments left, the destination address is not the final one. */
	if (next == IPPROTO_ROUTING && head[3] != 0)
		return WALK_OTHER;
	/* AH counts in 4 bytes less two (RFC 4302, 2.2), the others in 8 less one. */
	more = next == IPPROTO_AH ? (head[1] + 2u) * 4u - 8u : head[1] * 8u;
	if (more > EXTENSION_BYTES_MAX)
		return WALK_MALFORMED;
	opaque(more);
	more &= 2 * EXTENSION_BYTES_MAX - 1;
	return cursor_take(cursor, more) ? WALK_OK : WALK_SHORT;
}

/*
 * The position goes through the packet's fields from one header to the next. The verifier does not track memory outside its stack, so it
 * has seen all states after one round. If it tracked them in registers, six headers of five kinds would give 15,625 paths.
 *
 * Unrolled for Linux 6.1, which refuses a loop whose last instruction falls through to its beginning ("back-edge from insn"), and clang 14
 * to 19 produce such a loop here.
 */
static __always_inline enum walk walk_extensions(struct cursor *cursor, struct packet *packet)
{
	__u32 start = cursor_offset(cursor);

	packet->l4 = (__u16)start;
#ifdef __clang__ /* gcc compiles this header for the unit tests, and warns about an unknown pragma. */
#pragma unroll
#endif
	for (__u32 i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 next = *(volatile __u8 *)&packet->key.proto;
		__u32 offset = *(volatile __u16 *)&packet->l4;
		enum walk walk;

		cursor->pos = cursor->start + (offset & (HEADER_BYTES_MAX - 1));
		if (!is_extension(next) || packet->fragment == FRAGMENT_LATER)
			return WALK_OK;
		if (i == EXTENSIONS_MAX || offset - start > EXTENSION_BYTES_MAX)
			break;
		walk = walk_extension(cursor, packet, next);
		if (walk != WALK_OK)
			return walk;
		packet->l4 = (__u16)cursor_offset(cursor);
	}
	return WALK_MALFORMED;
}

static __always_inline enum walk walk_ipv6(struct cursor *cursor, struct packet *packet, const enum pace pace)
{
	const struct ipv6hdr *ip = cursor_take(cursor, sizeof(*ip));
	__u32 said, len, start, extensions;

	if (!ip)
		return WALK_SHORT;
	if (ip->version != 6)
		return WALK_MALFORMED;
	__builtin_memcpy(packet->key.saddr, &ip->saddr, 16);
	__builtin_memcpy(packet->key.daddr, &ip->daddr, 16);
	packet->addressed = 1;
	packet->ipv6 = 1;
	packet->ttl = ip->hop_limit;
	packet->dont_fragment = 1;
	packet->key.proto = ip->nexthdr;
	said = be16(ip->payload_len);
	start = cursor_offset(cursor);
	if (pace == PACE_SHORT && is_extension(ip->nexthdr))
		return WALK_LONGER;
	if (pace != PACE_SHORT) {
		enum walk walk = walk_extensions(cursor, packet);

		if (walk != WALK_OK)
			return walk;
	}
	if (pace != PACE_QUOTED) {
		extensions = cursor_offset(cursor) - start;
		if (!believed_len(cursor, packet, said ? said + sizeof(*ip) : 0, &len) || len < sizeof(*ip) + extensions)
			return WALK_MALFORMED;
		packet->l4_len = len - sizeof(*ip) - extensions;
	}
	return walk_l4(cursor, packet, pace);
}

static __always_inline bool is_vlan(__u16 proto)
{
	return proto == be16(ETH_P_8021Q) || proto == be16(ETH_P_8021AD);
}

/* From the Ethernet header on. All of `packet` except `vip` must be zero before. */
static __always_inline enum walk walk_ethernet(struct cursor *cursor, struct packet *packet, const enum pace pace)
{
	const struct ethhdr *eth = cursor_take(cursor, sizeof(*eth));
	__u16 proto;

	if (!eth)
		return WALK_SHORT;
	proto = eth->h_proto;
	if (pace == PACE_SHORT && is_vlan(proto))
		return WALK_LONGER;
	for (__u32 i = 0; i < VLAN_TAGS_MAX && is_vlan(proto); i++) {
		const __u16 *tag = cursor_take(cursor, 4);

		if (!tag)
			return WALK_SHORT;
		if (tag[0] & be16(VLAN_ID_MASK)) /* for the VLAN's own interface, see read.h */
			return WALK_OTHER;
		proto = tag[1];
		packet->vlan_tags++;
	}
	packet->l3 = (__u16)cursor_offset(cursor);
	if (proto == be16(ETH_P_IP))
		return walk_ipv4(cursor, packet, pace);
	if (proto == be16(ETH_P_IPV6))
		return walk_ipv6(cursor, packet, pace);
	return WALK_OTHER;
}

/* The packet that an ICMP error quotes, from its IP header on. */
static __always_inline enum walk walk_quoted(struct cursor *cursor, struct packet *packet, bool ipv6)
{
	packet->l3 = (__u16)cursor_offset(cursor);
	return ipv6 ? walk_ipv6(cursor, packet, PACE_QUOTED) : walk_ipv4(cursor, packet, PACE_QUOTED);
}

#endif
