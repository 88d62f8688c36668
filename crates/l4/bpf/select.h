/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Chooses the endpoint of a new flow. Every algorithm uses the vip's table, which user space has built from the weights, so the cost does
 * not grow with the number of endpoints.
 */
#ifndef LB_SELECT_H
#define LB_SELECT_H

#include "choose.h"
#include "verdict.h"

/* Tries for one flow. An endpoint that died since the table was built, or whose tuple is taken, costs one. */
#define ATTEMPTS_MAX 8u
#define ENDPOINT_NONE LB_ENDPOINTS_MAX

static __always_inline struct lb_endpoint *endpoint_at(__u32 index)
{
	return bpf_map_lookup_elem(&lb_endpoints, &index);
}

static __always_inline bool endpoint_is_active(__u32 index)
{
	struct lb_endpoint *endpoint = endpoint_at(index);

	return endpoint && endpoint->state == LB_ENDPOINT_ACTIVE;
}

/* Its flows must end at once. */
static __always_inline bool endpoint_is_down(__u32 index)
{
	struct lb_endpoint *endpoint = endpoint_at(index);

	return !endpoint || endpoint->state == LB_ENDPOINT_DOWN || endpoint->state == LB_ENDPOINT_FREE;
}

static __always_inline bool endpoint_is_failing(__u32 index)
{
	struct lb_endpoint *endpoint = endpoint_at(index);

	return endpoint && endpoint->state == LB_ENDPOINT_FAILING;
}

static __always_inline __u32 table_at(__u32 vip, __u32 slot)
{
	void *table = bpf_map_lookup_elem(&lb_tables, &vip);
	__u32 *endpoint = table ? bpf_map_lookup_elem(table, &slot) : NULL;

	/* No such slot: the table has just become shorter than the vip says. Another try will work. */
	return endpoint ? *endpoint : ENDPOINT_NONE;
}

static __always_inline __u32 pick_in_turn(__u32 vip, __u32 attempt, __u32 slots, const bool dry)
{
	__u32 *cursor = bpf_map_lookup_elem(&lb_cursors, &vip);
	__u32 turn;

	if (!cursor)
		return ENDPOINT_NONE;
	/* Atomic, although it is this CPU's: a program at the socket can be interrupted by one of packets. Out of step with the other CPUs, so
	 * that their first flows do not all reach the first endpoint. */
	turn = dry ? *cursor + attempt : __sync_fetch_and_add(cursor, 1);
	return table_at(vip, (turn + bpf_get_smp_processor_id()) % slots);
}

/* Its flows, and the sockets of this host that are connected to it. */
static __always_inline __u32 load_of(__u32 endpoint)
{
	__u32 *active = bpf_map_lookup_elem(&lb_active, &endpoint);
	struct lb_uses *uses = bpf_map_lookup_elem(&lb_uses, &endpoint);

	return (active ? *active : 0) + (uses ? uses->open : 0);
}

/* The power of two choices (Mitzenmacher 2001): of two random slots, the one with fewer active flows for its weight. */
static __always_inline __u32 pick_less_loaded(__u32 vip, __u32 slots)
{
	__u32 a = table_at(vip, slot_of_hash(bpf_get_prandom_u32(), 0, slots));
	__u32 b = table_at(vip, slot_of_hash(bpf_get_prandom_u32(), 0, slots));
	struct lb_endpoint *endpoint_a = endpoint_at(a);
	struct lb_endpoint *endpoint_b = endpoint_at(b);

	if (!endpoint_b || endpoint_b->state != LB_ENDPOINT_ACTIVE)
		return a;
	if (!endpoint_a || endpoint_a->state != LB_ENDPOINT_ACTIVE)
		return b;
	/* The table holds an endpoint as often as its weight, so the draw is already weighted; the comparison is by remaining capacity. */
	return is_less_loaded(load_of(b), endpoint_b->weight, load_of(a), endpoint_a->weight) ? b : a;
}

/* The endpoint of this client's last flow, if it is remembered and still takes flows. */
static __always_inline __u32 pick_again(const struct packet *packet, __u32 now)
{
	struct lb_client_key key = { .vip = packet->vip };
	struct lb_affinity *affinity;
	struct lb_endpoint *endpoint;

	address_copy(key.addr, packet->key.saddr);
	affinity = bpf_map_lookup_elem(&lb_affinity, &key);
	if (!affinity || (__s32)(affinity->until_s - now) < 0)
		return ENDPOINT_NONE;
	endpoint = endpoint_at(affinity->endpoint);
	/* The index may have been freed since and given to another vip's endpoint. */
	return endpoint && endpoint->vip == packet->vip ? affinity->endpoint : ENDPOINT_NONE;
}

static __always_inline void affinity_remember(const struct packet *packet, const struct lb_vip *vip, __u32 endpoint, __u32 now)
{
	struct lb_client_key key = { .vip = packet->vip };
	struct lb_affinity affinity = { .endpoint = endpoint, .until_s = now + vip->affinity_s };

	address_copy(key.addr, packet->key.saddr);
	bpf_map_update_elem(&lb_affinity, &key, &affinity, BPF_ANY);
}

/* An index that may not be usable: the caller checks it and tries again. */
static __always_inline __u32 pick(const struct packet *packet, __u32 attempt, __u32 now, const bool dry)
{
	struct lb_vip *vip = vip_at(packet->vip);
	__u32 slots = vip ? vip->table_slots : 0;

	if (!slots)
		return ENDPOINT_NONE;
	if (attempt == 0 && (vip->flags & LB_VIP_AFFINITY)) {
		__u32 again = pick_again(packet, now);

		if (again < ENDPOINT_NONE && endpoint_is_active(again))
			return again;
	}
	switch (vip->algorithm) {
	case LB_MAGLEV:
		return table_at(packet->vip, slot_of_hash(hash_flow(&packet->key), attempt, slots));
	case LB_SOURCE_HASH:
		return table_at(packet->vip, slot_of_hash(hash_source(&packet->key), attempt, slots));
	case LB_RANDOM:
		return table_at(packet->vip, slot_of_hash(bpf_get_prandom_u32(), 0, slots));
	case LB_LEAST_CONNECTIONS:
		return pick_less_loaded(packet->vip, slots);
	default:
		return pick_in_turn(packet->vip, attempt, slots, dry);
	}
}

/* Verified once, apart from its callers, which keeps the number of paths small. */
GLOBAL int lb_pick(struct packet *packet, __u32 attempt, __u32 now)
{
	return packet ? pick(packet, attempt, now, false) : ENDPOINT_NONE;
}

GLOBAL int lb_pick_dry(struct packet *packet, __u32 attempt, __u32 now)
{
	return packet ? pick(packet, attempt, now, true) : ENDPOINT_NONE;
}

/* Why nothing was chosen. */
static __always_inline enum lb_reason none_usable(const struct lb_vip *vip)
{
	return vip->flags & LB_VIP_OF_NODE ? LB_REASON_no_local_endpoint : LB_REASON_no_endpoint;
}

/* Any Steelyard finds the same endpoint for the same flow, so the flow can continue there. */
static __always_inline bool is_consistent(const struct lb_vip *vip)
{
	return vip->algorithm == LB_MAGLEV || vip->algorithm == LB_SOURCE_HASH;
}

#endif
