/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The table of flows: finds the connection of a packet, and updates its state. create.h makes flows, and gc.h forgets idle ones.
 *
 * Most packets change nothing: one lookup, one check of the endpoint's state, done. The others are events: a SYN, FIN or RST, the first
 * packet of a direction, the first in a second, any after both sides have sent FIN, and any towards an endpoint that is down.
 */
#ifndef LB_CONNTRACK_H
#define LB_CONNTRACK_H

#include "flow.h"
#include "forward.h"
#include "rest.h"
#include "select.h"
#include "source.h"

/* `key` must be on the stack or in a map. Before Linux 6.2 the verifier refuses a key in an argument of a global function. */
static __always_inline struct lb_flow *conntrack_find(const struct lb_flow_key *key)
{
	return bpf_map_lookup_elem(&lb_flows, key);
}

/* Finds the flow of a packet that is an argument of a global function: its key is copied to the stack first. */
static __always_inline struct lb_flow *conntrack_find_copied(const struct packet *packet)
{
	struct lb_flow_key key = packet->key;

	return conntrack_find(&key);
}

static __always_inline bool conntrack_is_event(const struct packet *packet, const struct lb_flow *flow, __u32 now)
{
	return (packet->key.proto == IPPROTO_TCP && tcp_is_event(packet->tcp_flags)) ||
	       (flow->state & (LB_SEEN_ACK | LB_CLOSING)) != LB_SEEN_ACK ||
	       flow->touched_s != now || endpoint_is_down(flow->endpoint);
}

/* The flow no longer counts as an active one of its endpoint. Safe to call twice: the bit is cleared once. */
static __always_inline void conntrack_release(struct lb_flow *flow)
{
	__u32 endpoint = flow->endpoint;
	__u32 *active;

	if (!(__sync_fetch_and_and(&flow->state, ~LB_COUNTED) & LB_COUNTED))
		return;
	active = bpf_map_lookup_elem(&lb_active, &endpoint);
	if (active)
		__sync_fetch_and_add(active, -1);
}

static __always_inline void conntrack_count(struct lb_flow *flow)
{
	__u32 endpoint = flow->endpoint;
	__u32 *active;

	if (__sync_fetch_and_or(&flow->state, LB_COUNTED) & LB_COUNTED)
		return;
	active = bpf_map_lookup_elem(&lb_active, &endpoint);
	if (active)
		__sync_fetch_and_add(active, 1);
	count_flow(endpoint);
}

/* Removes both directions. */
static __always_inline void conntrack_forget(const struct packet *packet, struct lb_flow *flow)
{
	struct lb_flow_key key = packet->key, other;
	struct lb_flow *twin;

	twin_key(&other, flow, key.proto);
	twin = conntrack_find(&other);
	conntrack_release(flow);
	if (twin)
		conntrack_release(twin);
	bpf_map_delete_elem(&lb_flows, &other);
	bpf_map_delete_elem(&lb_flows, &key);
}

/* The endpoint was found dead. LB_OPEN: another one must be chosen. */
static __always_inline enum lb_outcome conntrack_endpoint_down(struct packet *packet, struct lb_flow *flow, const bool dry)
{
	bool reply = flow->flags & LB_FLOW_REPLY;
	bool tcp = packet->key.proto == IPPROTO_TCP;

	packet->vip = flow->vip;
	if (!dry)
		conntrack_forget(packet, flow);
	if (!reply && (!tcp || tcp_begins(packet->tcp_flags)))
		return LB_OPEN;
	if (!tcp || (packet->tcp_flags & TCP_RST) || packet->fragment == FRAGMENT_LATER)
		return drop(packet, LB_REASON_endpoint_down);
	return answer(packet, ANSWER_RST, LB_REASON_endpoint_down);
}

/* The flow was silent for too long: either side that sends something is answered with an RST. The entries stay for the other side. */
static __always_inline enum lb_outcome conntrack_timed_out(struct packet *packet, const struct lb_flow *flow)
{
	packet->vip = flow->vip;
	if ((packet->tcp_flags & TCP_RST) || packet->fragment == FRAGMENT_LATER)
		return drop(packet, LB_REASON_timed_out);
	return answer(packet, ANSWER_RST, LB_REASON_timed_out);
}

/* A client reuses its port: the same entries serve the new connection. */
static __always_inline enum lb_outcome conntrack_reopen(struct packet *packet, struct lb_flow *flow, struct lb_flow *twin, __u32 now,
							const bool dry)
{
	__u32 index = flow->vip;
	struct lb_vip *vip = vip_at(index);
	enum lb_outcome outcome;

	packet->vip = index;
	outcome = vip ? source_admit(packet, vip, dry) : LB_CONTINUE;
	if (outcome != LB_CONTINUE || dry)
		return outcome;
	conntrack_release(flow);
	if (twin)
		twin->state = 0;
	flow->state = LB_SEEN_SYN;
	flow->born_s = now;
	conntrack_count(flow);
	return LB_CONTINUE;
}

