/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way out: the interface, the next hop, and whether the packet fits. */
#ifndef LB_FORWARD_H
#define LB_FORWARD_H

#include "rewrite.h"
#include "tunnel.h"
#include "verdict.h"

#define LB_AF_INET 2
#define LB_AF_INET6 10

/*
 * Is the next hop the other end of this veth? bpf_redirect_peer leaves the link-layer addresses unchanged. An interface still accepts such
 * a frame, but a bridge, a macvlan or a virtual machine behind it does not, so packets for those use the neighbour table. So does a packet
 * whose neighbour is not known yet.
 */
static __always_inline bool is_peer(const struct lb_interface *interface, const __u8 *mac)
{
	__u8 differs = 0;

	for (int i = 0; i < ETH_ALEN; i++)
		differs |= interface->peer_mac[i] ^ mac[i];
	return (interface->flags & LB_INTERFACE_PEER) && !differs;
}

/* Looks up the host's routes. `iif` is the interface of arrival. It must forward (net.ipv4.conf.*.forwarding), or the lookup refuses. */
static __always_inline long route_ask(struct __sk_buff *skb, struct bpf_fib_lookup *fib, const __u32 *saddr, const __u32 *daddr, __u8 proto,
				      __u32 iif)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = iif;
	fib->l4_protocol = proto;
	/* Not a length: it makes the lookup return the route's MTU, which matters in addition to the interface's (kernel 5.12). */
	fib->tot_len = 1;
	if (address_is_ipv4(daddr)) {
		fib->family = LB_AF_INET;
		fib->ipv4_src = saddr[3];
		fib->ipv4_dst = daddr[3];
	} else {
		fib->family = LB_AF_INET6;
		address_copy(fib->ipv6_src, saddr);
		address_copy(fib->ipv6_dst, daddr);
	}
	return bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
}

