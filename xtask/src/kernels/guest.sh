#!/bin/busybox sh
# The first process of a guest of `cargo xtask test kernels`, which does everything there. The words after `steelyard.` on the kernel's command
# line are the expected outcome, and the last line of output is the result.

/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin
mkdir -p /proc /sys /dev /run /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The processes whose connections are balanced at the socket. Those of the client are not in it: their packets are balanced.
mkdir /sys/fs/cgroup/sockets
# The shell would use the `ip` of busybox, which does not support namespaces.
ip() { /bin/ip "$@"; }
words=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^steelyard\.//p')

end() {
    echo o >/proc/sysrq-trigger
    while :; do sleep 60; done
}

fail() {
    # The emulation has broken the kernel, which then breaks programs. That is not their fault.
    if dmesg | grep -E 'Oops|BUG:|general protection fault|kernel panic'; then
        echo "guest: kernel fault: $*"
        end
    fi
    echo "guest: FAILED: $*"
    cat /tmp/*.log
    dmesg | tail -5
    end
}

for module in /modules/*; do
    case $module in *.xz) xz -dc "$module" >/tmp/module ;; *) cp "$module" /tmp/module ;; esac
    insmod /tmp/module || fail "insmod $module"
done

# A client and two endpoints each have a namespace of their own, and the balancer is the router between them.
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
number=0
for name in client one two; do
    number=$((number + 1))
    ip netns add $name
    ip link add ${name}0 type veth peer name eth0 netns $name || fail "no veth for $name"
    ip address add 10.$number.0.1/24 dev ${name}0
    ip address add fd0$number::1/64 dev ${name}0 nodad
    ip link set ${name}0 up
    ip -n $name address add 10.$number.0.2/24 dev eth0
    ip -n $name address add fd0$number::2/64 dev eth0 nodad
    ip -n $name link set lo up
    ip -n $name link set eth0 up
    ip -n $name route add default via 10.$number.0.1
    ip -n $name route add default via fd0$number::1
done

case $words in *refused=1*)
    steelyard serve -c /vips.yaml >/tmp/refused.log 2>&1
    code=$?
    [ $code = 77 ] || fail "steelyard ended with $code and not with 77"
    grep -q "virtual IPs need Linux .* or newer, and this kernel is $(uname -r)" /tmp/refused.log || fail "it does not say what it needs"
    echo "guest: passed: $(uname -r): $(cat /tmp/refused.log)"
    end
esac

# The programs, compiled by each compiler.
loaded=
for object in /objects/*.o; do
    name=$(basename "$object" .o)
    bpftool prog loadall "$object" /sys/fs/bpf/object >/tmp/load.log 2>&1 || fail "the object of $name does not load"
    rm -r /sys/fs/bpf/object
    loaded="$loaded $name"
done
rm -f /tmp/load.log

# An endpoint on the balancer itself, and endpoints that take packets out of tunnels.
steelyard origin http --listen 10.2.0.1:80 >/tmp/origin-here.log 2>&1 &
for name in one two; do
    ip -n $name link set tunl0 up && ip -n $name link set ip6tnl0 up || fail "no tunnels in $name"
    ip -n $name fou add port 6080 gue || fail "no GUE in $name"
    for address in 10.9.0.5 10.9.0.6 fd09::5; do
        ip -n $name address add $address dev lo
    done
    ip netns exec $name steelyard origin http --listen '[::]:80' >/tmp/origin-$name.log 2>&1 &
    ip netns exec $name perl /udp_echo.pl >/tmp/echo-$name.log 2>&1 &
done

begin() {
    steelyard serve -c /vips.yaml >/tmp/serve.log 2>&1 &
    steelyard=$!
    tries=0
    until curl -sfo /tmp/ready http://127.0.0.1:9900/readyz; do
        kill -0 $steelyard 2>/dev/null || fail "steelyard has ended"
        tries=$((tries + 1))
        [ $tries -lt 120 ] || fail "steelyard is not ready"
        sleep 1
    done
}

ask_all() {
    for address in 10.9.0.1 '[fd09::1]' 10.9.0.2 10.9.0.4 10.9.0.5 '[fd09::5]' 10.9.0.6; do
        for turn in 1 2 3; do
            ip netns exec client curl -gsfm 30 -o /tmp/body "http://$address/" || fail "$address does not answer $1"
            [ -s /tmp/body ] || fail "$address answers with nothing $1"
        done
    done
}

# In the namespace of the balancer, where no program at an interface sees what a process sends.
in_sockets() {
    sh -c 'echo $$ >/sys/fs/cgroup/sockets/cgroup.procs && exec "$@"' sh "$@"
}

ask_at_sockets() {
    for address in 10.9.0.1 fd09::1 10.9.0.2; do
        case $address in *:*) url="http://[$address]/" ;; *) url="http://$address/" ;; esac
        for turn in 1 2 3; do
            peer=$(in_sockets curl -gsfm 30 -o /tmp/body -w '%{remote_ip}' "$url") || fail "no answer to a process that connects to $address $1"
            [ "$peer" = "$address" ] || fail "a process that connects to $address sees the peer $peer $1"
        done
    done
    in_sockets perl /udp_client.pl 2>/tmp/udp.log || fail "UDP at the socket $1"
}

begin
ask_all "at first"
ask_at_sockets "at first"
by=$(sed -n 's/.*attached.*by="*\([a-z]*\).*/\1/p' /tmp/serve.log | sort -u)
case $words in *attached_by=$by*) ;; *) fail "attached by '$by'" ;; esac
steelyard status >/tmp/status.log 2>&1 || fail "no status"
grep -q 'at the socket: .* 3 made' /tmp/status.log || fail "status does not count the connections at the socket"
kill $steelyard
wait $steelyard
ask_all "while no process looks after it"
ask_at_sockets "while no process looks after it"
begin
ask_all "after a restart, over the tables that were left"
ask_at_sockets "after a restart, over the tables that were left"
kill $steelyard
wait $steelyard
steelyard vip detach >/tmp/detach.log 2>&1 || fail "vip detach"
ip netns exec client curl -sfm 2 -o /tmp/body http://10.9.0.1/ && fail "10.9.0.1 answers after vip detach"
in_sockets curl -sfm 2 -o /tmp/body http://10.9.0.1/ && fail "10.9.0.1 answers to a process of this host after vip detach"
echo "guest: passed: $(uname -r): served by $by (nat, full_nat, an endpoint here, dsr by IPIP and GUE), and at the socket (TCP, UDP); loaded what was made by$loaded"
end
