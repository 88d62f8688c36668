/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Balances at the socket: which endpoint a process of this host gets when it asks for a vip, and what it sees of it.
 *
 * A request is a struct packet of which only the key, the vip and the reason are used, so that the stages `vip` and `select` are those of
 * packets. Its source is not known yet: an address is chosen after the destination. So the network namespace stands for the client's
 * address and the socket for its port.
 *
 * These programs run in the context of a process, which can be interrupted and, in some kernels, preempted: they count atomically and use
 * no scratch memory of their CPU.
 */
#ifndef LB_SOCKET_H
#define LB_SOCKET_H

#include "flow.h"
#include "select.h"
#include "vip.h"

#define REFUSED 0
#define ALLOWED 1

/* <errno.h> and <sys/socket.h> cannot be included without a C library. */
#define AF_INET6 10
#define ECONNREFUSED_RESULT (-111)

/* A prefix of no host (RFC 6666), so that namespaces and addresses are told apart in lb_affinity. */
#define NETNS_PREFIX be32(0x01000000)

/* What the loader knows when it loads these programs. */
SEC(".rodata.host") const volatile struct {
	__u32 group;            /* the control group, as in struct lb_socket */
	__u32 kern_byte;        /* where sk_kern_sock is in this kernel's struct sock */
	__u8 kern_mask;         /* its bit; 0: this kernel does not say */
	__u8 chooses_error;     /* whether a program may choose the error (bpf_set_retval at these hooks). If not, the process gets EPERM */
	__u8 pad[2];
} host = { .chooses_error = 1 };

/* Not preallocated: it costs memory by the number of such sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LB_SOCKETS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct lb_socket);
} lb_sockets SEC(".maps");

/* Evicts, because nothing says that an exchange of datagrams has ended. A process whose entry is gone gets another endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LB_DATAGRAMS_MAX);
	__type(key, struct lb_datagram_key);
	__type(value, struct lb_datagram);
} lb_datagrams SEC(".maps");

static __always_inline void request(struct packet *packet, const struct bpf_sock_addr *context)
{
	__builtin_memset(packet, 0, sizeof(*packet));
	packet->vip = LB_VIPS_MAX;
	packet->key.proto = (__u8)context->protocol;
	packet->key.dport = (__u16)context->user_port;
}

static __always_inline void request4(struct packet *packet, const struct bpf_sock_addr *context)
{
	request(packet, context);
	address_from_ipv4(packet->key.daddr, context->user_ip4);
}

/* An IPv6 socket may ask for an IPv4 address: ::ffff:a.b.c.d, as we write it too. */
static __always_inline void request6(struct packet *packet, const struct bpf_sock_addr *context)
{
	request(packet, context);
	packet->key.daddr[0] = context->user_ip6[0];
	packet->key.daddr[1] = context->user_ip6[1];
	packet->key.daddr[2] = context->user_ip6[2];
	packet->key.daddr[3] = context->user_ip6[3];
}

/* Writes the destination back. */
static __always_inline int answer4(const struct packet *packet, struct bpf_sock_addr *context)
{
	context->user_ip4 = packet->key.daddr[3];
	context->user_port = packet->key.dport;
	return ALLOWED;
}

static __always_inline int answer6(const struct packet *packet, struct bpf_sock_addr *context)
{
	context->user_ip6[0] = packet->key.daddr[0];
	context->user_ip6[1] = packet->key.daddr[1];
	context->user_ip6[2] = packet->key.daddr[2];
	context->user_ip6[3] = packet->key.daddr[3];
	context->user_port = packet->key.dport;
	return ALLOWED;
}

static __always_inline void client_is(struct packet *packet, __u64 netns, __u64 socket)
{
	packet->key.saddr[0] = NETNS_PREFIX;
	packet->key.saddr[1] = 0;
	packet->key.saddr[2] = (__u32)(netns >> 32);
	packet->key.saddr[3] = (__u32)netns;
	packet->key.sport = (__u16)hash_word(socket >> 32, (__u32)socket);
}

