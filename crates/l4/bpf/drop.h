/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Why a packet was not forwarded: the only list of reasons. The enum, the names in metrics and status, and docs/drops.md are
 * made from it. Numbers are never reused: a removed reason leaves a gap.
 */
#ifndef LB_DROP_H
#define LB_DROP_H

/* The decision of a stage about a packet. */
enum lb_outcome {
	LB_CONTINUE = 0, /* the next stage decides */
	LB_PASS = 1,     /* not ours: unchanged, for the next program or the stack */
	LB_LOCAL = 2,    /* a vip in mode local: unchanged, a listener on this host serves it */
	LB_FORWARD = 3,  /* rewritten and on its way */
	LB_ANSWER = 4,   /* answered here: echo, RST, ICMP. Counted as a drop if it has a reason */
	LB_DROP = 5,     /* counted by its reason */
	LB_STACK = 6,    /* rewritten, and left to the host's own stack: it has the endpoint's address, or forwards the packet in fragments */
	LB_OPEN = 7,     /* no known flow: the packet may begin one */
};

/* X(number, name, what it means and what to do about it) */
#define LB_DROP_REASONS(X) \
	X(1, malformed, "a header is truncated or contradicts itself") \
	X(2, ttl_expired, "its TTL or hop limit ended here: answered by ICMP. Traceroute causes a few of these; many point to a routing loop") \
	X(3, source_denied, "its source is on the vip's deny list") \
	X(4, source_not_allowed, "the vip has an allow list, and its source is not on it") \
	X(5, rate_limited, "its source opened new connections faster than the vip allows") \
	X(6, no_endpoint, "no endpoint of the vip takes new connections: all are down, draining or of weight 0. A process of this host that asks for it gets ECONNREFUSED") \
	X(7, no_flow, "not the beginning of a connection, and no known connection: answered by RST if it is TCP") \
	X(8, endpoint_down, "its endpoint was found dead: answered by RST if it is TCP") \
	X(9, flow_table_full, "the table of connections is full: raise flows_max, or look for a flood") \
	X(10, ports_exhausted, "full_nat: no source port towards the endpoint is free: all that were tried have connections, or rest for a minute because the endpoint closed theirs first: add source addresses") \
	X(11, flow_collision, "another connection already uses this tuple at every endpoint that was tried") \
	X(12, no_route, "the host has no route to the endpoint, or to the client; or the endpoint of a vip in mode dsr is behind a router, and the vip has no `tunnel`") \
	X(13, unknown_fragment, "a later fragment of a datagram whose first fragment was not seen") \
	X(14, too_big, "too large for the next link, and cannot be fragmented here: answered by ICMP") \
	X(15, icmp_unmatched, "an ICMP error about an unknown connection") \
	X(16, redirect_failed, "the kernel refused to hand the packet to its interface") \
	X(17, no_such_port, "the address belongs to a vip, but no vip has this port: answered by RST or ICMP if routing would send it back") \
	X(18, timed_out, "its connection was silent for longer than `timeouts.idle` and has ended: answered by RST") \
	X(19, no_local_endpoint, "its Service has internalTrafficPolicy or externalTrafficPolicy Local, and no usable endpoint on this node. A process of this host that asks for it gets ECONNREFUSED")

enum lb_reason {
	LB_REASON_NONE = 0,
#define LB_REASON_ENUM(number, name, text) LB_REASON_##name = number,
	LB_DROP_REASONS(LB_REASON_ENUM)
#undef LB_REASON_ENUM
};

#endif
