/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Makes a flow: an entry for each direction, each holding everything that its packets need.
 *
 * The reply's entry is inserted first, and only if none exists. Two flows may need the same one (two vips, one endpoint, one client port),
 * and a reply must find its way as soon as the first packet can arrive.
 */
#ifndef LB_CREATE_H
#define LB_CREATE_H

#include "conntrack.h"
#include "csum.h"

/* full_nat: how many source ports are tried for one endpoint. With nine of ten ports taken, one flow in 30 would find none. */
#define PORT_PROBES_MAX 32u
/*
 * The first tries go through all ports in turn, so that each tries the port that was used longest ago, whose tuple no longer rests
 * (rest.h). The other tries are spread over all ports from the flow's hash on, and so leave a run of ports that long connections hold, or
 * that rest.
 */
#define PORT_TURNS_MAX 8u
#define EEXIST_RESULT (-17)

static __always_inline struct lb_scratch *scratch_at(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&lb_scratches, &zero);
}

static __always_inline struct lb_pool *pool_at(__u32 vip)
{
	return bpf_map_lookup_elem(&lb_pools, &vip);
}

/* The differences between what a packet arrives with and what it leaves with. */
static __always_inline void flow_differences(struct lb_flow *flow, const struct lb_flow_key *key)
{
	flow->addr_diff = 0;
	flow->port_diff = 0;
	flow->flags &= LB_FLOW_REPLY | LB_FLOW_DSR | LB_FLOW_TUNNEL;
	if (!address_equal(key->saddr, flow->saddr)) {
		flow->flags |= LB_FLOW_NEW_SADDR;
		flow->addr_diff = csum_diff_address(0, key->saddr, flow->saddr);
	}
	if (!address_equal(key->daddr, flow->daddr)) {
		flow->flags |= LB_FLOW_NEW_DADDR;
		flow->addr_diff = csum_diff_address(flow->addr_diff, key->daddr, flow->daddr);
	}
	if (key->sport != flow->sport)
		flow->port_diff = csum_diff16(key->sport, flow->sport);
	if (key->dport != flow->dport)
		flow->port_diff = csum_add(flow->port_diff, csum_diff16(key->dport, flow->dport));
}

static __always_inline __u32 port_turn(__u32 endpoint, __u32 probe, const bool dry)
{
	__u32 *turns = bpf_map_lookup_elem(&lb_port_turns, &endpoint);

	if (!turns)
		return probe;
	return dry ? *turns + probe : __sync_fetch_and_add(turns, 1);
}

/*
 * Must the endpoint see an address of this host? With full_nat always. With nat, if the client is the endpoint: it would get a packet from
 * itself, and its reply would never leave it. An endpoint on this host sees the client, because its replies are translated where they leave.
 */
static __always_inline bool flow_hides_client(const struct packet *packet, const struct lb_vip *vip, const struct lb_flow *flow)
{
	if (flow->action == LB_ACTION_HERE)
		return false;
	return vip->mode == LB_MODE_FULL_NAT || address_equal(packet->key.saddr, flow->daddr);
}

/* The source of a try, from the `only`th address of the pool, or (0) from any. False: the pool is empty. */
static __always_inline bool flow_source(const struct packet *packet, struct lb_flow *flow, const struct lb_pool *pool, __u32 only,
					__u32 probe, const bool dry)
{
	__u32 count = pool->addr_count;
	__u32 at, turn;

	if (!count || count > LB_POOL_MAX || pool->port_last < pool->port_first)
		return false;
	if (only > count)
		only = 0;
	if (probe < PORT_TURNS_MAX) {
		turn = port_turn(flow->endpoint, probe, dry);
	} else {
		__u32 turns = ((__u32)pool->port_last - pool->port_first + 1) * (only ? 1 : count);

		turn = turn_of_hash(hash_flow(&packet->key), probe - PORT_TURNS_MAX, PORT_PROBES_MAX - PORT_TURNS_MAX, turns);
	}
	at = only - 1;
	if (!only) {
		/* All addresses with one port, then the next port. */
		at = turn % count;
		turn /= count;
	}
	opaque(at);
	at &= LB_POOL_MAX - 1;
	address_copy(flow->saddr, pool->addrs[at]);
	flow->sport = be16(port_of_turn(turn, pool->port_first, pool->port_last));
	return true;
}

