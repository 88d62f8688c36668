/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The base of every stage. Compiled for BPF, and natively for the tests of the pure headers: those that call no BPF helper include only
 * this file and each other.
 */
#ifndef LB_BASE_H
#define LB_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "abi.h"
#include "drop.h"

#ifdef __bpf__
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#else
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define be16(x) ((__u16)__builtin_bswap16(x))
#define be32(x) ((__u32)__builtin_bswap32(x))
#else
#define be16(x) ((__u16)(x))
#define be32(x) ((__u32)(x))
#endif

#ifndef likely /* bpf_helpers.h of libbpf 1.7 has them too */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* Keeps the compiler from optimising away a bound that the verifier needs to see. */
#define opaque(x) asm volatile("" : "+r"(x))

#define ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))

/* Addresses: 16 bytes, IPv4 as ::ffff:a.b.c.d. */

static __always_inline void address_copy(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline void address_from_ipv4(__u32 *to, __u32 from)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = be32(0xffff);
	to[3] = from;
}

static __always_inline bool address_is_ipv4(const __u32 *address)
{
	return address[0] == 0 && address[1] == 0 && address[2] == be32(0xffff);
}

static __always_inline bool address_equal(const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* The key of the other direction of a flow: the tuple that a packet leaves with, reversed. */
static __always_inline void twin_key(struct lb_flow_key *twin, const struct lb_flow *flow, __u8 proto)
{
	__builtin_memset(twin, 0, sizeof(*twin));
	address_copy(twin->saddr, flow->daddr);
	address_copy(twin->daddr, flow->saddr);
	twin->sport = flow->dport;
	twin->dport = flow->sport;
	twin->proto = proto;
}

static __always_inline bool key_equal(const struct lb_flow_key *a, const struct lb_flow_key *b)
{
	return address_equal(a->saddr, b->saddr) && address_equal(a->daddr, b->daddr) && a->sport == b->sport &&
	       a->dport == b->dport && a->proto == b->proto;
}

#endif
