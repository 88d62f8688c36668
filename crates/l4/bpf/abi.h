/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The layouts that the kernel side and the user side share, and nothing else. The BPF programs and the native tests include this file, and
 * BTF turns it into Rust types; a test compares the sizes and offsets of both.
 *
 * Addresses are 16 bytes in network byte order; an IPv4 address a.b.c.d is ::ffff:a.b.c.d. The same code serves both families. Ports and
 * other fields marked "be" are in network byte order, all others in the host's.
 */
#ifndef LB_ABI_H
#define LB_ABI_H

#include <linux/types.h>

/* Increases when any layout below, or the meaning of a field, changes: maps of another version are not taken over. */
#define LB_LAYOUT_VERSION 4
/* The oldest version whose flows, vips, endpoints, affinity, rests and sockets have the same layout and meaning: src/earlier.rs copies them. */
#define LB_FLOWS_SINCE 2

#define LB_VIPS_MAX 8192u      /* a power of two */
#define LB_VIP_KEYS_MAX 131072u /* addresses of all vips: one with every address of the host has many */
#define LB_SOURCES_MAX 65536u   /* prefixes in the allow and deny lists of all vips */
#define LB_DROPS_MAX 16384u    /* pairs of a vip and a reason that are counted */
#define LB_ENDPOINTS_MAX 65536u
#define LB_RANGES_MAX 8u      /* port ranges on one address and protocol */
#define LB_POOL_MAX 8u        /* source addresses of one full_nat vip */
#define LB_REASONS_MAX 64u    /* see drop.h */
#define LB_TRACE_STEPS_MAX 16u
#define LB_GC_KEYS_MAX 256u   /* entries that one run of lb_gc judges: about 50 us */
#define LB_SOCKETS_MAX 262144u /* sockets of this host that are connected to a vip and known as such */
#define LB_RESTS_MAX 1048576u /* slots for tuples that rest: a power of two. See rest.h */
#define LB_DATAGRAMS_MAX 65536u /* entries for the datagrams of sockets that are not connected: two for each socket and vip */

/* ---- flows: one entry for each direction, with the complete verdict for its packets ---- */

struct lb_flow_key {
	__u32 saddr[4];
	__u32 daddr[4];
	__u16 sport;            /* be; ICMP echo: the identifier */
	__u16 dport;            /* be */
	__u8 proto;             /* IPPROTO_TCP, IPPROTO_UDP */
	__u8 pad[3];            /* zero */
};

enum lb_action {
	LB_ACTION_PEER = 1,     /* bpf_redirect_peer: the next hop is the other end of a veth */
	LB_ACTION_NEIGH = 2,    /* bpf_redirect_neigh: the kernel's neighbour table writes the link layer */
	LB_ACTION_HERE = 3,     /* rewritten and left to the host's own stack: the endpoint is an address of this host. lb_out sees its replies */
};

/* Bits of lb_flow.flags; fixed when the flow is made. */
#define LB_FLOW_REPLY 0x01u     /* from the endpoint to the client */
#define LB_FLOW_NEW_SADDR 0x02u /* the source is rewritten */
#define LB_FLOW_NEW_DADDR 0x04u /* the destination is rewritten */
#define LB_FLOW_DSR 0x08u       /* nothing is rewritten, and there is no entry for replies */
#define LB_FLOW_IPIP 0x10u      /* dsr: each packet travels inside another one, see tunnel.h */
#define LB_FLOW_GUE 0x20u       /* the same, inside a UDP datagram */

/* Bits of lb_flow.state; set atomically, by this direction's packets. LB_SEEN_* describe what this direction has sent. */
#define LB_SEEN_SYN 0x01u
#define LB_SEEN_ACK 0x02u       /* data or an ACK after the handshake: the flow is established */
#define LB_SEEN_FIN 0x04u
#define LB_SEEN_RST 0x08u
#define LB_CLOSING 0x10u        /* both have sent FIN, or one has sent RST: a SYN reopens it */
#define LB_COUNTED 0x20u        /* counted in lb_active of its endpoint; cleared exactly once */
#define LB_FIN_LAST 0x40u       /* the FIN of this direction was the second one, and waits for its ACK */
#define LB_ENDED 0x80u          /* this direction has acknowledged that FIN: lives for closing_s, as after an RST */
#define LB_TIMED_OUT 0x100u     /* TCP, silent for longer than idle_s: each side is answered by an RST, and after closing_s the flow is forgotten */
#define LB_FIN_CROSSED 0x200u   /* an ACK of this direction followed its FIN_LAST: both sides closed at once, and both are in TIME_WAIT */