/* Inserts the reply's entry. LB_CONTINUE with *taken set: another flow has that tuple. */
static __always_inline enum lb_outcome reply_insert(struct packet *packet, const struct lb_flow_key *key, const struct lb_flow *reply,
						    bool *taken, const bool dry)
{
	struct lb_flow_key owner;
	struct lb_flow *there;
	long result = EEXIST_RESULT;

	*taken = false;
	if (!dry)
		result = bpf_map_update_elem(&lb_flows, key, reply, BPF_NOEXIST);
	if (result == 0)
		return LB_CONTINUE;
	if (result != EEXIST_RESULT)
		return drop(packet, LB_REASON_flow_table_full);
	there = conntrack_find(key);
	/* Already ours: a remainder of a flow whose other half is gone, or from another CPU that handles a copy of the same packet. */
	if (there) {
		twin_key(&owner, there, packet->key.proto);
		*taken = !(there->flags & LB_FLOW_REPLY) || !key_equal(&owner, &packet->key);
	}
	if (dry || *taken)
		return LB_CONTINUE;
	return bpf_map_update_elem(&lb_flows, key, reply, BPF_ANY) == 0 ? LB_CONTINUE : drop(packet, LB_REASON_flow_table_full);
}

/* Inserts the client's entry. If another CPU was quicker, its flow stays and ours is dropped. */
static __always_inline enum lb_outcome client_insert(struct packet *packet, struct lb_flow *flow, const struct lb_flow_key *reply_key)
{
	struct lb_flow_key key = packet->key, other;
	long result = bpf_map_update_elem(&lb_flows, &key, flow, BPF_NOEXIST);
	struct lb_flow *there = conntrack_find(&key);

	if (result == 0) {
		if (there)
			conntrack_count(there);
		return LB_CONTINUE;
	}
	if (there) {
		twin_key(&other, there, packet->key.proto);
		if (key_equal(&other, reply_key))
			return LB_CONTINUE;
	}
	if (!(flow->flags & LB_FLOW_DSR))
		bpf_map_delete_elem(&lb_flows, reply_key);
	return there ? LB_CONTINUE : drop(packet, LB_REASON_flow_table_full);
}

/* Fills in what both directions share, and the route of the client's packets. False: no route. */
static __always_inline bool flow_prepare(struct __sk_buff *skb, const struct packet *packet, const struct lb_vip *vip,
					 const struct lb_endpoint *endpoint, struct lb_flow *flow, struct lb_flow *reply)
{
	flow->vip = packet->vip;
	flow->born_s = now_s();
	flow->touched_s = flow->born_s;
	*reply = *flow;
	reply->flags = LB_FLOW_REPLY;
	/* COUNTED is set when the flow is in the table. */
	flow->state = flow_begin(packet->key.proto, packet->tcp_flags) & ~LB_COUNTED;
	address_copy(flow->saddr, packet->key.saddr);
	address_copy(flow->daddr, endpoint->addr);
	flow->sport = packet->key.sport;
	flow->dport = endpoint->port ? endpoint->port : packet->key.dport;
	if (vip->mode == LB_MODE_DSR)
		flow->flags = LB_FLOW_DSR | tunnel_flags(vip);
	if ((endpoint->source & LB_ENDPOINT_HERE) && vip->mode != LB_MODE_DSR) {
		flow->action = LB_ACTION_HERE;
		flow->ifindex = skb->ifindex;
	} else if (!route(skb, flow->saddr, flow->daddr, packet->key.proto, skb->ifindex, flow)) {
		return false;
	}
	if (vip->mode == LB_MODE_DSR) {
		/* Without a tunnel, the endpoint must be the next hop itself: a router in between would send the packet back, because it is
		 * still addressed to the vip. */
		bool direct = (flow->flags & LB_FLOW_TUNNEL) || address_equal(flow->next_hop, endpoint->addr);

		address_copy(flow->daddr, packet->key.daddr);
		flow->dport = packet->key.dport;
		return direct;
	}
	address_copy(reply->saddr, packet->key.daddr);
	address_copy(reply->daddr, packet->key.saddr);
	reply->sport = packet->key.dport;
	reply->dport = packet->key.sport;
	if (flow->action == LB_ACTION_HERE) {
		reply->action = LB_ACTION_HERE;
		reply->ifindex = skb->ifindex;
		return true;
	}
	return route(skb, reply->saddr, reply->daddr, packet->key.proto, flow->ifindex, reply);
}

