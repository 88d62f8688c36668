/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * dsr beyond the link: the packet of the client travels inside another one, whose destination is the endpoint's own address. The endpoint takes
 * it out again and answers the client directly. So a router between here and the endpoint never sees the vip's address as a destination.
 *
 * IP in IP (RFC 2003, RFC 2473), or Generic UDP Encapsulation (draft-ietf-intarea-gue-09, as Linux's fou module has it), whose source port
 * differs by flow, so that routers and network cards spread the flows.
 */
#ifndef LB_TUNNEL_H
#define LB_TUNNEL_H

#include "choose.h"
#include "rewrite.h"
#include "verdict.h"

#define GUE_PORT 6080           /* IANA: gue */
#define GUE_SOURCE_FIRST 0xc000 /* of 16,384: the ephemeral ports of RFC 6335 */
#define TUNNEL_TTL 64

#define LB_FLOW_TUNNEL (LB_FLOW_IPIP | LB_FLOW_GUE)

struct gue {
	struct udphdr udp;
	__u32 base; /* be: version 0, no options, the protocol of what follows */
};

struct tunnel_ipv4 {
	struct iphdr ip;
	struct gue gue; /* not of IP in IP */
};

struct tunnel_ipv6 {
	struct ipv6hdr ip;
	struct gue gue; /* the same */
};

static __always_inline __u8 tunnel_flags(const struct lb_vip *vip)
{
	switch (vip->tunnel) {
	case LB_TUNNEL_IPIP:
		return LB_FLOW_IPIP;
	case LB_TUNNEL_GUE:
		return LB_FLOW_GUE;
	default:
		return 0;
	}
}

/* Bytes that a packet of the flow grows by. */
static __always_inline __u32 tunnel_bytes(__u8 flags, bool ipv6)
{
	if (!(flags & LB_FLOW_TUNNEL))
		return 0;
	return (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + ((flags & LB_FLOW_GUE) ? sizeof(struct gue) : 0);
}

/* The address of this host that the endpoint gets packets from. NULL: there is none. */
static __always_inline const __u32 *tunnel_source(const struct lb_flow *flow, const struct lb_endpoint *endpoint)
{
	__u32 vip = flow->vip, at = (endpoint->source & ~LB_ENDPOINT_HERE) - 1;
	struct lb_pool *pool = bpf_map_lookup_elem(&lb_pools, &vip);

	if (!pool || at >= LB_POOL_MAX || at >= pool->addr_count)
		return NULL;
	opaque(at);
	at &= LB_POOL_MAX - 1;
	return pool->addrs[at];
}

/* The checksum of UDP is left out (RFC 768, RFC 6935): the packet inside has its own. */
static __always_inline void gue_header(struct gue *gue, __u32 hash, __u8 proto, __u32 len)
{
	gue->udp.source = be16((__u16)(GUE_SOURCE_FIRST | (hash & 0x3fff)));
	gue->udp.dest = be16(GUE_PORT);
	gue->udp.len = be16((__u16)len);
	gue->udp.check = 0;
	gue->base = be32((__u32)proto << 16);
}

/*
 * Routers on the way may fragment the outer packet: a sender that is told of a narrower link by a router cannot be told which of its packets
 * this is about. Hence the identification, and no DF.
 */
static __always_inline bool tunnel_ipv4(struct __sk_buff *skb, __u32 l3, const __u32 *from, const __u32 *to, bool is_gue, __u32 hash)
{
	struct tunnel_ipv4 outer = {};
	__u32 inner = skb->len - l3, room = is_gue ? sizeof(outer) : sizeof(outer.ip);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | (is_gue ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	__u32 len = inner + room;

	if (bpf_skb_load_bytes(skb, l3 + 1, &outer.ip.tos, 1) || bpf_skb_adjust_room(skb, (__s32)room, BPF_ADJ_ROOM_MAC, flags))
		return false;
	outer.ip.version = 4;
	outer.ip.ihl = sizeof(outer.ip) / 4;
	/* Of a packet of many segments, which the kernel cuts later, each gets its own. */
	outer.ip.tot_len = be16((__u16)(len > 65535 ? 0 : len));
	outer.ip.id = (__u16)bpf_get_prandom_u32();
	outer.ip.ttl = TUNNEL_TTL;
	outer.ip.protocol = is_gue ? IPPROTO_UDP : IPPROTO_IPIP;
	outer.ip.saddr = from[3];
	outer.ip.daddr = to[3];
	outer.ip.check = (__u16)~csum_fold(csum_words(0, (const __u32 *)&outer.ip, sizeof(outer.ip) / 4));
	if (!is_gue)
		return bpf_skb_store_bytes(skb, l3, &outer, sizeof(outer.ip), 0) == 0;
	gue_header(&outer.gue, hash, IPPROTO_IPIP, inner + sizeof(outer.gue));
	return bpf_skb_store_bytes(skb, l3, &outer, sizeof(outer), 0) == 0;
}

static __always_inline bool tunnel_ipv6(struct __sk_buff *skb, __u32 l3, const __u32 *from, const __u32 *to, bool is_gue, __u32 hash)
{
	struct tunnel_ipv6 outer = {};
	__u32 inner = skb->len - l3, room = is_gue ? sizeof(outer) : sizeof(outer.ip);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | (is_gue ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	__u32 payload = inner + room - sizeof(outer.ip), word;

	if (bpf_skb_load_bytes(skb, l3, &word, sizeof(word)) || bpf_skb_adjust_room(skb, (__s32)room, BPF_ADJ_ROOM_MAC, flags))
		return false;
	/* The version and the traffic class of the inner packet, and a flow label for routers that spread by it (RFC 6438). */
	word = (word & be32(0xfff00000)) | be32(hash & 0xfffff);
	__builtin_memcpy(&outer.ip, &word, sizeof(word));
	outer.ip.payload_len = be16((__u16)(payload > 65535 ? 0 : payload));
	outer.ip.nexthdr = is_gue ? IPPROTO_UDP : IPPROTO_IPV6;
	outer.ip.hop_limit = TUNNEL_TTL;
	__builtin_memcpy(&outer.ip.saddr, from, 16);
	__builtin_memcpy(&outer.ip.daddr, to, 16);
	if (!is_gue)
		return bpf_skb_store_bytes(skb, l3, &outer, sizeof(outer.ip), 0) == 0;
	gue_header(&outer.gue, hash, IPPROTO_IPV6, inner + sizeof(outer.gue));
	return bpf_skb_store_bytes(skb, l3, &outer, sizeof(outer), 0) == 0;
}

/* Puts the packet into another one. It has no VLAN tag any more. False: it must not leave. */
static __always_inline bool encapsulate(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow)
{
	__u32 index = flow->endpoint, l3 = packet->l3 & (HEADER_BYTES_MAX - 1), hash = hash_flow(&packet->key);
	struct lb_endpoint *endpoint = bpf_map_lookup_elem(&lb_endpoints, &index);
	bool is_gue = flow->flags & LB_FLOW_GUE;
	__u32 from[4], to[4];
	const __u32 *source;

	source = endpoint ? tunnel_source(flow, endpoint) : NULL;
	if (!source)
		return false;
	address_copy(from, source);
	address_copy(to, endpoint->addr);
	return packet->ipv6 ? tunnel_ipv6(skb, l3, from, to, is_gue, hash) : tunnel_ipv4(skb, l3, from, to, is_gue, hash);
}

GLOBAL int lb_encapsulate(struct __sk_buff *skb, struct packet *packet, struct lb_flow *flow)
{
	return packet && flow && encapsulate(skb, packet, flow);
}

#endif
