# In new namespaces, as root. $1: the root of a Debian; $2: what to do there: `bare`, run the script; `booted`, boot systemd, which runs it.
cd "$1"
mount --bind . .
cd "$1"
# A mount of its own: the script's log is open there while the root becomes read-only.
mount --bind trial trial
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ip link set lo up
exec </dev/null
if [ "$2" = bare ]; then
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot . sh -eu /trial/script >trial/log 2>&1
fi
mount -t cgroup2 cgroup2 sys/fs/cgroup
cat >etc/systemd/system/trial.service <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8
ExecStart=/bin/sh -eu /trial/script
ExecStopPost=/bin/systemctl --force --force poweroff
StandardOutput=append:/trial/log
StandardError=append:/trial/log
[Install]
WantedBy=default.target
UNIT
mkdir -p etc/systemd/system/default.target.wants
ln -sf ../trial.service etc/systemd/system/default.target.wants/trial.service
rm -f etc/systemd/system/multi-user.target.wants/*
exec env -i container=steelyard PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd >trial/boot 2>&1
