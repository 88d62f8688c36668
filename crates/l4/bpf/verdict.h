/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How a stage reports its decision, how it is counted, and how a dry run records it. */
#ifndef LB_VERDICT_H
#define LB_VERDICT_H

#include "maps.h"
#include "packet.h"

/*
 * A function that is verified once, apart from its callers (kernel 5.6). Weak, so that no compiler optimises across the call: clang 16 and
 * newer omit an argument that the body does not use, and the verifier, which uses the prototype, then refuses the call.
 */
#define GLOBAL __weak __noinline

static __always_inline enum lb_outcome drop(struct packet *packet, enum lb_reason reason)
{
	packet->reason = reason;
	return LB_DROP;
}

/* Not forwarded, but its sender gets an answer. Counted like a drop. */
static __always_inline enum lb_outcome answer(struct packet *packet, enum answer answer, enum lb_reason reason)
{
	packet->reason = reason;
	packet->answer = answer;
	return LB_ANSWER;
}

/* By value, like every lookup of an index: a key must be on the stack or in a map before Linux 6.2, and `packet` is neither in a global
 * function. */
static __always_inline struct lb_vip *vip_at(__u32 index)
{
	return bpf_map_lookup_elem(&lb_vips, &index);
}

/* The count of this CPU. */
static __always_inline __u64 *drops_of(__u32 vip, __u32 reason)
{
	__u32 index = (vip < LB_VIPS_MAX ? vip : LB_VIPS_MAX) * LB_REASONS_MAX + (reason & (LB_REASONS_MAX - 1));
	__u64 *count = bpf_map_lookup_elem(&lb_drops, &index);
	__u64 none = 0;

	if (count)
		return count;
	bpf_map_update_elem(&lb_drops, &index, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&lb_drops, &index);
}

static __always_inline void count_reason(const struct packet *packet)
{
	__u64 *count = drops_of(packet->vip, packet->reason);

	if (count)
		(*count)++; /* per CPU, and softirqs do not interrupt each other */
}

static __always_inline void count_packet(__u32 endpoint, bool reply, __u32 bytes)
{
	struct lb_counters *counters = bpf_map_lookup_elem(&lb_counters, &endpoint);

	if (!counters)
		return;
	counters->packets[reply]++;
	counters->bytes[reply] += bytes;
}

static __always_inline void count_flow(__u32 endpoint)
{
	struct lb_counters *counters = bpf_map_lookup_elem(&lb_counters, &endpoint);

	if (counters)
		counters->flows++;
}

static __always_inline struct lb_trace *trace_buffer(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&lb_traces, &zero);
}

/* Does nothing, and costs no instruction, except in a dry run. */
static __always_inline void trace(const bool dry, enum lb_stage stage, enum lb_outcome outcome, __u8 reason, __u32 detail)
{
	struct lb_trace *buffer;
	__u32 step;

	if (!dry)
		return;
	buffer = trace_buffer();
	if (!buffer)
		return;
	step = buffer->step_count;
	if (step >= LB_TRACE_STEPS_MAX)
		return;
	buffer->steps[step].stage = stage;
	buffer->steps[step].outcome = outcome;
	buffer->steps[step].reason = reason;
	buffer->steps[step].detail = detail;
	buffer->step_count = step + 1;
}

/* The flow of a dry run: the one that was found or would be made. */
static __always_inline void trace_found(const struct lb_flow *flow)
{
	struct lb_trace *buffer = trace_buffer();

	if (buffer)
		buffer->flow = *flow;
}

/*
 * The coarse clock, in seconds. It changes with the jiffies, and reading it is a call, whereas reading the jiffies is a load. So it is read
 * once per jiffy, by the first CPU. A CPU that sees the new jiffy and not yet the new second is a jiffy late.
 */
static volatile struct {
	__u64 jiffies;
	__u32 now_s;
} clock;

static __always_inline __u32 now_s(void)
{
	__u64 jiffies = bpf_jiffies64();

	if (unlikely(clock.jiffies != jiffies)) {
		clock.now_s = (__u32)(bpf_ktime_get_coarse_ns() / 1000000000ull);
		clock.jiffies = jiffies;
	}
	return clock.now_s;
}

#endif
