# The rest of the guest's start, with the programs of the host, and the run.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ulimit -n 65536
ip link set lo up
accelerator=$(sed 's/.*accelerator=//; s/ .*//' /proc/cmdline)
: > /out/.guest-is-up
cd @FOLDER@ 2>/dev/null || cd /
@COMMAND@
echo $? > /out/.guest-ended
sync
echo o > /proc/sysrq-trigger
sleep 60
