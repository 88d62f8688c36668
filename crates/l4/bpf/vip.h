/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Finds the vip that a packet is addressed to. */
#ifndef LB_VIP_H
#define LB_VIP_H

#include "verdict.h"

static __always_inline struct lb_address *vip_address(const struct packet *packet)
{
	struct lb_address_key key;

	address_copy(key.addr, packet->key.daddr);
	return bpf_map_lookup_elem(&lb_addresses, &key);
}

/*
 * A packet to the address of a vip that belongs to neither a flow nor a vip. If this host has the address itself, the packet may be for a
 * connection of the host's own, which its stack knows.
 */
static __always_inline enum lb_outcome stray(struct packet *packet, enum lb_reason reason)
{
	struct lb_address *address = vip_address(packet);

	return !address || (address->flags & LB_ADDRESS_HOST) ? LB_PASS : drop(packet, reason);
}

/* The index of the vip in a range of the address, or LB_VIPS_MAX. */
static __always_inline __u32 vip_in_range(const struct packet *packet)
{
	struct lb_address *address = vip_address(packet);
	__u16 port = be16(packet->key.dport);

	if (!address)
		return LB_VIPS_MAX;
	for (__u32 i = 0; i < LB_RANGES_MAX; i++) {
		const struct lb_range *range = &address->ranges[i];

		if (i >= address->range_count)
			break;
		if (range->proto == packet->key.proto && range->first <= port && port <= range->last)
			return range->vip;
	}
	return LB_VIPS_MAX;
}

static __always_inline __u32 *vip_of_scope(const struct packet *packet, __u8 scope)
{
	struct lb_vip_key key = {
		.port = packet->key.dport,
		.proto = packet->key.proto,
		.scope = scope,
	};

	address_copy(key.addr, packet->key.daddr);
	return bpf_map_lookup_elem(&lb_vip_ids, &key);
}

/* LB_CONTINUE: packet->vip is the index of a vip that forwards, or, for a socket, that has endpoints. */
static __always_inline enum lb_outcome vip_find(struct packet *packet, const bool is_socket, const bool dry)
{
	enum lb_outcome outcome = LB_CONTINUE;
	__u32 *exact = is_socket ? vip_of_scope(packet, LB_SCOPE_SOCKETS) : NULL;
	struct lb_vip *vip;
	__u32 index;

	if (!exact)
		exact = vip_of_scope(packet, LB_SCOPE_PACKETS);
	index = exact ? *exact : vip_in_range(packet);
	vip = index < LB_VIPS_MAX ? vip_at(index) : NULL;
	/* A free slot: the vip has just been removed. */
	if (!vip || !vip->mode)
		outcome = LB_PASS;
	else if (vip->mode == LB_MODE_LOCAL)
		outcome = LB_LOCAL;
	if (outcome != LB_PASS)
		packet->vip = index;
	trace(dry, LB_STAGE_VIP, outcome, 0, index);
	return outcome;
}

#endif
