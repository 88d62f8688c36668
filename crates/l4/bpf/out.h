/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The replies of endpoints that are addresses of this host. They arrive at no interface, so they are translated where they leave: the
 * source becomes the vip's address again. So do the ICMP errors of the host's stack about what clients have sent. Everything else passes
 * untouched, and what this host forwards is not even looked at.
 */
#ifndef LB_OUT_H
#define LB_OUT_H

#include "finish.h"
#include "read.h"

/* The flow in which this host's own stack sends, or NULL. */
static __always_inline struct lb_flow *out_flow(const struct packet *packet)
{
	struct lb_flow *flow = conntrack_find(&packet->key);

	return flow && (flow->flags & LB_FLOW_REPLY) && flow->action == LB_ACTION_HERE ? flow : NULL;
}

/* An error quotes what the client sent, as the stack got it. */
static __always_inline enum lb_outcome out_icmp(struct __sk_buff *skb, struct packet *packet)
{
	struct packet quoted;
	struct lb_flow_key key;
	struct lb_flow *flow;

	if (!icmp_is_error(packet) || packet->fragment != FRAGMENT_NONE)
		return LB_PASS;
	flow = icmp_flow(skb, packet, &quoted, &key);
	if (!flow || flow->action != LB_ACTION_HERE)
		return LB_PASS;
	packet->vip = flow->vip;
	return icmp_translate(skb, packet, &quoted, flow, key.saddr);
}

GLOBAL int lb_out_icmp(struct __sk_buff *skb, struct packet *packet)
{
	return packet ? out_icmp(skb, packet) : LB_PASS;
}

GLOBAL int lb_out_fragment(struct packet *packet)
{
	if (!packet)
		return LB_PASS;
	return packet->fragment == FRAGMENT_FIRST ? fragment_first(packet, false) : fragment_later(packet);
}

static __always_inline enum lb_outcome out(struct __sk_buff *skb, struct packet *packet, __u32 now)
{
	enum walk walk = packet_walk(skb, packet, PACE_SHORT);
	enum lb_outcome outcome;
	struct lb_flow *flow;

	if (unlikely(walk == WALK_SHORT || walk == WALK_LONGER))
		walk = lb_walk(skb, packet);
	if (walk != WALK_OK)
		return LB_PASS;
	if (unlikely(packet->key.proto == IPPROTO_ICMP || packet->key.proto == IPPROTO_ICMPV6))
		return lb_out_icmp(skb, packet);
	if (unlikely(packet->fragment != FRAGMENT_NONE)) {
		outcome = lb_out_fragment(packet);
		if (outcome != LB_CONTINUE)
			return outcome;
	}
	flow = out_flow(packet);
	if (!flow)
		return LB_PASS;
	if (conntrack_is_event(packet, flow, now)) {
		outcome = lb_event(skb, packet, now);
		/* An RST would have to go to the host's own socket. It learns from the client, which gets one with its next packet. */
		if (outcome == LB_ANSWER)
			outcome = LB_DROP;
		if (outcome != LB_CONTINUE)
			return outcome;
		flow = out_flow(packet);
		if (!flow)
			return LB_PASS;
	}
	return forward(skb, packet, flow, false);
}

#endif