struct lb_flow {
	__u32 saddr[4];         /* the tuple that the packet leaves with, rewritten or not: the twin's key is this tuple reversed */
	__u32 daddr[4];
	__u32 next_hop[4];      /* for LB_ACTION_NEIGH */
	__u16 sport;            /* be */
	__u16 dport;            /* be */
	__u32 addr_diff;        /* checksum difference of all rewritten addresses, for bpf_l4_csum_replace with BPF_F_PSEUDO_HDR and for IPv4's header */
	__u32 port_diff;        /* checksum difference of the ports */
	__u32 ifindex;          /* egress */
	__u32 endpoint;         /* index in lb_endpoints */
	__u32 vip;              /* index in lb_vips */
	__u32 state;            /* LB_SEEN_*, and those below them */
	__u32 touched_s;        /* coarse monotonic clock at the last packet of this direction; written at most once a second */
	__u32 born_s;
	__u16 mtu;              /* of the egress interface, less what a tunnel adds; 0: unknown */
	__u8 action;            /* enum lb_action */
	__u8 flags;             /* LB_FLOW_* */
};

/* ---- vips ---- */

/* Who looks a key up. Packets and sockets have tables of their own, so a vip of sockets alone costs packets nothing. */
#define LB_SCOPE_PACKETS 0u     /* packets, and sockets that find nothing in their own */
#define LB_SCOPE_SOCKETS 1u     /* sockets alone */
#define LB_SCOPE_NOBODY 2u      /* a bit: the key of a vip with every address of the host, which keeps its index for the next process */

struct lb_vip_key {
	__u32 addr[4];
	__u16 port;             /* be */
	__u8 proto;
	__u8 scope;             /* LB_SCOPE_* */
};

enum lb_mode {
	LB_MODE_NAT = 1,
	LB_MODE_FULL_NAT = 2,
	LB_MODE_DSR = 3,
	LB_MODE_LOCAL = 4,      /* not forwarded: a listener on this host serves it */
	LB_MODE_SOCKET = 5,     /* for sockets of this host alone: no packet finds it */
};

/* For LB_MODE_DSR: how packets reach an endpoint that is not on the link. */
enum lb_tunnel {
	LB_TUNNEL_NONE = 0,     /* not at all */
	LB_TUNNEL_IPIP = 1,     /* IP in IP */
	LB_TUNNEL_GUE = 2,      /* in UDP */
};

enum lb_algorithm {
	LB_ROUND_ROBIN = 1,     /* a cursor of each CPU over a table that holds each endpoint as often as its weight, interleaved */
	LB_MAGLEV = 2,          /* hash of addresses, ports and protocol */
	LB_SOURCE_HASH = 3,     /* hash of the client's address alone */
	LB_LEAST_CONNECTIONS = 4, /* the better of two random slots by active flows over weight */
	LB_RANDOM = 5,
};

#define LB_VIP_AFFINITY 0x01u     /* a client stays with its endpoint for affinity_s after its last new flow */
#define LB_VIP_SOURCES 0x02u      /* lb_sources has entries for this vip */
#define LB_VIP_SOURCES_ONLY 0x04u /* a source without an entry is refused (there is an allow list) */
#define LB_VIP_RATE 0x08u         /* new flows of one source are limited */
#define LB_VIP_SOCKETS 0x10u      /* connections of this host's own processes are balanced at the socket, if its programs are attached */
#define LB_VIP_OF_NODE 0x20u      /* it has the endpoints of this node alone, as its Service demands */

struct lb_vip {
	__u32 table_slots;      /* length of its table in lb_tables; 0: no endpoint takes new flows */
	__u32 affinity_s;
	__u32 syn_s;            /* from the first SYN or the first datagram until an answer */
	__u32 idle_s;           /* established, both directions silent */
	__u32 closing_s;
	__u32 rate_per_s;       /* new flows per second of one source */
	__u32 rate_burst;
	__u8 mode;              /* enum lb_mode; 0: this slot is free */
	__u8 algorithm;         /* enum lb_algorithm */
	__u8 flags;             /* LB_VIP_* */
	__u8 tunnel;            /* enum lb_tunnel */
};

/* An address of any vip. Its port ranges are searched if no exact port was found. */
struct lb_range {
	__u16 first;            /* host order, first <= last */
	__u16 last;
	__u32 vip;
	__u8 proto;
	__u8 pad[3];
};

struct lb_address_key {
	__u32 addr[4];
};

#define LB_ADDRESS_ECHO 0x01u /* ICMP echo to the address is answered here (none of its vips is local) */
#define LB_ADDRESS_HOST 0x02u /* this host has the address, or a vip of it is local: packets of no flow go to the host's own stack */

