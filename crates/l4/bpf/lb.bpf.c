// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The one way of a packet. Each stage is a header of that name; docs/life-of-a-packet.md tells it in words.
 *
 *   lb_in     at tc or tcx ingress of each interface where packets for a vip, or their replies, arrive
 *   lb_out    at the egress of the same interfaces, if an endpoint is an address of this host: its replies
 *   lb_trace  the same stages on the live tables, changing nothing, and writing down what each decided
 *   lb_gc     forgets idle flows, of those that user space names
 *   lb_here   does nothing: the end of its attachment to the loopback is the end of the namespace
 */
#include "base.h"
#include "maps.h"
#include "read.h"
#include "fragment.h"
#include "icmp.h"
#include "conntrack.h"
#include "open.h"
#include "forward.h"
#include "finish.h"
#include "gc.h"
#include "out.h"

static __always_inline int balance(struct __sk_buff *skb, const bool dry)
{
	__u32 now = now_s();
	struct packet packet;
	struct lb_flow *flow;
	bool ends = false;
	enum lb_outcome outcome = packet_read(skb, &packet, dry);

	if (outcome == LB_CONTINUE && unlikely(packet_is_special(&packet)))
		outcome = dry ? lb_special_dry(skb, &packet) : lb_special(skb, &packet);
	if (outcome != LB_CONTINUE)
		return finish(skb, &packet, outcome, dry);

	flow = conntrack_find(&packet.key);
	if (dry || !flow || conntrack_is_event(&packet, flow, now)) {
		outcome = dry ? lb_event_dry(skb, &packet, now) : flow ? lb_event(skb, &packet, now) : LB_OPEN;
		if (outcome == LB_OPEN)
			outcome = dry ? lb_open_dry(skb, &packet, now) : lb_open(skb, &packet, now);
		if (outcome != LB_CONTINUE)
			return finish(skb, &packet, outcome, dry);
		flow = dry ? trace_flow() : conntrack_find(&packet.key);
		ends = !dry && flow && gc_is_due(flow, now);
	}
	outcome = flow ? forward(skb, &packet, flow, dry) : drop(&packet, LB_REASON_no_flow);
	if (unlikely(ends))
		lb_forget(&packet);
	return finish(skb, &packet, outcome, dry);
}

SEC("tc")
int lb_in(struct __sk_buff *skb)
{
	return balance(skb, false);
}

SEC("tc")
int lb_out(struct __sk_buff *skb)
{
	struct packet packet;
	enum lb_outcome outcome;

	/* Not of this host: forwarded, or redirected by lb_in. */
	if (skb->ingress_ifindex)
		return NEXT;
	outcome = out(skb, &packet, now_s());
	if (packet.reason)
		count_reason(&packet);
	return outcome == LB_DROP ? TC_ACT_SHOT : NEXT;
}

SEC("tc")
int lb_trace(struct __sk_buff *skb)
{
	trace_begin();
	return balance(skb, true);
}

SEC("syscall")
int lb_gc(struct lb_gc_context *context)
{
	return gc_run(context);
}

SEC("tc")
int lb_here(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

/* bpf_for_each_map_elem, bpf_fib_lookup and bpf_redirect_neigh are only available to GPL-compatible
 * programs. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
