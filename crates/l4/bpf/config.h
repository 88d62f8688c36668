/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the loader may set before the programs are loaded. The verifier sees constants and removes the branches that are not taken. */
#ifndef LB_CONFIG_H
#define LB_CONFIG_H

#include "abi.h"

/* Entries of lb_flows above which SYN and closing times shrink (see gc.h). The loader sets it to three quarters of max_entries. */
const volatile __u32 lb_flows_high_water = 196608;

#endif
