# The package in a Debian where no systemd runs. Ends at the first thing that is not as it should be.
file=/etc/steelyard/steelyard.yaml
must() { "$@" || { echo "FAILED: $*"; exit 1; }; }
must_not() { ! "$@" || { echo "FAILED: not $*"; exit 1; }; }
says() { grep -qF -- "$2" "$1" || { echo "FAILED: does not say '$2':"; cat "$1"; exit 1; }; }
ready() { must curl --silent --fail --output /dev/null --retry 100 --retry-delay 1 --retry-connrefused http://127.0.0.1:9900/readyz; }
status() { dpkg-query --show --showformat='${Status}' steelyard; }
as_user() { runuser -u steelyard -- "$@"; }
# The process that listens.
listener() { ss -Hltnp 'sport = 8080' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u; }
# Until a process has ended.
gone() { tail --pid="$1" -f /dev/null; }

echo "== install"
must dpkg --install /trial/first.deb >/tmp/said 2>&1
says /tmp/said "systemd does not run here, so start it yourself: runuser -u steelyard"
must test "$(status)" = "install ok installed"
must test "$(getent passwd steelyard | cut -d: -f7)" = /usr/sbin/nologin
must test "$(id -u steelyard)" -lt 1000
for path in /usr/bin/steelyard /usr/share/bash-completion/completions/steelyard /usr/lib/systemd/system/steelyard.socket \
    /usr/share/doc/steelyard/third-party-licences.txt.gz; do
    must test -s $path
done
must as_user steelyard check -c $file
must dpkg --verify steelyard

echo "== run it as its user"
as_user steelyard serve -c $file >/tmp/log 2>&1 &
ready
must as_user steelyard status >/dev/null
process=$(listener)
must test "$(stat -c %U /proc/$process)" = steelyard

echo "== a port that is taken"
sed 's/^admin:.*/admin: 127.0.0.1:9911/' $file >/tmp/other.yaml
must_not as_user steelyard serve -c /tmp/other.yaml >/tmp/said 2>&1
says /tmp/said 127.0.0.1:8080
cat /tmp/said

echo "== virtual IPs without CAP_BPF"
printf "vips: {web: {address: '192.0.2.1:80/tcp', interfaces: [lo], endpoints: ['198.51.100.2:80']}}\n" >/tmp/vip.yaml
outcome=0
as_user steelyard serve -c /tmp/vip.yaml >/tmp/said 2>&1 || outcome=$?
cat /tmp/said
must test $outcome = 77
says /tmp/said "virtual IPs need CAP_BPF"

echo "== upgrade while a process runs, with an edited file"
echo "# edited" >>$file
must dpkg --install /trial/next.deb >/tmp/said 2>&1
says /tmp/said "process $process still runs the old version"
says $file "# edited"
must curl --silent --fail --output /dev/null http://127.0.0.1:9900/readyz
kill -USR2 $process
gone $process
ready
successor=$(listener)
must test "$(readlink /proc/$successor/exe)" = /usr/bin/steelyard

echo "== an old configuration that the new version refuses"
cp $file /tmp/good.yaml
echo "old_key: 1" >>$file
must dpkg --install /trial/next.deb >/tmp/said 2>&1
says /tmp/said "$file has errors in the eyes of this version"
says /tmp/said old_key
must test "$(status)" = "install ok installed"
must curl --silent --fail --output /dev/null http://127.0.0.1:9900/readyz
cp /tmp/good.yaml $file

echo "== a root that cannot be written to"
mount -o remount,bind,ro /
must_not dpkg --install /trial/first.deb >/tmp/said 2>&1
says /tmp/said "Read-only file system"
must test "$(status)" = "install ok installed"
kill $successor
gone $successor
as_user steelyard serve -c $file >/tmp/log 2>&1 &
ready
mount -o remount,bind,rw /

echo "== remove and purge"
must dpkg --remove steelyard >/tmp/said 2>&1
says /tmp/said "still runs, and its program is being removed. To end it: kill "
must test ! -e /usr/bin/steelyard
says $file "# edited"
process=$(listener)
kill $process
gone $process
must dpkg --purge steelyard
left=$(find / -xdev -path /trial -prune -o -name '*steelyard*' -print)
must test -z "$left"
must_not dpkg-query --show steelyard 2>/dev/null
touch /trial/done
