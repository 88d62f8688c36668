#!/bin/busybox sh
# The first process of the guest: puts the host's file system, read-only below a layer in memory, in the place of the archive.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod "$module"; done
share=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o ro,cache=loose,$share host /host
$b mount -t tmpfs -o size=90% tmpfs /written
$b mkdir /written/upper /written/work
$b cp /system.sh /written/upper/.guest-system.sh
$b mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work merged /merged
for folder in proc sys dev; do $b mkdir -p /merged/$folder; $b mount --move /$folder /merged/$folder; done
$b mkdir -p /merged/out /merged/dev/pts /merged/dev/shm /merged/lib/modules/@VERSION@
$b mount -t 9p -o $share out /merged/out
$b mount -t 9p -o ro,cache=loose,$share modules /merged/lib/modules/@VERSION@
exec $b switch_root /merged /bin/sh /.guest-system.sh
