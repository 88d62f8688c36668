/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The first packet of a flow: is it a beginning, may it be one, and which endpoint takes it. */
#ifndef LB_OPEN_H
#define LB_OPEN_H

#include "create.h"
#include "vip.h"

/* Verified once each, apart from their callers: that keeps the sum of all paths small (global functions, kernel 5.6). */
GLOBAL int lb_create(struct __sk_buff *skb, struct packet *packet, __u32 endpoint)
{
	return packet ? flow_create(skb, packet, endpoint, false) : LB_DROP;
}

GLOBAL int lb_create_dry(struct __sk_buff *skb, struct packet *packet, __u32 endpoint)
{
	return packet ? flow_create(skb, packet, endpoint, true) : LB_DROP;
}

GLOBAL int lb_pick(struct packet *packet, __u32 attempt, __u32 now)
{
	return packet ? pick(packet, attempt, now, false) : ENDPOINT_NONE;
}

GLOBAL int lb_pick_dry(struct packet *packet, __u32 attempt, __u32 now)
{
	return packet ? pick(packet, attempt, now, true) : ENDPOINT_NONE;
}

/* May this segment or datagram begin a flow, or take up one that was lost? LB_CONTINUE: yes. */
static __always_inline enum lb_outcome open_is_allowed(struct packet *packet, const struct lb_vip *vip)
{
	if (packet->fragment == FRAGMENT_LATER)
		return drop(packet, LB_REASON_unknown_fragment);
	if (packet->ttl <= 1)
		return drop(packet, LB_REASON_ttl_expired);
	if (packet->key.proto != IPPROTO_TCP || tcp_begins(packet->tcp_flags))
		return LB_CONTINUE;
	if (packet->tcp_flags & TCP_RST) /* never answered by another (RFC 9293, 3.10.7.1) */
		return drop(packet, LB_REASON_no_flow);
	/* This host has just started without its table, or takes over from another Steelyard: the hash finds the endpoint again. */
	if (is_consistent(vip) && (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_ACK)
		return LB_CONTINUE;
	return answer(packet, ANSWER_RST, LB_REASON_no_flow);
}

/* Chooses until an endpoint is found that can take it. */
static __always_inline enum lb_outcome open_at_endpoint(struct __sk_buff *skb, struct packet *packet, const struct lb_vip *vip, __u32 now,
							const bool dry)
{
	enum lb_outcome outcome = drop(packet, LB_REASON_no_endpoint);

	for (__u32 attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
		__u32 index = dry ? lb_pick_dry(packet, attempt, now) : lb_pick(packet, attempt, now);

		if (index >= LB_ENDPOINTS_MAX || !endpoint_is_active(index))
			continue;
		trace(dry, LB_STAGE_SELECT, LB_CONTINUE, 0, index);
		packet->reason = LB_REASON_NONE;
		outcome = dry ? lb_create_dry(skb, packet, index) : lb_create(skb, packet, index);
		trace(dry, LB_STAGE_CREATE, outcome, packet->reason, index);
		if (outcome == LB_CONTINUE && !dry && (vip->flags & LB_VIP_AFFINITY))
			affinity_remember(packet, vip, index, now);
		if (outcome == LB_CONTINUE || packet->reason == LB_REASON_flow_table_full)
			return outcome;
	}
	if (packet->reason == LB_REASON_no_endpoint)
		trace(dry, LB_STAGE_SELECT, outcome, packet->reason, ENDPOINT_NONE);
	return outcome;
}

/* LB_CONTINUE: the flow is made. */
static __always_inline enum lb_outcome open_flow(struct __sk_buff *skb, struct packet *packet, __u32 now, const bool dry)
{
	enum lb_outcome outcome = vip_find(packet, dry);
	struct lb_vip *vip;

	if (outcome != LB_CONTINUE)
		return outcome;
	vip = vip_at(packet->vip);
	if (!vip)
		return LB_PASS;
	outcome = open_is_allowed(packet, vip);
	if (outcome != LB_CONTINUE) {
		trace(dry, LB_STAGE_CONNTRACK, outcome, packet->reason, 0);
		return outcome;
	}
	outcome = source_admit(packet, vip, packet->key.proto != IPPROTO_TCP || tcp_begins(packet->tcp_flags), dry);
	return outcome == LB_CONTINUE ? open_at_endpoint(skb, packet, vip, now, dry) : outcome;
}

#endif
