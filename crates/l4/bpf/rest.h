/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * full_nat: tuples that rest. An endpoint that closes a connection first keeps its tuple in TIME_WAIT for a minute. A SYN of another client
 * from the same source port would meet that, and be refused or delayed: its timestamps and sequence numbers come from another host.
 *
 * A slot for each hash of a tuple holds when it was closed last. So marking and asking cost one lookup each, nothing has to be removed, and
 * the flow itself can be forgotten at once. Two tuples may share a slot: then one rests although it need not, and another port is tried. No
 * tuple that must rest is ever used.
 */
#ifndef LB_REST_H
#define LB_REST_H

#include "choose.h"
#include "flow.h"
#include "maps.h"

/* `key` is that of the replies. */
static __always_inline __u32 *rest_at(const struct lb_flow_key *key)
{
	__u32 slot = hash_flow(key) & (LB_RESTS_MAX - 1);

	return bpf_map_lookup_elem(&lb_rests, &slot);
}

/* TCP only: after the last datagram nobody remembers a UDP tuple. */
static __always_inline bool tuple_rests(const struct lb_flow_key *key, __u32 now)
{
	__u32 *closed_s = key->proto == IPPROTO_TCP ? rest_at(key) : NULL;

	return closed_s && *closed_s && !is_silent(now, *closed_s, TIME_WAIT_S);
}

static __always_inline void tuple_rest(const struct lb_flow_key *key, __u32 now)
{
	__u32 *closed_s = rest_at(key);

	if (closed_s)
		*closed_s = now;
}

/* Only full_nat rewrites both addresses; with any other mode, the tuple is the client's own. */
static __always_inline bool flow_has_our_port(const struct lb_flow *flow)
{
	const __u8 both = LB_FLOW_NEW_SADDR | LB_FLOW_NEW_DADDR;

	return (flow->flags & both) == both;
}

#endif
