/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fragments: the first has the ports, and the others get them from it. Nothing is reassembled or held back. A fragment that arrives before
 * the first is dropped, just as its datagram is by a host that never gets a fragment; if the address is the host's, it goes to the host's
 * own stack.
 */
#ifndef LB_FRAGMENT_H
#define LB_FRAGMENT_H

#include "conntrack.h"
#include "vip.h"

static __always_inline void fragment_key(struct lb_fragment_key *key, const struct packet *packet)
{
	address_copy(key->saddr, packet->key.saddr);
	address_copy(key->daddr, packet->key.daddr);
	key->id = packet->fragment_id;
	key->proto = packet->key.proto;
}

/* Remembers the ports of datagrams that are ours. The flow may not exist yet. */
static __always_inline enum lb_outcome fragment_first(struct packet *packet, const bool dry)
{
	struct lb_fragment ports = { .sport = packet->key.sport, .dport = packet->key.dport };
	struct lb_fragment_key key;

	if (!dry && (conntrack_find_copied(packet) || vip_address(packet))) {
		fragment_key(&key, packet);
		bpf_map_update_elem(&lb_fragments, &key, &ports, BPF_ANY);
	}
	return LB_CONTINUE;
}

static __always_inline enum lb_outcome fragment_later(struct packet *packet)
{
	struct lb_fragment_key key;
	struct lb_fragment *ports;

	fragment_key(&key, packet);
	ports = bpf_map_lookup_elem(&lb_fragments, &key);
	if (!ports)
		return stray(packet, LB_REASON_unknown_fragment);
	packet->key.sport = ports->sport;
	packet->key.dport = ports->dport;
	return LB_CONTINUE;
}

#endif