struct lb_address {
	__u32 range_count;      /* 0 <= range_count <= LB_RANGES_MAX */
	__u32 flags;            /* LB_ADDRESS_* */
	struct lb_range ranges[LB_RANGES_MAX];
};

/* ---- endpoints ---- */

/* A bit of lb_endpoint.source: this host has the address itself, and lb_out is attached where the replies leave. */
#define LB_ENDPOINT_HERE 0x80u

enum lb_endpoint_state {
	LB_ENDPOINT_FREE = 0,
	LB_ENDPOINT_ACTIVE = 1,
	LB_ENDPOINT_DRAINING = 2, /* in no table; its flows go on */
	LB_ENDPOINT_DOWN = 3,     /* in no table; TCP flows are reset, others choose again */
	LB_ENDPOINT_FAILING = 4,  /* in no table; TCP flows go on, but those that it has not answered choose again */
};

struct lb_endpoint {
	__u32 addr[4];
	__u32 vip;
	__u32 weight;
	__u16 port;             /* be; 0: the port that the client connected to */
	__u8 state;             /* enum lb_endpoint_state */
	__u8 source;            /* the only address of the pool to use for it, counted from 1; 0: any. And LB_ENDPOINT_HERE */
};

/* Per CPU, index as lb_endpoints. [0] is towards the endpoint, [1] from it. */
struct lb_counters {
	__u64 packets[2];
	__u64 bytes[2];         /* as skb->len: includes the link layer, GSO counted once */
	__u64 flows;            /* made */
};

/* Source addresses that a full_nat vip may use, one in mode nat if a client is its own endpoint, and those of tunnels. Index as lb_vips. */
struct lb_pool {
	__u32 addrs[LB_POOL_MAX][4];
	__u32 addr_count;       /* 0 <= addr_count <= LB_POOL_MAX */
	__u16 port_first;       /* host order, inclusive */
	__u16 port_last;
};

/* ---- used for new flows ---- */

struct lb_source_key {
	__u32 prefix_bits;      /* LPM: 32 for the vip, plus 96 + n for an IPv4 prefix of n bits, n for an IPv6 one */
	__u32 vip;              /* be, so that it is a prefix */
	__u32 addr[4];
};
#define LB_SOURCE_ALLOW 1u
#define LB_SOURCE_DENY 2u

struct lb_client_key {
	__u32 addr[4];
	__u32 vip;
};

struct lb_affinity {
	__u32 endpoint;
	__u32 until_s;
};

struct lb_rate {
	__u64 refilled_ns;
	__u64 tokens_milli;
};

struct lb_fragment_key {
	__u32 saddr[4];
	__u32 daddr[4];
	__u32 id;
	__u32 proto;
};

struct lb_fragment {
	__u16 sport;            /* be */
	__u16 dport;            /* be */
};

/* ---- sockets of this host: their connections are balanced when they connect, and none of their packets is touched ---- */

/* A socket that is connected to an endpoint because it asked for a vip. By its cookie, which no other socket ever gets. */
struct lb_socket {
	__u32 vip_addr[4];      /* what it asked for */
	__u32 addr[4];          /* what it got */
	__u64 netns;            /* cookie of its network namespace */
	__u32 vip;              /* index in lb_vips */
	__u32 endpoint;         /* index in lb_endpoints */
	__u32 born_s;
	__u16 vip_port;         /* be */
	__u16 port;             /* be */
	__u8 proto;
	__u8 left;              /* 1: it is not counted in lb_uses: it has asked for another address since, where it may have failed to get, or has
	                         * sent no SYN yet */
	__u8 pad[2];            /* zero */
	__u32 group;            /* the low bits of its control group's id; 0: unknown */
};

/* A socket that sends datagrams without being connected, and the other side of one exchange. */
struct lb_datagram_key {
	__u64 socket;           /* its cookie */
	__u32 addr[4];
	__u16 port;             /* be */
	__u8 is_endpoint;       /* 1: the address is the endpoint's, as in its answers; 0: the vip's, as in what the process sends */
	__u8 pad[5];            /* zero */
};

struct lb_datagram {
	__u32 addr[4];          /* is_endpoint: of the vip; otherwise unused */
	__u32 vip;              /* index in lb_vips */
	__u32 endpoint;         /* index in lb_endpoints */
	__u32 touched_s;        /* when the process last sent to the vip, written at most once a second */
	__u16 port;             /* be; as addr */
	__u8 pad[2];            /* zero */
};

