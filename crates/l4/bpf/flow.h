/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The life of a flow: how its packets change its state, and how long it may be silent. Pure. */
#ifndef LB_FLOW_H
#define LB_FLOW_H

#include "packet.h"

/* Above the high-water mark of the table. A SYN or a FIN is answered or retransmitted within a second, and a flow that has ended mostly
 * gets no more packets. */
#define PRESSURE_SYN_S 3u
#define PRESSURE_CLOSING_S 0u
/* dsr: only the client is seen. After its FIN the endpoint may still send for a while, which only the client's ACKs show (IPVS waits as
 * long). */
#define DSR_FIN_S 120u
/*
 * Both have sent FIN, and the second is not acknowledged: the last packet may be lost on its way and sent again. The gap between two tries
 * doubles (RFC 6298, 5.5); 60 s is nf_conntrack's CLOSE_WAIT.
 */
#define LAST_ACK_S 60u
/*
 * How long a tuple rests after its endpoint closed a connection first, and keeps it in TIME_WAIT. Linux keeps it for 60 s, and for up to
 * 4 s longer, because its timers of that length are so coarse (kernel/time/timer.c).
 */
#define TIME_WAIT_S 64u
/* A direction whose twin is gone, or does not exist yet. */
#define ORPHAN_S 2u

/* The first segment of a connection. */
static __always_inline bool tcp_begins(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) == TCP_SYN;
}

/* A segment that changes more than the time of its flow. */
static __always_inline bool tcp_is_event(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_FIN | TCP_RST)) != 0;
}

/* The bits that a segment adds to the state of its direction. LB_CLOSING goes to both directions. */
static __always_inline __u32 tcp_step(__u8 flags, __u32 mine, __u32 twin)
{
	__u32 add = 0;

	if (flags & TCP_RST)
		return LB_SEEN_RST | LB_CLOSING;
	if (flags & TCP_SYN)
		add |= LB_SEEN_SYN;
	else if (flags & TCP_ACK)
		add |= LB_SEEN_ACK;
	if (flags & TCP_FIN)
		add |= LB_SEEN_FIN;
	if (((mine | add) & LB_SEEN_FIN) && (twin & LB_SEEN_FIN))
		add |= LB_CLOSING | ((mine & LB_SEEN_FIN) ? 0 : LB_FIN_LAST);
	/* Sequence numbers are not tracked, so it may acknowledge something that was sent before the FIN. */
	if ((twin & LB_FIN_LAST) && (flags & (TCP_ACK | TCP_FIN | TCP_SYN)) == TCP_ACK)
		add |= LB_ENDED;
	if ((mine & LB_FIN_LAST) && (flags & (TCP_ACK | TCP_FIN | TCP_SYN)) == TCP_ACK)
		add |= LB_FIN_CROSSED;
	return add;
}

/*
 * Does the endpoint keep the tuple in TIME_WAIT? It does if it sent its FIN first, or if both FINs crossed. Then it acknowledges the
 * client's FIN after its own; in an ordinary close it says nothing more.
 */
static __always_inline bool flow_endpoint_waits(__u32 client, __u32 endpoint)
{
	return (client & endpoint & LB_SEEN_FIN) && ((client & LB_FIN_LAST) || (endpoint & LB_FIN_CROSSED));
}

/* The initial state of a flow after its first packet. A flow that is recreated in the middle of a connection has seen ACK. */
static __always_inline __u32 flow_begin(__u8 proto, __u8 tcp_flags)
{
	return LB_COUNTED | (proto == IPPROTO_TCP ? tcp_step(tcp_flags, 0, 0) & ~LB_CLOSING : LB_SEEN_ACK);
}

/* The client has acknowledged, and the endpoint has sent something (dsr: this is not visible). */
static __always_inline bool flow_is_established(__u32 mine, __u32 twin, bool dsr)
{
	return (mine & LB_SEEN_ACK) && (dsr || (twin & (LB_SEEN_SYN | LB_SEEN_ACK)));
}

/* Seconds that a flow may be silent. `mine`: from the client; `twin`: from the endpoint. */
static __always_inline __u32 flow_life_s(const struct lb_vip *vip, __u32 mine, __u32 twin, bool dsr, bool pressure)
{
	if ((mine | twin) & (LB_ENDED | LB_SEEN_RST | LB_TIMED_OUT))
		return pressure && vip->closing_s > PRESSURE_CLOSING_S ? PRESSURE_CLOSING_S : vip->closing_s;
	if ((mine | twin) & LB_CLOSING) {
		__u32 life_s = vip->idle_s < LAST_ACK_S ? vip->idle_s : LAST_ACK_S;

		if (life_s < vip->closing_s)
			life_s = vip->closing_s;
		return pressure && life_s > PRESSURE_SYN_S ? PRESSURE_SYN_S : life_s;
	}
	if (dsr && (mine & LB_SEEN_FIN))
		return vip->idle_s < DSR_FIN_S ? vip->idle_s : DSR_FIN_S;
	if (flow_is_established(mine, twin, dsr))
		return vip->idle_s;
	return pressure && vip->syn_s > PRESSURE_SYN_S ? PRESSURE_SYN_S : vip->syn_s;
}

/* Silent for longer than `life_s`. The clock may lag behind a packet of another CPU: a flow that was touched in the future is not old. */
static __always_inline bool is_silent(__u32 now_s, __u32 touched_s, __u32 life_s)
{
	__s32 age_s = (__s32)(now_s - touched_s);

	return age_s > 0 && (__u32)age_s > life_s;
}

#endif
