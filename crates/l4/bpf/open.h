/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The first packet of a flow: is it a beginning, may it begin a flow, and which endpoint takes it. */
#ifndef LB_OPEN_H
#define LB_OPEN_H

#include "create.h"
#include "vip.h"

/* Each is verified once, apart from its callers, which keeps the number of paths small (global functions, kernel 5.6). */
GLOBAL int lb_create(struct __sk_buff *skb, struct packet *packet, __u32 endpoint)
{
	return packet ? flow_create(skb, packet, endpoint, false) : LB_DROP;
}

GLOBAL int lb_create_dry(struct __sk_buff *skb, struct packet *packet, __u32 endpoint)
{
	return packet ? flow_create(skb, packet, endpoint, true) : LB_DROP;
}

/* Does this host have a connection with the packet's addresses and ports? */
static __always_inline bool has_socket(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *socket;
	bool found;

	__builtin_memset(&tuple, 0, sizeof(tuple));
	if (packet->ipv6) {
		address_copy(tuple.ipv6.saddr, packet->key.saddr);
		address_copy(tuple.ipv6.daddr, packet->key.daddr);
		tuple.ipv6.sport = packet->key.sport;
		tuple.ipv6.dport = packet->key.dport;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv4.saddr = packet->key.saddr[3];
		tuple.ipv4.daddr = packet->key.daddr[3];
		tuple.ipv4.sport = packet->key.sport;
		tuple.ipv4.dport = packet->key.dport;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return false;
	found = socket->state != BPF_TCP_LISTEN;
	bpf_sk_release(socket);
	return found;
}

/*
 * No vip has the port. If the address belongs to a vip, and the host's routes would send the packet back by the interface that it came
 * from, a router and this host would send it back and forth until its TTL ends. So it is answered here. Everything else is for the host's
 * own stack.
 */
static __always_inline enum lb_outcome no_vip(struct __sk_buff *skb, struct packet *packet)
{
	struct lb_address *address = vip_address(packet);

	if (!address || (address->flags & LB_ADDRESS_HOST) || route_interface(skb, packet->key.daddr, packet->key.proto) != skb->ifindex)
		return LB_PASS;
	if (packet->fragment == FRAGMENT_LATER || (packet->tcp_flags & TCP_RST))
		return drop(packet, LB_REASON_no_such_port);
	return answer(packet, packet->key.proto == IPPROTO_TCP ? ANSWER_RST : ANSWER_NO_PORT, LB_REASON_no_such_port);
}

GLOBAL int lb_has_socket(struct __sk_buff *skb, struct packet *packet)
{
	return packet && has_socket(skb, packet);
}

GLOBAL int lb_no_vip(struct __sk_buff *skb, struct packet *packet)
{
	return packet ? no_vip(skb, packet) : LB_PASS;
}

/* This host has just started without its table, or takes over from another Steelyard: the hash finds the endpoint of a segment again. */
static __always_inline bool may_take_up(const struct packet *packet, const struct lb_vip *vip)
{
	return is_consistent(vip) && (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_ACK;
}

/* A segment of no flow, to an address of this host: it may belong to a connection of the host's own, or its stack answers it with an RST. */
static __always_inline bool is_of_this_host(struct __sk_buff *skb, struct packet *packet, const struct lb_vip *vip)
{
	struct lb_address *address = vip_address(packet);

	if (!address || !(address->flags & LB_ADDRESS_HOST))
		return false;
	return !may_take_up(packet, vip) || lb_has_socket(skb, packet);
}

/* May this segment or datagram begin a flow, or take up one that was lost? LB_CONTINUE: yes. */
static __always_inline enum lb_outcome open_is_allowed(struct __sk_buff *skb, struct packet *packet, const struct lb_vip *vip)
{
	if (packet->fragment == FRAGMENT_LATER)
		return drop(packet, LB_REASON_unknown_fragment);
	if (packet->ttl <= 1)
		return answer(packet, ANSWER_TIME_EXCEEDED, LB_REASON_ttl_expired);
	if (packet->key.proto != IPPROTO_TCP || tcp_begins(packet->tcp_flags))
		return LB_CONTINUE;
	if (is_of_this_host(skb, packet, vip))
		return LB_PASS;
	if (packet->tcp_flags & TCP_RST) /* never answered by another RST (RFC 9293, 3.10.7.1) */
		return drop(packet, LB_REASON_no_flow);
	if (may_take_up(packet, vip))
		return LB_CONTINUE;
	return answer(packet, ANSWER_RST, LB_REASON_no_flow);
}

/*
 * The host has both the address that the client asks for and that of the endpoint. So the listener there gets the SYN as it is, and its
 * connection answers from the address that the client knows: nothing is translated, and there is no flow. The segments after it find the
 * connection in the host's own tables.
 */
static __always_inline bool listener_takes(struct __sk_buff *skb, const struct packet *packet, __u32 index, const bool dry)
{
	struct lb_address *address = vip_address(packet);
	struct lb_endpoint *endpoint = endpoint_at(index);
	struct bpf_sock_tuple tuple;
	struct bpf_sock *socket;
	bool taken;

	if (!address || !endpoint || !(address->flags & LB_ADDRESS_HOST) || packet->key.proto != IPPROTO_TCP)
		return false;
	__builtin_memset(&tuple, 0, sizeof(tuple));
	if (packet->ipv6) {
		address_copy(tuple.ipv6.saddr, packet->key.saddr);
		address_copy(tuple.ipv6.daddr, endpoint->addr);
		tuple.ipv6.sport = packet->key.sport;
		tuple.ipv6.dport = endpoint->port ? endpoint->port : packet->key.dport;
		socket = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv4.saddr = packet->key.saddr[3];
		tuple.ipv4.daddr = endpoint->addr[3];
		tuple.ipv4.sport = packet->key.sport;
		tuple.ipv4.dport = endpoint->port ? endpoint->port : packet->key.dport;
		socket = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return false;
	taken = socket->state == BPF_TCP_LISTEN && (dry || !bpf_sk_assign(skb, socket, 0));
	bpf_sk_release(socket);
	return taken;
}

GLOBAL int lb_listener(struct __sk_buff *skb, struct packet *packet, __u32 index)
{
	return packet && listener_takes(skb, packet, index, false);
}

GLOBAL int lb_listener_dry(struct __sk_buff *skb, struct packet *packet, __u32 index)
{
	return packet && listener_takes(skb, packet, index, true);
}

/* Chooses until it finds an endpoint that can take it. */
static __always_inline enum lb_outcome open_at_endpoint(struct __sk_buff *skb, struct packet *packet, const struct lb_vip *vip, __u32 now,
							const bool dry)
{
	const enum lb_reason none = none_usable(vip);
	enum lb_outcome outcome = drop(packet, none);

	for (__u32 attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
		__u32 index = dry ? lb_pick_dry(packet, attempt, now) : lb_pick(packet, attempt, now);

		if (index >= LB_ENDPOINTS_MAX || !endpoint_is_active(index))
			continue;
		trace(dry, LB_STAGE_SELECT, LB_CONTINUE, 0, index);
		packet->reason = LB_REASON_NONE;
		outcome = dry ? lb_create_dry(skb, packet, index) : lb_create(skb, packet, index);
		if (packet->reason == LB_REASON_no_route &&
		    (dry ? lb_listener_dry(skb, packet, index) : lb_listener(skb, packet, index))) {
			packet->reason = LB_REASON_NONE;
			outcome = LB_LOCAL;
			if (!dry)
				count_flow(index);
		}
		trace(dry, LB_STAGE_CREATE, outcome, packet->reason, index);
		if ((outcome == LB_CONTINUE || outcome == LB_LOCAL) && !dry && (vip->flags & LB_VIP_AFFINITY))
			affinity_remember(packet, vip, index, now);
		if (outcome == LB_CONTINUE || outcome == LB_LOCAL || packet->reason == LB_REASON_flow_table_full)
			return outcome;
	}
	if (packet->reason == none)
		trace(dry, LB_STAGE_SELECT, outcome, packet->reason, ENDPOINT_NONE);
	return outcome;
}

/* LB_CONTINUE: the flow is made. */
static __always_inline enum lb_outcome open_flow(struct __sk_buff *skb, struct packet *packet, __u32 now, const bool dry)
{
	enum lb_outcome outcome = vip_find(packet, false, dry);
	struct lb_vip *vip;

	if (outcome == LB_PASS) {
		outcome = lb_no_vip(skb, packet);
		if (outcome != LB_PASS)
			trace(dry, LB_STAGE_VIP, outcome, packet->reason, 0);
	}
	if (outcome != LB_CONTINUE)
		return outcome;
	vip = vip_at(packet->vip);
	if (!vip)
		return LB_PASS;
	outcome = open_is_allowed(skb, packet, vip);
	if (outcome != LB_CONTINUE) {
		trace(dry, LB_STAGE_CONNTRACK, outcome, packet->reason, 0);
		return outcome;
	}
	outcome = source_admit(packet, vip, dry);
	return outcome == LB_CONTINUE ? open_at_endpoint(skb, packet, vip, now, dry) : outcome;
}

#endif