static __always_inline bool conntrack_is_over(const struct lb_flow *flow)
{
	return (flow->state & LB_CLOSING) || ((flow->flags & LB_FLOW_DSR) && (flow->state & LB_SEEN_FIN));
}

/* `other` is the key of the other direction. */
static __always_inline const struct lb_flow_key *reply_key(const struct packet *packet, const struct lb_flow *flow,
							   const struct lb_flow_key *other)
{
	return flow->flags & LB_FLOW_REPLY ? &packet->key : other;
}

static __always_inline bool conntrack_rests(const struct packet *packet, const struct lb_flow *flow, const struct lb_flow_key *other,
					    __u32 now)
{
	return flow_has_our_port(flow) && tuple_rests(reply_key(packet, flow, other), now);
}

/* Once both have sent FIN: does the tuple rest, from this packet on? */
static __always_inline void conntrack_rest(const struct packet *packet, const struct lb_flow *flow, const struct lb_flow *twin,
					   const struct lb_flow_key *other, __u32 now)
{
	bool reply = flow->flags & LB_FLOW_REPLY;

	if (twin && flow_has_our_port(flow) &&
	    flow_endpoint_waits(reply ? twin->state : flow->state, reply ? flow->state : twin->state))
		tuple_rest(reply_key(packet, flow, other), now);
}

/* Updates the state of both directions from the packet. */
static __always_inline void conntrack_step(const struct packet *packet, struct lb_flow *flow, struct lb_flow *twin,
					   const struct lb_flow_key *other, __u32 now)
{
	__u32 add = LB_SEEN_ACK;

	if (packet->key.proto == IPPROTO_TCP)
		add = tcp_step(packet->tcp_flags, flow->state, twin ? twin->state : 0);
	if (add & ~flow->state)
		__sync_fetch_and_or(&flow->state, add);
	if (!(add & LB_CLOSING))
		return;
	if (twin)
		__sync_fetch_and_or(&twin->state, LB_CLOSING);
	conntrack_rest(packet, flow, twin, other, now);
	if (!(add & (LB_ENDED | LB_SEEN_RST)))
		return;
	conntrack_release(flow);
	if (twin)
		conntrack_release(twin);
}

/* Once a second: updates the time and the route, so that flows follow a changed route. */
static __always_inline void conntrack_touch(struct __sk_buff *skb, const struct packet *packet, struct lb_flow *flow, __u32 now)
{
	__u32 daddr[4];

	flow->touched_s = now;
	if (flow->action == LB_ACTION_HERE)
		return;
	address_copy(daddr, flow->daddr);
	if (flow->flags & LB_FLOW_DSR) {
		struct lb_endpoint *endpoint = endpoint_at(flow->endpoint);

		if (!endpoint)
			return;
		address_copy(daddr, endpoint->addr);
	}
	/* If there is no route at the moment, the old one stays. */
	route(skb, flow->saddr, daddr, packet->key.proto, skb->ifindex, flow);
}

/* A retransmitted SYN to an endpoint that was found dead after the first one. */
static __always_inline bool conntrack_is_in_vain(const struct packet *packet, const struct lb_flow *flow)
{
	return packet->key.proto == IPPROTO_TCP && tcp_begins(packet->tcp_flags) && !(flow->flags & LB_FLOW_REPLY) &&
	       !(flow->state & LB_SEEN_ACK) && endpoint_is_failing(flow->endpoint);
}

/* LB_CONTINUE: the flow is up to date. LB_OPEN: there is no such flow (any more), and the packet may create one. */
static __always_inline enum lb_outcome conntrack_event(struct __sk_buff *skb, struct packet *packet, __u32 now, const bool dry)
{
	struct lb_flow *flow = conntrack_find_copied(packet);
	struct lb_flow_key other;
	struct lb_flow *twin;

	if (!flow)
		return LB_OPEN;
	if (endpoint_is_down(flow->endpoint) || conntrack_is_in_vain(packet, flow))
		return conntrack_endpoint_down(packet, flow, dry);

	twin_key(&other, flow, packet->key.proto);
	twin = flow->flags & LB_FLOW_DSR ? NULL : conntrack_find(&other);
	if (packet->key.proto == IPPROTO_TCP && tcp_begins(packet->tcp_flags) && !(flow->flags & LB_FLOW_REPLY) &&
	    conntrack_is_over(flow)) {
		enum lb_outcome outcome;

		if (!endpoint_is_active(flow->endpoint) || (!twin && !(flow->flags & LB_FLOW_DSR)) ||
		    conntrack_rests(packet, flow, &other, now)) {
			if (!dry)
				conntrack_forget(packet, flow);
			return LB_OPEN;
		}
		outcome = conntrack_reopen(packet, flow, twin, now, dry);
		if (outcome != LB_CONTINUE)
			return outcome;
	}
	if (flow->state & LB_TIMED_OUT)
		return conntrack_timed_out(packet, flow);
	if (dry) {
		trace_found(flow);
		return LB_CONTINUE;
	}
	conntrack_step(packet, flow, twin, &other, now);
	if (flow->touched_s != now)
		conntrack_touch(skb, packet, flow, now);
	return LB_CONTINUE;
}

#endif
