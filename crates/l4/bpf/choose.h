/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The arithmetic of choice: hashes, slots, the better of two, token buckets. Pure. */
#ifndef LB_CHOOSE_H
#define LB_CHOOSE_H

#include "base.h"

/*
 * Not keyed, because any number of Steelyards must send a flow to the same endpoint without communicating. For each word it multiplies by
 * an odd constant (2^64 over the golden ratio) and folds the high half down.
 */
static __always_inline __u64 hash_word(__u64 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ (hash >> 32);
}

static __always_inline __u64 hash_address(__u64 hash, const __u32 *address)
{
	hash = hash_word(hash, address[0]);
	hash = hash_word(hash, address[1]);
	hash = hash_word(hash, address[2]);
	return hash_word(hash, address[3]);
}

static __always_inline __u32 hash_flow(const struct lb_flow_key *key)
{
	__u64 hash = hash_address(key->proto, key->saddr);

	hash = hash_address(hash, key->daddr);
	return (__u32)hash_word(hash, (__u32)key->sport << 16 | key->dport);
}

static __always_inline __u32 hash_source(const struct lb_flow_key *key)
{
	return (__u32)hash_word(hash_address(0, key->saddr), 0);
}

/* The slot for a hash, on the `attempt`th try: 0 <= slot < slots. */
static __always_inline __u32 slot_of_hash(__u32 hash, __u32 attempt, __u32 slots)
{
	if (attempt)
		hash = (__u32)hash_word(hash, attempt);
	return (__u32)(((__u64)hash * slots) >> 32);
}

/* Compares active flows over weight, counting the new flow, without a division. */
static __always_inline bool is_less_loaded(__u32 active_a, __u32 weight_a, __u32 active_b, __u32 weight_b)
{
	return (active_a + 1ull) * weight_b < (active_b + 1ull) * weight_a;
}

/*
 * Takes a token. A bucket that was idle for longer than REFILL_US_MAX is full, which bounds the product below 2^62. Two CPUs at once may
 * take the same token: the limit is against floods, and a lock would cost every new flow.
 */
#define REFILL_US_MAX (1ull << 30)
static __always_inline bool rate_take(struct lb_rate *bucket, __u64 now_ns, __u32 per_s, __u32 burst)
{
	__u64 full = burst * 1000ull;
	__u64 us = now_ns > bucket->refilled_ns ? (now_ns - bucket->refilled_ns) / 1000 : 0;
	__u64 tokens = full;

	if (us < REFILL_US_MAX) {
		__u64 gained = us * per_s / 1000;

		tokens = bucket->tokens_milli + gained;
		if (tokens > full)
			tokens = full;
		/* Less than a thousandth of a token: let the time accumulate. */
		if (gained)
			bucket->refilled_ns = now_ns;
	} else {
		bucket->refilled_ns = now_ns;
	}
	if (tokens < 1000) {
		bucket->tokens_milli = tokens;
		return false;
	}
	bucket->tokens_milli = tokens - 1000;
	return true;
}

/* The port of [first, last] at a turn of the round through all of them. */
static __always_inline __u16 port_of_turn(__u32 turn, __u16 first, __u16 last)
{
	return (__u16)(first + turn % ((__u32)last - first + 1));
}

/*
 * The `probe`th of `probes` tries of a flow that hashes to `hash`, in a round of `turns`. They are spread over the whole round, so a run of
 * turns that are all taken hides no free one elsewhere. If there are as many probes as turns, they try each.
 */
static __always_inline __u32 turn_of_hash(__u32 hash, __u32 probe, __u32 probes, __u32 turns)
{
	__u32 stride = turns / probes;

	/* The round is shorter than 2^24, so the sum does not overflow. */
	return (hash >> 8) + probe * (stride ? stride : 1);
}

#endif