/* bpf_redirect_neigh resolves an unknown neighbour. The lookup returns the interface anyway (kernel 5.10). */
static __always_inline bool is_way(long result)
{
	return result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/* The interface by which the host would forward a packet from this interface to this address. 0: none. */
static __always_inline __u32 route_interface(struct __sk_buff *skb, const __u32 *daddr, __u8 proto)
{
	const __u32 any[4] = { 0 };
	struct bpf_fib_lookup fib;

	return is_way(route_ask(skb, &fib, any, daddr, proto, skb->ifindex)) ? fib.ifindex : 0;
}

/*
 * Looks up the host's routes, so that `ip route` has its usual effect here too, and writes the result into the flow. False: no route, and
 * the flow is unchanged. Another CPU may read a flow in use half-written: one packet then goes the wrong way, as happens when a route
 * changes.
 */
static __always_inline bool route(struct __sk_buff *skb, const __u32 *saddr, const __u32 *daddr, __u8 proto, __u32 iif, struct lb_flow *flow)
{
	struct bpf_fib_lookup fib;
	struct lb_interface *interface;
	__u32 ifindex, mtu, more = tunnel_bytes(flow->flags, !address_is_ipv4(daddr));
	long result = route_ask(skb, &fib, saddr, daddr, proto, iif);

	if (!is_way(result))
		return false;
	if (fib.family == LB_AF_INET)
		address_from_ipv4(flow->next_hop, fib.ipv4_dst);
	else
		address_copy(flow->next_hop, fib.ipv6_dst);
	ifindex = fib.ifindex;
	mtu = result == BPF_FIB_LKUP_RET_SUCCESS && fib.mtu_result > 1 ? fib.mtu_result : 0;
	interface = bpf_map_lookup_elem(&lb_interfaces, &ifindex);
	if (interface && !mtu)
		mtu = interface->mtu < 65535 ? interface->mtu : 65535;
	if (more && mtu)
		mtu = mtu > more ? mtu - more : 1;
	flow->ifindex = ifindex;
	flow->mtu = (__u16)mtu;
	flow->action = LB_ACTION_NEIGH;
	/* The kernel's neighbour table also writes the type of the frame, which the outer packet may change. */
	if (!more && interface && result == BPF_FIB_LKUP_RET_SUCCESS && is_peer(interface, fib.dmac))
		flow->action = LB_ACTION_PEER;
	return true;
}

/* Passes the packet to the interface. The kernel writes the link-layer addresses; the other end of a veth ignores them (see is_peer). */
static __always_inline bool hand_over(const struct lb_flow *flow)
{
	struct bpf_redir_neigh neighbour;

	if (flow->action == LB_ACTION_PEER)
		return bpf_redirect_peer(flow->ifindex, 0) == TC_ACT_REDIRECT;
	__builtin_memset(&neighbour, 0, sizeof(neighbour));
	if (address_is_ipv4(flow->next_hop)) {
		neighbour.nh_family = LB_AF_INET;
		neighbour.ipv4_nh = flow->next_hop[3];
	} else {
		neighbour.nh_family = LB_AF_INET6;
		address_copy(neighbour.ipv6_nh, flow->next_hop);
	}
	return bpf_redirect_neigh(flow->ifindex, &neighbour, sizeof(neighbour), 0) == TC_ACT_REDIRECT;
}

/* Layer 3 bytes of the packet, or of the longest segment that it will be cut into. */
static __always_inline __u32 wire_len(const struct __sk_buff *skb, const struct packet *packet)
{
	if (skb->gso_size)
		return packet->l4 - packet->l3 + packet->l4_header + skb->gso_size;
	return skb->len - packet->l3;
}

/* Removes a VLAN tag, which belongs to the link that the packet came by. */
static __always_inline bool strip_vlan(struct __sk_buff *skb, struct packet *packet)
{
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return false;
	for (int i = 0; i < VLAN_TAGS_MAX && i < packet->vlan_tags; i++) {
		/* Also counts a tag that the kernel has moved out of the packet after the last one was popped; popping none is no error. */
		if (bpf_skb_vlan_pop(skb))
			return false;
	}
	packet->l3 -= packet->vlan_tags * 4;
	packet->l4 -= packet->vlan_tags * 4;
	packet->vlan_tags = 0;
	return true;
}

/*
 * Would the host's own stack accept the packet with its new source, and fragment it? It accepts none from an address that it has itself,
 * and applies rp_filter to the others. Packets that it would not accept are answered as if they had DF set: a sender that fragments
 * datagrams, or follows the path's MTU, then sends smaller packets.
 */
static __always_inline bool stack_takes(struct __sk_buff *skb, const struct lb_flow *flow, __u8 proto)
{
	__u32 ifindex = skb->ifindex, back;
	struct lb_interface *interface;
	struct lb_address_key source;
	struct lb_address *address;

	/* The stack would send it to where the vip's address is routed. */
	if (flow->flags & LB_FLOW_DSR)
		return false;
	if (!(flow->flags & LB_FLOW_NEW_SADDR))
		return true;
	address_copy(source.addr, flow->saddr);
	address = bpf_map_lookup_elem(&lb_addresses, &source);
	if (!address || (address->flags & LB_ADDRESS_HOST)) /* full_nat uses addresses of this host */
		return false;
	interface = bpf_map_lookup_elem(&lb_interfaces, &ifindex);
	if (!interface || !(interface->flags & (LB_INTERFACE_STRICT | LB_INTERFACE_LOOSE)))
		return true;
	back = route_interface(skb, flow->saddr, proto);
	return back && (back == ifindex || !(interface->flags & LB_INTERFACE_STRICT));
}

GLOBAL int lb_stack_takes(struct __sk_buff *skb, struct lb_flow *flow, __u32 proto)
{
	return flow && stack_takes(skb, flow, (__u8)proto);
}

/* Checks that the packet may leave, rewrites it, and sends it along its flow's route. */
static __always_inline enum lb_outcome forward(struct __sk_buff *skb, struct packet *packet, struct lb_flow *flow, const bool dry)
{
	enum lb_outcome outcome = LB_FORWARD;
	bool fits = !flow->mtu || wire_len(skb, packet) <= flow->mtu;

	packet->vip = flow->vip;
	if (unlikely(flow->action == LB_ACTION_HERE)) {
		/* Not forwarded: the host's own stack is its end, or its beginning. */
		outcome = LB_STACK;
	} else if (packet->ttl <= 1) {
		outcome = answer(packet, ANSWER_TIME_EXCEEDED, LB_REASON_ttl_expired);
	} else if (!fits && (packet->dont_fragment || !lb_stack_takes(skb, flow, packet->key.proto))) {
		packet->mtu = flow->mtu;
		outcome = answer(packet, ANSWER_TOO_BIG, LB_REASON_too_big);
	} else if (!fits) {
		outcome = LB_STACK;
	}
	trace(dry, LB_STAGE_FORWARD, outcome, packet->reason, flow->ifindex);
	if (dry || outcome == LB_DROP || outcome == LB_ANSWER)
		return outcome;
	count_packet(flow->endpoint, flow->flags & LB_FLOW_REPLY, skb->len);
	if (unlikely(packet->vlan_tags || skb->vlan_present) && !strip_vlan(skb, packet))
		return drop(packet, LB_REASON_malformed);
	if (!rewrite(skb, packet, flow, outcome != LB_STACK))
		return drop(packet, LB_REASON_malformed);
	if (unlikely(flow->flags & LB_FLOW_TUNNEL) && !lb_encapsulate(skb, packet, flow))
		return drop(packet, LB_REASON_no_route);
	if (outcome == LB_FORWARD && !hand_over(flow))
		return drop(packet, LB_REASON_redirect_failed);
	return outcome;
}

#endif