/* The vip that is asked for, if it is balanced at the socket. */
static __always_inline struct lb_vip *socket_vip(struct packet *packet, const bool dry)
{
	struct lb_vip *vip;

	if (packet->key.proto != IPPROTO_TCP && packet->key.proto != IPPROTO_UDP)
		return NULL;
	if (vip_find(packet, true, dry) != LB_CONTINUE)
		return NULL;
	vip = vip_at(packet->vip);
	if (!vip || !(vip->flags & LB_VIP_SOCKETS)) {
		trace(dry, LB_STAGE_CONNECT, LB_PASS, 0, 0);
		return NULL;
	}
	return vip;
}

/* ENDPOINT_NONE: no endpoint takes new connections. */
static __always_inline __u32 socket_select(struct packet *packet, const struct lb_vip *vip, __u32 now, const bool dry)
{
	for (__u32 attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
		__u32 index = dry ? lb_pick_dry(packet, attempt, now) : lb_pick(packet, attempt, now);

		if (index >= LB_ENDPOINTS_MAX || !endpoint_is_active(index))
			continue;
		trace(dry, LB_STAGE_SELECT, LB_CONTINUE, 0, index);
		if (!dry && (vip->flags & LB_VIP_AFFINITY))
			affinity_remember(packet, vip, index, now);
		return index;
	}
	packet->reason = none_usable(vip);
	trace(dry, LB_STAGE_SELECT, LB_DROP, packet->reason, ENDPOINT_NONE);
	return ENDPOINT_NONE;
}

static __always_inline int refuse(const struct packet *packet)
{
	__u64 *count = drops_of(packet->vip, packet->reason);

	if (count)
		__sync_fetch_and_add(count, 1);
	if (host.chooses_error)
		bpf_set_retval(ECONNREFUSED_RESULT);
	return REFUSED;
}

static __always_inline struct lb_uses *uses_of(__u32 endpoint)
{
	return bpf_map_lookup_elem(&lb_uses, &endpoint);
}

static __always_inline void uses_close(__u32 endpoint)
{
	struct lb_uses *uses = uses_of(endpoint);

	/* A count of zero: user space has freed the endpoint without these programs. */
	if (uses && uses->open)
		__sync_fetch_and_add(&uses->open, -1);
}

/* The socket is closed, or connects to another vip. */
static __always_inline void socket_forget(__u64 cookie)
{
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);
	__u32 endpoint;
	bool left;

	if (!socket)
		return;
	endpoint = socket->endpoint;
	left = socket->left;
	/* Of two that forget the same socket, one deletes its entry. */
	if (bpf_map_delete_elem(&lb_sockets, &cookie) == 0 && !left)
		uses_close(endpoint);
}

static __always_inline bool is_at_endpoint(const struct packet *packet, const struct lb_socket *socket)
{
	return socket->port == packet->key.dport && address_equal(socket->addr, packet->key.daddr);
}

/*
 * The socket connects to an address that is no vip. If that fails, a UDP socket stays connected to its endpoint, and still sees the vip: so
 * the entry stays. A socket that asks for the endpoint itself sees the endpoint.
 */
static __always_inline void socket_leave(const struct packet *packet, __u64 cookie)
{
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);

	if (!socket)
		return;
	if (packet->key.proto != IPPROTO_UDP || is_at_endpoint(packet, socket))
		return socket_forget(cookie);
	if (!socket->left) {
		socket->left = 1;
		uses_close(socket->endpoint);
	}
}

/*
 * Does the kernel release this socket without telling lb_close (inet_release)? These are the connections of an MPTCP socket, and those that
 * the kernel makes for itself, as for NFS. An entry of such a socket would stay for ever.
 */
static __always_inline bool is_kernels_own(const struct packet *packet, const struct bpf_sock_addr *context)
{
	struct bpf_sock *socket = context->sk;
	__u64 address = 0;
	__u8 flags = 0;

	if (!host.kern_mask)
		return packet->key.proto == IPPROTO_TCP;
	/* The verifier allows no arithmetic with a pointer to a socket. So the pointer is read from the stack, as a number. */
	if (bpf_probe_read_kernel(&address, sizeof(address), &socket) ||
	    bpf_probe_read_kernel(&flags, sizeof(flags), (void *)(address + host.kern_byte)))
		return true;
	return flags & host.kern_mask;
}

