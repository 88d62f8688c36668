/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ICMP: echo to a vip is answered, and an error is translated and sent to the host that it concerns. An error quotes the packet as it left
 * here, but the sender of that packet knows it by its original addresses and ports. Path MTU discovery depends on this.
 */
#ifndef LB_ICMP_H
#define LB_ICMP_H

#include "answer.h"
#include "conntrack.h"
#include "fragment.h"
#include "vip.h"

#define ICMP_CHECK_OFFSET 2u

static __always_inline bool icmp_is_error(const struct packet *packet)
{
	__u8 type = packet->icmp_type;

	if (packet->ipv6)
		return type >= ICMPV6_ERROR_FIRST && type <= ICMPV6_ERROR_LAST;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER_PROBLEM;
}

static __always_inline bool icmp_is_echo(const struct packet *packet)
{
	return packet->icmp_code == 0 && packet->icmp_type == (packet->ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST);
}

/* Swaps the addresses, which does not change any checksum, and sends the packet back. */
static __always_inline enum lb_outcome icmp_turn(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (packet->ipv6) {
		ip6 = packet_at(skb, packet->l3, sizeof(*ip6));
		if (!ip6)
			return drop(packet, LB_REASON_malformed);
		__builtin_memcpy(&ip6->saddr, packet->key.daddr, 16);
		__builtin_memcpy(&ip6->daddr, packet->key.saddr, 16);
		ip6->hop_limit = ANSWER_TTL;
	} else {
		ip = packet_at(skb, packet->l3, sizeof(*ip));
		if (!ip)
			return drop(packet, LB_REASON_malformed);
		ip->saddr = packet->key.daddr[3];
		ip->daddr = packet->key.saddr[3];
		ip->check = csum_apply(ip->check, csum_diff16(be16((__u16)(ip->ttl << 8)), be16(ANSWER_TTL << 8)));
		ip->ttl = ANSWER_TTL;
	}
	return send_back(skb) ? LB_ANSWER : drop(packet, LB_REASON_redirect_failed);
}

/*
 * The request becomes the reply. This also works for its first fragment: the checksum is that of the whole message, in which only the type
 * changes. The other fragments are sent back as they arrive.
 */
static __always_inline enum lb_outcome icmp_echo(struct __sk_buff *skb, struct packet *packet)
{
	__u16 request = be16((__u16)(packet->icmp_type << 8));
	__u16 reply = packet->ipv6 ? be16(ICMPV6_ECHO_REPLY << 8) : be16(ICMP_ECHO_REPLY << 8);
	__u32 l4 = packet->l4 & (HEADER_BYTES_MAX - 1);

	if (bpf_l4_csum_replace(skb, l4 + ICMP_CHECK_OFFSET, request, reply, 2) || bpf_skb_store_bytes(skb, l4, &reply, 1, 0))
		return drop(packet, LB_REASON_malformed);
	return icmp_turn(skb, packet);
}

/* Writes a 16-bit field of the quoted packet, and updates the difference of the whole sum. */
static __always_inline bool quoted_store(struct __sk_buff *skb, __u32 offset, __u16 value, __u32 *diff)
{
	__u16 old;

	if (bpf_skb_load_bytes(skb, offset, &old, sizeof(old)))
		return false;
	*diff = csum_add(*diff, csum_diff16(old, value));
	return bpf_skb_store_bytes(skb, offset, &value, sizeof(value), 0) == 0;
}

/* Updates the quoted checksum, if the quotation includes it: receivers need not verify it, but a NAT further on relies on it. */
static __always_inline void quoted_checksum(struct __sk_buff *skb, const struct packet *quoted, const struct lb_flow *flow, __u32 *diff)
{
	__u32 offset = quoted->l4 + (quoted->key.proto == IPPROTO_TCP ? TCP_CHECK_OFFSET : UDP_CHECK_OFFSET);
	__u16 check;

	if (offset + sizeof(check) > skb->len || bpf_skb_load_bytes(skb, offset, &check, sizeof(check)))
		return;
	if (quoted->key.proto == IPPROTO_UDP && check == 0)
		return;
	quoted_store(skb, offset, csum_apply(check, csum_add(csum_fold(flow->addr_diff), csum_fold(flow->port_diff))), diff);
}

/*
 * Restores the quoted packet to what its sender sent: the flow's tuple reversed. The sum of the differences of the addresses is the same in
 * both directions, so that of the flow is used. Adds to *diff what the ICMP checksum must take up.
 */
static __always_inline bool quoted_rewrite(struct __sk_buff *skb, const struct packet *quoted, const struct lb_flow *flow, __u32 *diff)
{
	__u32 l3 = quoted->l3;
	__u16 ports[2] = { flow->dport, flow->sport };
	__u16 check;

	quoted_checksum(skb, quoted, flow, diff);
	*diff = csum_add(*diff, csum_add(csum_fold(flow->addr_diff), csum_fold(flow->port_diff)));
	if (bpf_skb_store_bytes(skb, quoted->l4, ports, sizeof(ports), 0))
		return false;
	if (quoted->ipv6)
		return bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), flow->daddr, 16, 0) == 0 &&
		       bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, daddr), flow->saddr, 16, 0) == 0;
	if (bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, check), &check, sizeof(check)))
		return false;
	return quoted_store(skb, l3 + offsetof(struct iphdr, check), csum_apply(check, flow->addr_diff), diff) &&
	       bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, saddr), &flow->daddr[3], 4, 0) == 0 &&
	       bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, daddr), &flow->saddr[3], 4, 0) == 0;
}

/* Rewrites the outer header. The destination is the host that the error concerns. The source is the vip if the error came from the endpoint
 * itself, and otherwise the router that sent it. */
