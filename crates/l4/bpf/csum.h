/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Internet checksums by difference (RFC 1624, equation 3). Pure. Sums are over 16-bit words as they lie in memory, so byte order does not
 * matter (RFC 1071, 2 B).
 */
#ifndef LB_CSUM_H
#define LB_CSUM_H

#include "base.h"

/* Ones' complement sum. */
static __always_inline __u32 csum_add(__u32 a, __u32 b)
{
	__u32 sum = a + b;

	return sum + (sum < b);
}

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

static __always_inline __u32 csum_words(__u32 sum, const __u32 *words, __u32 count)
{
	for (__u32 i = 0; i < count; i++)
		sum = csum_add(sum, words[i]);
	return sum;
}

/* The change of a sum when `from` becomes `to`. */
static __always_inline __u32 csum_diff(__u32 from, __u32 to)
{
	return csum_add(~from, to);
}

static __always_inline __u32 csum_diff_address(__u32 sum, const __u32 *from, const __u32 *to)
{
	sum = csum_add(sum, csum_diff(from[0], to[0]));
	sum = csum_add(sum, csum_diff(from[1], to[1]));
	sum = csum_add(sum, csum_diff(from[2], to[2]));
	return csum_add(sum, csum_diff(from[3], to[3]));
}

/* Both 16-bit fields are extended with ones and zeros, so that ~from is the negative of from. */
static __always_inline __u32 csum_diff16(__u16 from, __u16 to)
{
	return csum_add((__u16)~from, to);
}

/* A checksum field after its data has changed by `diff`. */
static __always_inline __u16 csum_apply(__u16 check, __u32 diff)
{
	return (__u16)~csum_fold(csum_add((__u16)~check, csum_fold(diff)));
}

/* An IPv4 header's checksum after its addresses have changed by `diff` and its TTL has gone down by one (RFC 1141). */
static __always_inline __u16 csum_ipv4_forwarded(__u16 check, __u32 diff)
{
	return csum_apply(check, csum_add(csum_fold(diff), (__u16)~be16(0x0100)));
}

#endif
