/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * All maps of the data plane, and nothing else. abi.h has the layouts of keys and values.
 *
 * All are preallocated: a packet never waits for memory, and a full table is a counted verdict. The table of flows is a plain hash, because
 * in an LRU a flood could evict live connections. Data that can be forgotten without breaking a connection is in an LRU.
 */
#ifndef LB_MAPS_H
#define LB_MAPS_H

#include "abi.h"

#define LB_CLIENTS_MAX 65536u   /* clients whose affinity and rate are remembered: the least recent ones are forgotten */
#define LB_FRAGMENTS_MAX 16384u /* fragmented datagrams in progress at once */
#define LB_INTERFACES_MAX 4096u

/* Both directions of every flow, so twice the number of connections. The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct lb_flow_key);
	__type(value, struct lb_flow);
} lb_flows SEC(".maps");

/* One port of an address: the index of its vip. lb_addresses has ports in ranges. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LB_VIP_KEYS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* only user space adds to it */
	__type(key, struct lb_vip_key);
	__type(value, __u32);
} lb_vip_ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_VIPS_MAX);
	__type(key, __u32);
	__type(value, struct lb_vip);
} lb_vips SEC(".maps");

/* Every address of any vip: whether to answer echo, and its port ranges. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LB_VIPS_MAX);
	__type(key, struct lb_address_key);
	__type(value, struct lb_address);
} lb_addresses SEC(".maps");

/* A vip's table: each slot is an index in lb_endpoints. Replacing the inner map changes the whole table at once. */
struct lb_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP); /* kernel 5.10: tables of one outer map may differ in length */
	__type(key, __u32);
	__type(value, __u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, LB_VIPS_MAX);
	__type(key, __u32);
	__array(values, struct lb_table);
} lb_tables SEC(".maps");

/* The cursor of each vip's round. Each CPU has its own, so that new flows on several CPUs share no cache line for it: the order is exact for
 * the flows of one CPU, and the shares are exact for all. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LB_VIPS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} lb_cursors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct lb_endpoint);
} lb_endpoints SEC(".maps");

/* Flows of each endpoint that have neither ended nor expired. Index as lb_endpoints. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} lb_active SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LB_ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct lb_counters);
} lb_counters SEC(".maps");

/* What sockets of this host use each endpoint for. Index as lb_endpoints. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct lb_uses);
} lb_uses SEC(".maps");

/* Packets not forwarded, at vip * LB_REASONS_MAX + reason. The vip LB_VIPS_MAX stands for "none". An array would need 4 MiB for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, LB_DROPS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} lb_drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LB_CLIENTS_MAX);
	__type(key, struct lb_client_key);
	__type(value, struct lb_affinity);
} lb_affinity SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LB_CLIENTS_MAX);
	__type(key, struct lb_client_key);
	__type(value, struct lb_rate);
} lb_rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LB_FRAGMENTS_MAX);
	__type(key, struct lb_fragment_key);
	__type(value, struct lb_fragment);
} lb_fragments SEC(".maps");

/* LB_SOURCE_ALLOW or LB_SOURCE_DENY. A trie cannot be preallocated; only user space adds to it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, LB_SOURCES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_source_key);
	__type(value, __u32);
} lb_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_VIPS_MAX);
	__type(key, __u32);
	__type(value, struct lb_pool);
} lb_pools SEC(".maps");

/* full_nat: how many source ports have been tried for each endpoint. Index as lb_endpoints. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} lb_port_turns SEC(".maps");

/* full_nat: when an endpoint last closed a connection whose tuple has this hash; 0: never. See rest.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_RESTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} lb_rests SEC(".maps");

/* By ifindex. An interface that is missing here is reached through the neighbour table, and its MTU is unknown. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LB_INTERFACES_MAX);
	__type(key, __u32);
	__type(value, struct lb_interface);
} lb_interfaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lb_shared);
} lb_shared SEC(".maps");

/* Entries of lb_flows that lb_gc should judge. One run at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LB_GC_KEYS_MAX);
	__type(key, __u32);
	__type(value, struct lb_flow_key);
} lb_gc_keys SEC(".maps");

/* The result of lb_trace. One trace at a time: user space holds a lock around it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lb_trace);
} lb_traces SEC(".maps");

/* Where flows are assembled, because the pair does not fit on the stack. Nothing else runs on a CPU between two lines of a program at this
 * hook. */
struct lb_scratch {
	struct lb_flow flow;
	struct lb_flow reply;
	struct lb_flow_key reply_key;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lb_scratch);
} lb_scratches SEC(".maps");

#endif
