/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The first stage: packet.h's walk over the current packet. */
#ifndef LB_READ_H
#define LB_READ_H

#include <linux/if_packet.h>

#include "vip.h"

static __always_inline enum walk packet_walk(struct __sk_buff *skb, struct packet *packet, const enum pace pace)
{
	struct cursor cursor = {
		.start = (void *)(long)skb->data,
		.pos = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.wire_len = skb->len,
	};

	__builtin_memset(packet, 0, sizeof(*packet));
	packet->vip = LB_VIPS_MAX;
	return walk_ethernet(&cursor, packet, pace);
}

/*
 * The whole walk, for the few packets that need it, including those with headers outside the first page. Verified once, apart from its
 * caller (a global function, kernel 5.6).
 */
GLOBAL int lb_walk(struct __sk_buff *skb, struct packet *packet)
{
	__u32 len = skb->len < HEADER_BYTES_MAX ? skb->len : HEADER_BYTES_MAX;

	if (!packet || (skb->data_end - skb->data < len && bpf_skb_pull_data(skb, len)))
		return WALK_SHORT;
	return packet_walk(skb, packet, PACE_FULL);
}

/*
 * Is the frame for this interface? A switch that floods, and an interface in promiscuous mode, also deliver frames for other hosts; if two
 * balancers see them, both would answer. A frame with a VLAN tag is for the VLAN's own interface, where it arrives without its tag. A tag
 * of VLAN 0 is a priority and not a VLAN (IEEE 802.1Q).
 */
static __always_inline bool is_for_this_interface(const struct __sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST && !(skb->vlan_present && (skb->vlan_tci & VLAN_ID_MASK));
}

/* LB_CONTINUE: TCP, UDP or ICMP over IP, with complete headers. A broken packet is only dropped if it is for a vip. */
static __always_inline enum lb_outcome packet_read(struct __sk_buff *skb, struct packet *packet, const bool dry)
{
	enum walk walk = packet_walk(skb, packet, PACE_SHORT);
	enum lb_outcome outcome = LB_CONTINUE;

	if (unlikely(!is_for_this_interface(skb)))
		walk = WALK_OTHER;

	if (unlikely(walk == WALK_SHORT || walk == WALK_LONGER))
		walk = lb_walk(skb, packet);
	if (unlikely(walk != WALK_OK)) {
		outcome = walk != WALK_OTHER && packet->addressed ? stray(packet, LB_REASON_malformed) : LB_PASS;
	}
	trace(dry, LB_STAGE_PACKET, outcome, packet->reason, packet->key.proto);
	return outcome;
}

#endif