/* A full table costs the process its view of the vip, and not its connection. */
static __always_inline void socket_remember(const struct packet *packet, const struct bpf_sock_addr *context, __u64 cookie, __u64 netns,
					    __u32 index, const struct lb_endpoint *endpoint, __u32 now)
{
	struct lb_socket socket = {
		.netns = netns,
		.vip = packet->vip,
		.endpoint = index,
		.born_s = now,
		.vip_port = packet->key.dport,
		.port = endpoint->port ? endpoint->port : packet->key.dport,
		.proto = packet->key.proto,
		/* Nothing reports a TCP connection that fails before its SYN, for example for want of a route: socket_state counts it from then on. */
		.left = packet->key.proto == IPPROTO_TCP,
		.group = host.group,
	};
	struct lb_uses *uses = uses_of(index);

	address_copy(socket.vip_addr, packet->key.daddr);
	address_copy(socket.addr, endpoint->addr);
	if (!uses)
		return;
	__sync_fetch_and_add(&uses->made, 1);
	if (is_kernels_own(packet, context))
		return;
	if (bpf_map_update_elem(&lb_sockets, &cookie, &socket, BPF_NOEXIST))
		__sync_fetch_and_add(&uses->unknown, 1);
	else if (!socket.left)
		__sync_fetch_and_add(&uses->open, 1);
}

static __always_inline void direct_to(struct packet *packet, const struct lb_endpoint *endpoint)
{
	address_copy(packet->key.daddr, endpoint->addr);
	if (endpoint->port)
		packet->key.dport = endpoint->port;
}

static __always_inline int socket_connect(struct packet *packet, struct bpf_sock_addr *context)
{
	__u64 cookie = bpf_get_socket_cookie(context);
	struct lb_endpoint *endpoint;
	struct lb_vip *vip;
	__u32 index, now;
	__u64 netns;

	/* A socket may connect again: after a failure, or at any time if it is a UDP socket. */
	vip = socket_vip(packet, false);
	if (!vip) {
		socket_leave(packet, cookie);
		return ALLOWED;
	}
	now = now_s();
	netns = bpf_get_netns_cookie(context);
	client_is(packet, netns, cookie);
	index = socket_select(packet, vip, now, false);
	endpoint = endpoint_at(index);
	/* The kernel does not hear of it: a connected UDP socket stays connected. */
	if (!endpoint)
		return refuse(packet);
	socket_forget(cookie);
	socket_remember(packet, context, cookie, netns, index, endpoint, now);
	direct_to(packet, endpoint);
	return ALLOWED;
}

/* Each step is written to the trace; the last one says where the socket would be connected to. */
static __always_inline int socket_connect_dry(const struct lb_connect_context *context)
{
	struct lb_endpoint *endpoint;
	struct packet packet;
	struct lb_vip *vip;
	__u32 index;

	__builtin_memset(&packet, 0, sizeof(packet));
	packet.vip = LB_VIPS_MAX;
	packet.key.proto = context->proto;
	packet.key.dport = context->port;
	address_copy(packet.key.daddr, context->addr);
	client_is(&packet, context->netns, bpf_get_prandom_u32());
	vip = socket_vip(&packet, true);
	if (!vip)
		return 0;
	index = socket_select(&packet, vip, context->now_s, true);
	endpoint = endpoint_at(index);
	if (endpoint)
		trace(true, LB_STAGE_CONNECT, LB_FORWARD, 0, index);
	return 0;
}

/* The entry of the vip's address, if its endpoint still takes the datagrams of this exchange. */
static __always_inline struct lb_datagram *exchange_find(const struct packet *packet, const struct lb_datagram_key *key,
							 const struct lb_vip *vip, __u32 now)
{
	struct lb_datagram *found = bpf_map_lookup_elem(&lb_datagrams, key);
	struct lb_endpoint *endpoint;

	if (!found || found->vip != packet->vip || is_silent(now, found->touched_s, vip->idle_s))
		return NULL;
	endpoint = endpoint_at(found->endpoint);
	/* The index may have been freed since and given to another vip's endpoint. */
	if (!endpoint || endpoint->vip != packet->vip || endpoint_is_down(found->endpoint))
		return NULL;
	return found;
}

