# In new namespaces, as root: the unpacked image under crun. $1: the folder with the bundles; $2: the user that the image names.
cd "$1"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p bpf state left right
mount -t bpf bpf bpf
ip link set lo up
exec </dev/null
must() { "$@" || { echo "FAILED: $*"; cat log; exit 1; }; }
container() { crun --cgroup-manager=disabled --root "$PWD/state" "$@"; }
steelyard() { container exec "$name" /usr/bin/steelyard "$@"; }
start() { container run --bundle "$name" "$name" >log 2>&1 & runtime=$!; }
ready() { must curl --silent --fail --output /dev/null --retry 100 --retry-delay 1 --retry-connrefused "http://127.0.0.1:$1/readyz"; }
about() { cat "/proc/$(container state "$name" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')/$1"; }
stop() { container kill "$name" TERM; must wait $runtime; }

name=proxy
start
ready 9900
about status >said
must grep -q "^Uid:.$2.$2.$2.$2" said
must grep -q "^CapEff:.0000000000000000" said
must grep -q "^NoNewPrivs:.1" said
about mountinfo | awk '$5 == "/" { exit $6 !~ /(^|,)ro(,|$)/ }'
must steelyard status
test "$(curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8080/)" = 502 || must false
stop
echo "image: ran as user $2, without a capability, on a root that cannot be written to"

# The static program has the kernel plane, too. Only root may use it, with the four capabilities of the DaemonSet.
name=vip
ip link add left type veth peer name right
ip address add 198.51.100.1/24 dev left
ip link set left up
ip link set right up
start
ready 9901
must steelyard vip list --admin 127.0.0.1:9901 | tee said
must grep -q left said
stop
must test -n "$(ls -A bpf)"
echo "image: the kernel plane attached a vip"
