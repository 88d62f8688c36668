/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Forgets flows if neither direction has been heard for as long as the vip allows. User space reads the table page by page and passes the
 * silent ones here, some hundreds at a time, so that a table of millions blocks neither its thread nor this CPU. Whether a flow is over is
 * decided here, from both directions in their current state.
 *
 * If user space is gone, nothing reads the table. Then the last packet of a connection removes it (gc_is_due), and a packet that finds the
 * table full nevertheless sweeps it, all at once.
 *
 * A TCP connection that was idle for too long ends in two steps, so that neither side keeps half of it. The first collection marks it, and
 * user space makes both sides send a packet (reset.rs), which is answered by an RST (conntrack_timed_out). A later collection forgets it.
 *
 * The client's entry decides for both. An entry of replies is only judged itself when its twin is gone.
 */
#ifndef LB_GC_H
#define LB_GC_H

#include "conntrack.h"

struct collection {
	struct lb_gc_context counts;
	__u32 pressure;
	/* In a sweep: entries seen so far, the first to judge, and the first not to judge. */
	__u32 met;
	__u32 first;
	__u32 end;
};

static __always_inline bool gc_is_over(const struct lb_flow *flow, const struct lb_flow *twin, const struct collection *collection)
{
	__u32 twin_state = twin ? twin->state : 0, now = collection->counts.now_s;
	bool dsr = flow->flags & LB_FLOW_DSR;
	struct lb_vip *vip;
	__u32 life_s;

	if (!twin && !dsr)
		return is_silent(now, flow->touched_s, ORPHAN_S);
	vip = vip_at(flow->vip);
	if (!vip || !vip->mode) /* the vip was removed */
		return true;
	life_s = flow_life_s(vip, flow->state, twin_state, dsr, collection->pressure);
	return is_silent(now, flow->touched_s, life_s) && (!twin || is_silent(now, twin->touched_s, life_s));
}

/* A TCP connection that both sides consider open. Under pressure, room is worth more than an RST. */
static __always_inline bool gc_is_open(__u8 proto, const struct lb_flow *flow, const struct lb_flow *twin, const struct collection *collection)
{
	struct lb_vip *vip = vip_at(flow->vip);

	return proto == IPPROTO_TCP && twin && vip && vip->mode && !collection->pressure && !((flow->state | twin->state) & LB_CLOSING) &&
	       flow_is_established(flow->state, twin->state, false);
}

static __always_inline void gc_end(struct lb_flow *flow, __u32 now)
{
	flow->touched_s = now;
	__sync_fetch_and_or(&flow->state, LB_CLOSING | LB_TIMED_OUT);
	conntrack_release(flow);
}

/* Returning 1 ends the walk over the keys. */
static long gc_key(void *map, __u32 *index, struct lb_flow_key *key, struct collection *collection)
{
	struct lb_flow_key other;
	struct lb_flow *flow, *twin;

	if (*index >= collection->counts.key_count)
		return 1;
	flow = conntrack_find(key);
	if (!flow) /* gone with its twin */
		return 0;
	twin_key(&other, flow, key->proto);
	twin = flow->flags & LB_FLOW_DSR ? NULL : conntrack_find(&other);
	if (((flow->flags & LB_FLOW_REPLY) && twin) || !gc_is_over(flow, twin, collection))
		return 0;
	if (gc_is_open(key->proto, flow, twin, collection)) {
		if (collection->counts.ended >= collection->counts.ends_max)
			return 0;
		gc_end(flow, collection->counts.now_s);
		gc_end(twin, collection->counts.now_s);
		collection->counts.ended++;
		key->pad[0] = 1;
		return 0;
	}
	if ((flow->state & (LB_CLOSING | LB_TIMED_OUT)) == LB_CLOSING)
		collection->counts.closed++;
	else
		collection->counts.expired++;
	collection->counts.removed += twin ? 2 : 1;
	conntrack_release(flow);
	bpf_map_delete_elem(&lb_flows, &other);
	bpf_map_delete_elem(&lb_flows, key);
	return 0;
}

/* Seconds without a collection, after which the last packet of a connection removes its entries. If user space is only slow, nothing is lost. */
#define COLLECTOR_LATE_S 4u