/* The answers to these datagrams come from the endpoint, and the process expects them from the vip. */
static __always_inline void exchange_remember(const struct packet *packet, struct lb_datagram_key *key, __u32 index,
					      const struct lb_endpoint *endpoint, __u32 now)
{
	struct lb_datagram value = { .vip = packet->vip, .endpoint = index, .touched_s = now };

	bpf_map_update_elem(&lb_datagrams, key, &value, BPF_ANY);
	address_copy(value.addr, packet->key.daddr);
	value.port = packet->key.dport;
	address_copy(key->addr, endpoint->addr);
	if (endpoint->port)
		key->port = endpoint->port;
	key->is_endpoint = 1;
	bpf_map_update_elem(&lb_datagrams, key, &value, BPF_ANY);
}

/* Do answers of the endpoint come from the vip that this packet asks for? One socket may ask two vips with the same endpoint in turn. */
static __always_inline bool exchange_answers(const struct packet *packet, const struct lb_datagram_key *key,
					     const struct lb_endpoint *endpoint)
{
	struct lb_datagram_key back = *key;
	struct lb_datagram *found;

	address_copy(back.addr, endpoint->addr);
	if (endpoint->port)
		back.port = endpoint->port;
	back.is_endpoint = 1;
	found = bpf_map_lookup_elem(&lb_datagrams, &back);
	return found && found->port == packet->key.dport && address_equal(found->addr, packet->key.daddr);
}

/* Is this UDP socket connected now? connect(AF_UNSPEC) ends that, and tells no program. */
static __always_inline bool is_connected(const struct bpf_sock_addr *context)
{
	return context->sk->state == BPF_TCP_ESTABLISHED;
}

/* And to this address? */
static __always_inline bool is_connected_to(const struct bpf_sock_addr *context, const __u32 *addr)
{
	struct bpf_sock *socket = context->sk;
	__u32 connected[4], ipv4;

	if (!is_connected(context))
		return false;
	/* Read one by one: compilers would choose between two addresses, and the verifier allows no arithmetic with a pointer to a socket. */
	ipv4 = socket->dst_ip4;
	barrier_var(ipv4);
	connected[0] = socket->dst_ip6[0];
	barrier_var(connected[0]);
	connected[1] = socket->dst_ip6[1];
	barrier_var(connected[1]);
	connected[2] = socket->dst_ip6[2];
	barrier_var(connected[2]);
	connected[3] = socket->dst_ip6[3];
	barrier_var(connected[3]);
	if (socket->family != AF_INET6)
		address_from_ipv4(connected, ipv4);
	return address_equal(connected, addr);
}

/*
 * A connected UDP socket may name the address that it is connected to. Only datagrams of its own endpoint reach it, so it gets that one.
 * ENDPOINT_NONE: it is not connected to this vip.
 */
static __always_inline __u32 connected_endpoint(const struct packet *packet, const struct bpf_sock_addr *context, __u64 cookie)
{
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);
	struct lb_endpoint *endpoint;

	if (!socket)
		return ENDPOINT_NONE;
	if (!is_connected(context)) {
		socket_forget(cookie);
		return ENDPOINT_NONE;
	}
	if (socket->vip != packet->vip || socket->vip_port != packet->key.dport ||
	    !address_equal(socket->vip_addr, packet->key.daddr) || !is_connected_to(context, socket->addr))
		return ENDPOINT_NONE;
	endpoint = endpoint_at(socket->endpoint);
	return endpoint && endpoint->vip == packet->vip ? socket->endpoint : ENDPOINT_NONE;
}

static __always_inline void datagram_key(struct lb_datagram_key *key, const struct packet *packet, struct bpf_sock_addr *context)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->socket = bpf_get_socket_cookie(context);
	address_copy(key->addr, packet->key.daddr);
	key->port = packet->key.dport;
}

