/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* May this client open a flow? Checks allow and deny lists, and the rate. */
#ifndef LB_SOURCE_H
#define LB_SOURCE_H

#include "choose.h"
#include "verdict.h"

/* The longest prefix that contains the source decides. */
static __always_inline enum lb_outcome source_listed(struct packet *packet, const struct lb_vip *vip)
{
	struct lb_source_key key = {
		.prefix_bits = 32 + 128,
		.vip = be32(packet->vip),
	};
	__u32 *verdict;

	address_copy(key.addr, packet->key.saddr);
	verdict = bpf_map_lookup_elem(&lb_sources, &key);
	if (verdict && *verdict == LB_SOURCE_DENY)
		return drop(packet, LB_REASON_source_denied);
	if (!verdict && (vip->flags & LB_VIP_SOURCES_ONLY))
		return drop(packet, LB_REASON_source_not_allowed);
	return LB_CONTINUE;
}

static __always_inline enum lb_outcome source_rate(struct packet *packet, const struct lb_vip *vip, const bool dry)
{
	struct lb_client_key key = { .vip = packet->vip };
	struct lb_rate fresh, *bucket;
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	address_copy(key.addr, packet->key.saddr);
	bucket = bpf_map_lookup_elem(&lb_rates, &key);
	fresh.refilled_ns = bucket ? bucket->refilled_ns : now_ns;
	fresh.tokens_milli = bucket ? bucket->tokens_milli : vip->rate_burst * 1000ull;
	if (dry || !bucket)
		bucket = &fresh;
	if (!rate_take(bucket, now_ns, vip->rate_per_s, vip->rate_burst))
		return drop(packet, LB_REASON_rate_limited);
	if (!dry && bucket == &fresh)
		bpf_map_update_elem(&lb_rates, &key, &fresh, BPF_ANY);
	return LB_CONTINUE;
}

/*
 * Every flow costs a token, even one that a hash takes up again in its middle: otherwise a flood of ACKs would fill the table. A segment
 * without a token is dropped without an RST, and its sender tries again, so the connections of a source return as fast as it may open new
 * ones.
 */
static __always_inline enum lb_outcome source_admit(struct packet *packet, const struct lb_vip *vip, const bool dry)
{
	enum lb_outcome outcome = LB_CONTINUE;

	if (vip->flags & LB_VIP_SOURCES)
		outcome = source_listed(packet, vip);
	if (outcome == LB_CONTINUE && (vip->flags & LB_VIP_RATE))
		outcome = source_rate(packet, vip, dry);
	if (vip->flags & (LB_VIP_SOURCES | LB_VIP_RATE))
		trace(dry, LB_STAGE_SOURCE, outcome, packet->reason, 0);
	return outcome;
}

#endif
