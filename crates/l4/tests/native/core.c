// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The headers of the data plane that call no BPF helper, compiled for this host, so that tests and the fuzzer can call what is in them. */
#include "../../bpf/choose.h"
#include "../../bpf/csum.h"
#include "../../bpf/flow.h"
#include "../../bpf/packet.h"

__u32 core_packet_size(void)
{
	return sizeof(struct packet);
}

/* A pace is a constant where it is compiled, so each has its own copy of the walk, as in the programs. */
int core_walk(const __u8 *data, __u32 linear, __u32 wire_len, int full, struct packet *packet)
{
	struct cursor cursor = { .start = data, .pos = data, .end = data + linear, .wire_len = wire_len };

	__builtin_memset(packet, 0, sizeof(*packet));
	packet->vip = LB_VIPS_MAX;
	return full ? walk_ethernet(&cursor, packet, PACE_FULL) : walk_ethernet(&cursor, packet, PACE_SHORT);
}

int core_walk_quoted(const __u8 *data, __u32 linear, __u32 start, int ipv6, struct packet *packet)
{
	struct cursor cursor = { .start = data, .pos = data + start, .end = data + linear, .wire_len = linear };

	__builtin_memset(packet, 0, sizeof(*packet));
	return walk_quoted(&cursor, packet, ipv6);
}

__u32 core_csum_diff_addresses(const __u32 *from, const __u32 *to)
{
	return csum_diff_address(csum_diff_address(0, from, to), from + 4, to + 4);
}

__u32 core_csum_diff_ports(__u16 from_sport, __u16 to_sport, __u16 from_dport, __u16 to_dport)
{
	return csum_add(csum_diff16(from_sport, to_sport), csum_diff16(from_dport, to_dport));
}

__u16 core_csum_apply(__u16 check, __u32 diff)
{
	return csum_apply(check, diff);
}

__u16 core_csum_ipv4_forwarded(__u16 check, __u32 diff)
{
	return csum_ipv4_forwarded(check, diff);
}

int core_tcp_begins(__u8 flags)
{
	return tcp_begins(flags);
}

__u32 core_tcp_step(__u8 flags, __u32 mine, __u32 twin)
{
	return tcp_step(flags, mine, twin);
}

__u32 core_flow_life_s(const struct lb_vip *vip, __u32 mine, __u32 twin, int dsr, int pressure)
{
	return flow_life_s(vip, mine, twin, dsr, pressure);
}

int core_is_silent(__u32 now_s, __u32 touched_s, __u32 life_s)
{
	return is_silent(now_s, touched_s, life_s);
}

__u32 core_hash_flow(const struct lb_flow_key *key)
{
	return hash_flow(key);
}

__u32 core_hash_source(const struct lb_flow_key *key)
{
	return hash_source(key);
}

__u32 core_slot_of_hash(__u32 hash, __u32 attempt, __u32 slots)
{
	return slot_of_hash(hash, attempt, slots);
}

int core_is_less_loaded(__u32 active_a, __u32 weight_a, __u32 active_b, __u32 weight_b)
{
	return is_less_loaded(active_a, weight_a, active_b, weight_b);
}

int core_rate_take(struct lb_rate *bucket, __u64 now_ns, __u32 per_s, __u32 burst)
{
	return rate_take(bucket, now_ns, per_s, burst);
}

__u16 core_port_of_turn(__u32 turn, __u16 first, __u16 last)
{
	return port_of_turn(turn, first, last);
}

__u32 core_turn_of_hash(__u32 hash, __u32 probe, __u32 probes, __u32 turns)
{
	return turn_of_hash(hash, probe, probes, turns);
}

int core_flow_endpoint_waits(__u32 client, __u32 endpoint)
{
	return flow_endpoint_waits(client, endpoint);
}