/* Datagrams of one socket to one vip stay with their endpoint, as those of a flow do. */
static __always_inline int socket_send(struct packet *packet, struct bpf_sock_addr *context)
{
	struct lb_vip *vip = socket_vip(packet, false);
	struct lb_endpoint *endpoint;
	struct lb_datagram_key key;
	struct lb_datagram *found;
	__u32 index, now;

	if (!vip)
		return ALLOWED;
	now = now_s();
	datagram_key(&key, packet, context);
	index = connected_endpoint(packet, context, key.socket);
	endpoint = endpoint_at(index);
	if (endpoint) {
		direct_to(packet, endpoint);
		return ALLOWED;
	}
	found = exchange_find(packet, &key, vip, now);
	if (found) {
		index = found->endpoint;
		endpoint = endpoint_at(index);
	} else {
		client_is(packet, bpf_get_netns_cookie(context), key.socket);
		index = socket_select(packet, vip, now, false);
		endpoint = endpoint_at(index);
	}
	if (!endpoint)
		return refuse(packet);
	if (!found) {
		struct lb_uses *uses = uses_of(index);

		if (uses)
			__sync_fetch_and_add(&uses->made, 1);
	}
	if (!found || found->touched_s != now || !exchange_answers(packet, &key, endpoint))
		exchange_remember(packet, &key, index, endpoint, now);
	direct_to(packet, endpoint);
	return ALLOWED;
}

/* The address of the vip instead of the endpoint's, if it still is that vip's. It may have been removed, and its index given to another. */
static __always_inline void show_vip(struct packet *packet, const __u32 *addr, __u16 port, __u32 vip)
{
	struct lb_flow_key shown = packet->key;

	address_copy(packet->key.daddr, addr);
	packet->key.dport = port;
	if (vip_find(packet, true, false) != LB_CONTINUE || packet->vip != vip)
		packet->key = shown;
}

/* What a connected socket sees, if this is the endpoint that it got. */
static __always_inline void socket_peer(struct packet *packet, struct bpf_sock_addr *context)
{
	__u64 cookie = bpf_get_socket_cookie(context);
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);

	if (socket && is_at_endpoint(packet, socket))
		show_vip(packet, socket->vip_addr, socket->vip_port, socket->vip);
}

static __always_inline void socket_receive(struct packet *packet, struct bpf_sock_addr *context)
{
	struct lb_datagram_key key;
	struct lb_datagram *found;

	datagram_key(&key, packet, context);
	key.is_endpoint = 1;
	found = bpf_map_lookup_elem(&lb_datagrams, &key);
	if (found)
		show_vip(packet, found->addr, found->port, found->vip);
	else if (is_connected(context))
		socket_peer(packet, context);
}

/* A TCP socket that is known sends its SYN: it counts as open until its state says that it has failed or ended. */
static __always_inline void socket_open(struct bpf_sock_ops *context, __u64 cookie)
{
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);
	struct lb_uses *uses;

	if (!socket)
		return;
	if (socket->left) {
		uses = uses_of(socket->endpoint);
		if (uses)
			__sync_fetch_and_add(&uses->open, 1);
		socket->left = 0;
	}
	bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* Follows the connections that are known. Without it, one that fails or is reset would count as open until its socket is closed. */
static __always_inline void socket_state(struct bpf_sock_ops *context)
{

	if (context->op == BPF_SOCK_OPS_STATE_CB && context->args[1] == BPF_TCP_CLOSE) {
		socket_forget(bpf_get_socket_cookie(context));
	} else if (context->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		socket_open(context, bpf_get_socket_cookie(context));
	}
}

/* Is the vip gone, or is another control group balanced now? A group of zero: an earlier version of this program did not write it. */
static __always_inline bool is_left_over(const struct lb_socket *socket)
{
	struct lb_vip *vip = vip_at(socket->vip);

	return !vip || !vip->mode || (socket->group && socket->group != host.group);
}

static long forget_left_over(void *map, __u64 *cookie, struct lb_socket *socket, __u32 *forgotten)
{
	__u64 key = *cookie;

	if (is_left_over(socket)) {
		socket_forget(key);
		*forgotten += 1;
	}
	return 0;
}

/* Its process may have connected it again since user space saw it. That entry is another one, and stays. */
static __always_inline void forget_same(const struct lb_forget_context *context)
{
	__u64 cookie = context->socket;
	struct lb_socket *socket = bpf_map_lookup_elem(&lb_sockets, &cookie);

	if (socket && socket->endpoint == context->endpoint && socket->born_s == context->born_s)
		socket_forget(cookie);
}

#endif
