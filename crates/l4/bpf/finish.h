/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The stages that few packets reach, each verified apart from its callers, and the last stage, which turns the decision into a return code
 * for the kernel. */
#ifndef LB_FINISH_H
#define LB_FINISH_H

#include "error.h"
#include "fragment.h"
#include "gc.h"
#include "icmp.h"
#include "open.h"
#include "reset.h"

#define NEXT (-1) /* TCX_NEXT and TC_ACT_UNSPEC: to the next program, or the host's own stack */

static __always_inline bool packet_is_special(const struct packet *packet)
{
	return packet->fragment != FRAGMENT_NONE || packet->key.proto == IPPROTO_ICMP || packet->key.proto == IPPROTO_ICMPV6;
}

static __always_inline enum lb_outcome special(struct __sk_buff *skb, struct packet *packet, const bool dry)
{
	if (packet->key.proto == IPPROTO_ICMP || packet->key.proto == IPPROTO_ICMPV6)
		return icmp(skb, packet, dry);
	return packet->fragment == FRAGMENT_FIRST ? fragment_first(packet, dry) : fragment_later(packet);
}

GLOBAL int lb_special(struct __sk_buff *skb, struct packet *packet)
{
	return packet ? special(skb, packet, false) : LB_PASS;
}

GLOBAL int lb_special_dry(struct __sk_buff *skb, struct packet *packet)
{
	enum lb_outcome outcome = packet ? special(skb, packet, true) : LB_PASS;

	if (packet && outcome != LB_CONTINUE)
		trace(true, LB_STAGE_CONNTRACK, outcome, packet->reason, 0);
	return outcome;
}

/* Handles a packet that changes its flow. LB_CONTINUE: there is a flow; LB_OPEN: there is none (any more). */
static __always_inline enum lb_outcome event(struct __sk_buff *skb, struct packet *packet, __u32 now, const bool dry)
{
	enum lb_outcome outcome = conntrack_event(skb, packet, now, dry);

	trace(dry, LB_STAGE_CONNTRACK, outcome, packet->reason, 0);
	return outcome;
}

GLOBAL int lb_event(struct __sk_buff *skb, struct packet *packet, __u32 now)
{
	return packet ? event(skb, packet, now, false) : LB_PASS;
}

GLOBAL int lb_event_dry(struct __sk_buff *skb, struct packet *packet, __u32 now)
{
	return packet ? event(skb, packet, now, true) : LB_PASS;
}

GLOBAL int lb_open(struct __sk_buff *skb, struct packet *packet, __u32 now)
{
	return packet ? open_flow(skb, packet, now, false) : LB_PASS;
}

GLOBAL int lb_open_dry(struct __sk_buff *skb, struct packet *packet, __u32 now)
{
	return packet ? open_flow(skb, packet, now, true) : LB_PASS;
}

GLOBAL int lb_answer(struct __sk_buff *skb, struct packet *packet)
{
	if (!packet)
		return false;
	return packet->answer == ANSWER_RST ? reset_send(skb, packet) : error_send(skb, packet);
}

static __always_inline int finish(struct __sk_buff *skb, struct packet *packet, enum lb_outcome outcome, const bool dry)
{
	if (dry)
		return NEXT;
	if (unlikely(packet->reason)) {
		count_reason(packet);
		if (packet->reason == LB_REASON_flow_table_full)
			lb_sweep(now_s());
	}
	switch (outcome) {
	case LB_FORWARD:
		return TC_ACT_REDIRECT;
	case LB_ANSWER:
		if (packet->answer != ANSWER_NONE && !lb_answer(skb, packet))
			return TC_ACT_SHOT;
		return TC_ACT_REDIRECT;
	case LB_DROP:
		return TC_ACT_SHOT;
	default:
		return NEXT;
	}
}

static __always_inline void trace_begin(void)
{
	struct lb_trace *buffer = trace_buffer();

	if (buffer)
		__builtin_memset(buffer, 0, sizeof(*buffer));
}

/* The flow that a dry run would have made or found. */
static __always_inline struct lb_flow *trace_flow(void)
{
	struct lb_trace *buffer = trace_buffer();

	return buffer ? &buffer->flow : NULL;
}

#endif