/* One try to find a tuple for the replies that no other flow has. LB_CONTINUE: found. LB_OPEN: taken, and another try may succeed. */
static __always_inline enum lb_outcome reply_try(struct packet *packet, __u32 probe, const bool dry)
{
	struct lb_scratch *scratch = scratch_at();
	struct lb_vip *vip = vip_at(packet->vip);
	struct lb_pool *pool = pool_at(packet->vip);
	struct lb_endpoint *endpoint = scratch ? endpoint_at(scratch->flow.endpoint) : NULL;
	enum lb_outcome outcome;
	bool taken, hides;

	if (!scratch || !vip || !pool || !endpoint)
		return drop(packet, LB_REASON_no_route);
	hides = flow_hides_client(packet, vip, &scratch->flow);
	if (hides && !flow_source(packet, &scratch->flow, pool, endpoint->source & ~LB_ENDPOINT_HERE, probe, dry))
		return drop(packet, LB_REASON_ports_exhausted);
	twin_key(&scratch->reply_key, &scratch->flow, packet->key.proto);
	if (hides && tuple_rests(&scratch->reply_key, scratch->flow.born_s))
		return LB_OPEN;
	flow_differences(&scratch->reply, &scratch->reply_key);
	outcome = reply_insert(packet, &scratch->reply_key, &scratch->reply, &taken, dry);
	return outcome == LB_CONTINUE && taken ? LB_OPEN : outcome;
}

GLOBAL int lb_reply(struct packet *packet, __u32 probe)
{
	return packet ? reply_try(packet, probe, false) : LB_DROP;
}

GLOBAL int lb_reply_dry(struct packet *packet, __u32 probe)
{
	return packet ? reply_try(packet, probe, true) : LB_DROP;
}

/* One try, or as many as there are source ports to try. */
static __always_inline enum lb_outcome reply_place(struct packet *packet, bool hides, const bool dry)
{
	__u32 probes = hides ? PORT_PROBES_MAX : 1;

	for (__u32 probe = 0; probe < PORT_PROBES_MAX && probe < probes; probe++) {
		enum lb_outcome outcome = dry ? lb_reply_dry(packet, probe) : lb_reply(packet, probe);

		if (outcome != LB_OPEN)
			return outcome;
	}
	return drop(packet, hides ? LB_REASON_ports_exhausted : LB_REASON_flow_collision);
}

/*
 * LB_CONTINUE: the flow is in the table (dry: in the trace). LB_DROP with the reason no_route, flow_collision or ports_exhausted: another
 * endpoint may work.
 */
static __always_inline enum lb_outcome flow_create(struct __sk_buff *skb, struct packet *packet, __u32 index, const bool dry)
{
	struct lb_scratch *scratch = scratch_at();
	struct lb_vip *vip = vip_at(packet->vip);
	struct lb_endpoint *endpoint = endpoint_at(index);
	enum lb_outcome outcome;

	if (!scratch || !vip || !endpoint)
		return drop(packet, LB_REASON_no_route);
	__builtin_memset(scratch, 0, sizeof(*scratch));
	scratch->flow.endpoint = index;
	if (!flow_prepare(skb, packet, vip, endpoint, &scratch->flow, &scratch->reply))
		return drop(packet, LB_REASON_no_route);
	if (vip->mode != LB_MODE_DSR) {
		outcome = reply_place(packet, flow_hides_client(packet, vip, &scratch->flow), dry);
		if (outcome != LB_CONTINUE)
			return outcome;
	}
	flow_differences(&scratch->flow, &packet->key);
	if (dry) {
		trace_found(&scratch->flow);
		return LB_CONTINUE;
	}
	return client_insert(packet, &scratch->flow, &scratch->reply_key);
}

#endif