static __always_inline bool outer_rewrite(struct __sk_buff *skb, const struct packet *packet, const struct lb_flow *flow,
					  const __u32 *flow_saddr)
{
	struct lb_flow outer = { .flags = LB_FLOW_NEW_SADDR | LB_FLOW_NEW_DADDR };
	__u32 check = (packet->l4 & (HEADER_BYTES_MAX - 1)) + ICMP_CHECK_OFFSET;

	address_copy(outer.saddr, address_equal(packet->key.saddr, flow_saddr) ? flow->saddr : packet->key.saddr);
	address_copy(outer.daddr, flow->daddr);
	outer.addr_diff = csum_diff_address(csum_diff_address(0, packet->key.saddr, outer.saddr), packet->key.daddr, outer.daddr);
	if (!packet->ipv6)
		return rewrite_ipv4(skb, packet, &outer, true);
	/* The ICMPv6 checksum includes the pseudo header, ICMP's does not. */
	return rewrite_ipv6(skb, packet, &outer, true) &&
	       checksum_addresses(skb, check, outer.addr_diff, 0, true);
}

static __always_inline enum lb_outcome icmp_translate(struct __sk_buff *skb, struct packet *packet, struct packet *quoted,
						      const struct lb_flow *flow, const __u32 *flow_saddr)
{
	__u32 tags = packet->vlan_tags, diff = 0, check;

	if (!strip_vlan(skb, packet))
		return drop(packet, LB_REASON_malformed);
	quoted->l3 -= tags * 4;
	quoted->l4 -= tags * 4;
	check = (packet->l4 & (HEADER_BYTES_MAX - 1)) + ICMP_CHECK_OFFSET;
	if (!(flow->flags & LB_FLOW_DSR)) {
		if (!quoted_rewrite(skb, quoted, flow, &diff) || bpf_l4_csum_replace(skb, check, 0, diff, 0))
			return drop(packet, LB_REASON_malformed);
	}
	if (!outer_rewrite(skb, packet, flow, flow_saddr))
		return drop(packet, LB_REASON_malformed);
	count_packet(flow->endpoint, flow->flags & LB_FLOW_REPLY, skb->len);
	if (flow->action == LB_ACTION_HERE)
		return LB_STACK;
	if ((flow->flags & LB_FLOW_TUNNEL) && !encapsulate(skb, packet, flow))
		return drop(packet, LB_REASON_no_route);
	return hand_over(flow) ? LB_FORWARD : drop(packet, LB_REASON_redirect_failed);
}

/* Verified apart from its caller. */
GLOBAL int lb_walk_quoted(struct __sk_buff *skb, struct packet *quoted, __u32 start, __u32 ipv6)
{
	struct cursor cursor = {
		.start = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.wire_len = skb->len,
	};

	if (!quoted)
		return WALK_SHORT;
	cursor.pos = cursor.start + (start & (HEADER_BYTES_MAX / 2 - 1));
	return walk_quoted(&cursor, quoted, ipv6);
}

/* Finds the flow of the quoted packet: the one in the direction of the error. NULL: none. */
static __always_inline struct lb_flow *icmp_flow(struct __sk_buff *skb, const struct packet *packet, struct packet *quoted,
						 struct lb_flow_key *key)
{
	__builtin_memset(quoted, 0, sizeof(*quoted));
	if (lb_walk_quoted(skb, quoted, packet->l4 + ICMP_HEADER, packet->ipv6) != WALK_OK || quoted->fragment == FRAGMENT_LATER ||
	    (quoted->key.proto != IPPROTO_TCP && quoted->key.proto != IPPROTO_UDP))
		return NULL;
	__builtin_memset(key, 0, sizeof(*key));
	address_copy(key->saddr, quoted->key.daddr);
	address_copy(key->daddr, quoted->key.saddr);
	key->sport = quoted->key.dport;
	key->dport = quoted->key.sport;
	key->proto = quoted->key.proto;
	return conntrack_find(key);
}

static __always_inline enum lb_outcome icmp_error(struct __sk_buff *skb, struct packet *packet, const bool dry)
{
	struct packet quoted;
	struct lb_flow_key key;
	struct lb_flow *flow = icmp_flow(skb, packet, &quoted, &key);

	if (!flow)
		return stray(packet, LB_REASON_icmp_unmatched);
	packet->vip = flow->vip;
	if (packet->ttl <= 1 && flow->action != LB_ACTION_HERE)
		return drop(packet, LB_REASON_ttl_expired);
	if (dry)
		return flow->action == LB_ACTION_HERE ? LB_STACK : LB_FORWARD;
	return icmp_translate(skb, packet, &quoted, flow, key.saddr);
}

static __always_inline enum lb_outcome icmp(struct __sk_buff *skb, struct packet *packet, const bool dry)
{
	struct lb_address *address;

	if (packet->fragment == FRAGMENT_LATER) {
		enum lb_outcome outcome = fragment_later(packet);

		/* Known: a fragment of an echo request whose first fragment was answered. */
		return outcome == LB_CONTINUE ? (dry ? LB_ANSWER : icmp_turn(skb, packet)) : outcome;
	}
	if (icmp_is_error(packet) && packet->fragment == FRAGMENT_NONE)
		return icmp_error(skb, packet, dry);
	address = icmp_is_echo(packet) ? vip_address(packet) : NULL;
	if (!address || !(address->flags & LB_ADDRESS_ECHO))
		return packet->fragment == FRAGMENT_NONE ? LB_PASS : stray(packet, LB_REASON_unknown_fragment);
	if (dry)
		return LB_ANSWER;
	if (packet->fragment == FRAGMENT_FIRST)
		fragment_first(packet, false);
	return icmp_echo(skb, packet);
}

#endif