/* Whether the flow has ended and should go at once: above the high-water mark of the table, and while nobody collects. */
static __always_inline bool gc_is_due(const struct lb_flow *flow, __u32 now)
{
	__u32 zero = 0;
	struct lb_shared *shared;

	if (!(flow->state & (LB_ENDED | LB_SEEN_RST)))
		return false;
	shared = bpf_map_lookup_elem(&lb_shared, &zero);
	return shared && (shared->pressure || shared->swept || is_silent(now, shared->collected_s, COLLECTOR_LATE_S));
}

GLOBAL int lb_forget(struct packet *packet)
{
	struct lb_flow_key key;
	struct lb_flow *flow;

	if (!packet)
		return 0;
	key = packet->key;
	flow = conntrack_find(&key);
	if (flow)
		conntrack_forget(packet, flow);
	return 0;
}

/* Seconds without a collection, after which user space counts as gone. It begins one every two seconds; with a million flows, one takes
 * some seconds longer. */
#define COLLECTOR_GONE_S 30u
/* Between two sweeps: the interval of user space. */
#define SWEEP_EVERY_S 2u
/* The entries that one sweep judges: a table of the default size. The packet that triggered the sweep waited 0.3 s for it, on a busy
 * virtual machine. */
#define SWEEP_ENTRIES_MAX 131072u

/*
 * Removes only this entry and not its twin: the walk stands on an entry, and only that one may disappear. The twin is seen later in this
 * walk, or is an orphan in the next.
 */
static long gc_entry(void *map, struct lb_flow_key *key, struct lb_flow *flow, struct collection *collection)
{
	struct lb_flow_key other;
	struct lb_flow *twin, *decides = flow;

	if (collection->met >= collection->end)
		return 1;
	if (collection->met++ < collection->first)
		return 0;
	twin_key(&other, flow, key->proto);
	twin = flow->flags & LB_FLOW_DSR ? NULL : conntrack_find(&other);
	if (twin && (flow->flags & LB_FLOW_REPLY)) {
		decides = twin;
		twin = flow;
	}
	if (!gc_is_over(decides, twin, collection))
		return 0;
	collection->counts.removed++;
	conntrack_release(flow);
	bpf_map_delete_elem(&lb_flows, key);
	return 0;
}

/*
 * The table is full, and user space has been silent for long: forgets flows that are over, as if under pressure. Only one CPU does it. The
 * next sweep of a large table skips what this one has judged, because a walk cannot begin in the middle.
 */
static __always_inline void gc_sweep(__u32 now)
{
	struct collection collection = { .counts.now_s = now, .pressure = 1 };
	__u32 zero = 0, before;
	struct lb_shared *shared = bpf_map_lookup_elem(&lb_shared, &zero);

	if (!shared)
		return;
	before = shared->collected_s;
	if (!is_silent(now, before, shared->swept ? SWEEP_EVERY_S : COLLECTOR_GONE_S))
		return;
	if (__sync_val_compare_and_swap(&shared->collected_s, before, now) != before)
		return;
	collection.first = shared->swept ? shared->swept - 1 : 0;
	collection.end = collection.first + SWEEP_ENTRIES_MAX;
	bpf_for_each_map_elem(&lb_flows, gc_entry, &collection, 0);
	shared->swept = 1 + (collection.met < collection.end ? 0 : collection.end);
}

GLOBAL int lb_sweep(__u32 now)
{
	gc_sweep(now);
	return 0;
}

static __always_inline int gc_run(struct lb_gc_context *context)
{
	struct collection collection = { .counts.key_count = context->key_count, .counts.ends_max = context->ends_max };
	__u32 zero = 0;
	struct lb_shared *shared = bpf_map_lookup_elem(&lb_shared, &zero);

	if (!shared)
		return 1;
	collection.counts.now_s = (__u32)(bpf_ktime_get_ns() / 1000000000ull);
	collection.pressure = shared->pressure;
	bpf_for_each_map_elem(&lb_gc_keys, gc_key, &collection, 0);
	*context = collection.counts;
	return 0;
}

#endif
