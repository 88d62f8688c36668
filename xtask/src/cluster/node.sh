# Process 1 of a node. It turns its namespaces into a separate machine. All processes of the node end with it.
# Arguments: the name of the node, its folder, the name of its control group. It ends when its standard input does, unless that says `stay`.
name=$1 directory=$2 cgroup=$3
exec 3<&0

hostname "$name"
# kubelet and containerd see each other's mounts.
mount --make-rshared /
# Programs expect these fixed paths. Each is a folder of the node, so that the host has only an empty mount point.
for place in /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d; do
    mkdir -p "$place" "$directory/fs$place"
    mount --bind "$directory/fs$place" "$place"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/containerd /run/lock
# The kernel plane pins its programs here.
mount -t bpf bpf /sys/fs/bpf
# kubelet requires these values. They are settings of the whole host, so kubelet gets files that look like them.
mkdir -p "$directory/tunables"
while read -r key value; do
    file=$directory/tunables/$(echo "$key" | tr / .)
    echo "$value" >"$file"
    mount --bind "$file" "/proc/sys/$key"
done <<'TUNABLES'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
TUNABLES
# The node has a control group in each hierarchy. A new one of the cpuset hierarchy has no CPUs and no memory nodes, and takes no process.
for hierarchy in /sys/fs/cgroup/*/; do
    mkdir -p "$hierarchy$cgroup"
    for file in cpuset.cpus cpuset.mems; do
        if [ -e "$hierarchy$file" ]; then cat "$hierarchy$file" >"$hierarchy$cgroup/$file"; fi
    done
done
# Version 2 on a host with both. The programs that balance sockets are attached here, and so every process of the node must be below it.
if [ -d "/sys/fs/cgroup/unified/$cgroup" ]; then
    mkdir /run/cgroup
    mount --bind "/sys/fs/cgroup/unified/$cgroup" /run/cgroup
fi
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
cp "$directory/cni.conflist" /etc/cni/net.d/10-pods.conflist
touch "$directory/ready"

# While this shell waits, it also reaps the orphans of the node.
{ read -r word && [ "$word" = stay ] && exec sleep infinity; } <&3 &
wait $! || true