/* Index as lb_endpoints. */
struct lb_uses {
	__u64 made;             /* connections made at the socket, and exchanges of datagrams begun */
	__u32 open;             /* entries of lb_sockets that are not `left` */
	__u32 unknown;          /* sockets that have none, because the table was full when they were connected */
};

/* The context of lb_forget: an entry of lb_sockets, unless its socket has got another endpoint since. */
struct lb_forget_context {
	__u64 socket;           /* its cookie */
	__u32 endpoint;
	__u32 born_s;
};

/* The context of lb_connect_dry. */
struct lb_connect_context {
	__u32 addr[4];
	__u64 netns;            /* cookie of the network namespace of the process */
	__u32 now_s;            /* programs of this type cannot read the coarse clock */
	__u16 port;             /* be */
	__u8 proto;
	__u8 pad;               /* zero */
};

/* ---- the host, as user space knows it ---- */

/* A veth whose other end is in another namespace and not a port of a bridge there: bpf_redirect_peer works for packets to that end itself. */
#define LB_INTERFACE_PEER 0x01u
#define LB_INTERFACE_STRICT 0x02u /* rp_filter is 1: the route to a packet's source must use the interface that it came from */
#define LB_INTERFACE_LOOSE 0x04u  /* rp_filter is 2: there must be a route to the source, by any interface */

struct lb_interface {
	__u32 mtu;
	__u32 flags;            /* LB_INTERFACE_* */
	__u8 peer_mac[6];       /* of the other end, with LB_INTERFACE_PEER */
	__u8 pad[2];            /* zero */
};

/* One element, for values that the programs and user space exchange. */
struct lb_shared {
	__u32 flows_used;       /* entries of lb_flows at the end of the last collection */
	__u32 pressure;         /* 1: the table is above its high-water mark: SYN and closing times shrink, see flow.h */
	__u32 collected_s;      /* when the last collection ended, or the last sweep began (gc.h) */
	__u32 swept;            /* not 0: that was a sweep, and the next one begins at the entry before this number */
};

/* ---- trace: what would happen to this packet ---- */

enum lb_stage {
	LB_STAGE_PACKET = 1,
	LB_STAGE_CONNTRACK = 2,
	LB_STAGE_VIP = 3,
	LB_STAGE_SOURCE = 4,
	LB_STAGE_SELECT = 5,
	LB_STAGE_CREATE = 6,
	LB_STAGE_FORWARD = 7,
	LB_STAGE_CONNECT = 8,
};

struct lb_trace_step {
	__u8 stage;             /* enum lb_stage */
	__u8 outcome;           /* enum lb_outcome of drop.h */
	__u8 reason;            /* if dropped: from drop.h */
	__u8 pad;
	__u32 detail;           /* vip: its index; select and connect: the endpoint; forward: the interface */
};

struct lb_trace {
	__u32 step_count;       /* 0 <= step_count <= LB_TRACE_STEPS_MAX */
	struct lb_trace_step steps[LB_TRACE_STEPS_MAX];
	struct lb_flow flow;    /* the verdict that was found or would be made */
};

/* The context of lb_gc: the keys of lb_gc_keys to judge, and the result. */
struct lb_gc_context {
	__u32 key_count;        /* in: 0 <= key_count <= LB_GC_KEYS_MAX */
	__u32 now_s;
	__u32 expired;          /* flows */
	__u32 closed;
	__u32 removed;          /* entries */
	__u32 ends_max;         /* in: how many idle TCP connections may get LB_TIMED_OUT; the others wait for the next run */
	__u32 ended;            /* how many got it; their keys in lb_gc_keys have pad[0] set */
};

_Static_assert(sizeof(struct lb_flow_key) == 40, "lb_flow_key");
_Static_assert(sizeof(struct lb_flow) == 88, "lb_flow");
_Static_assert(sizeof(struct lb_vip_key) == 20, "lb_vip_key");
_Static_assert(sizeof(struct lb_vip) == 32, "lb_vip");
_Static_assert(sizeof(struct lb_endpoint) == 28, "lb_endpoint");
_Static_assert(sizeof(struct lb_counters) == 40, "lb_counters");
_Static_assert(sizeof(struct lb_source_key) == 24, "lb_source_key");
_Static_assert(sizeof(struct lb_trace_step) == 8, "lb_trace_step");
_Static_assert(sizeof(struct lb_socket) == 64, "lb_socket");
_Static_assert(sizeof(struct lb_datagram_key) == 32, "lb_datagram_key");
_Static_assert(sizeof(struct lb_datagram) == 32, "lb_datagram");
_Static_assert(sizeof(struct lb_uses) == 16, "lb_uses");

#endif
