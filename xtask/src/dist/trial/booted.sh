# The package in a Debian that systemd has booted. Ends at the first thing that is not as it should be.
file=/etc/steelyard/steelyard.yaml
must() { "$@" || { echo "FAILED: $*"; systemctl --no-pager status steelyard || true; journalctl --no-pager -n 30 -u steelyard || true; exit 1; }; }
must_not() { ! "$@" || { echo "FAILED: not $*"; exit 1; }; }
says() { grep -qF -- "$2" "$1" || { echo "FAILED: does not say '$2':"; cat "$1"; exit 1; }; }
is_active() { systemctl --quiet is-active steelyard; }
cannot_start() {
    systemctl start steelyard 2>/dev/null || true
    must timeout 60 sh -c 'until systemctl --quiet is-failed steelyard; do sleep 1; done'
}
main() { systemctl show --property=MainPID --value steelyard; }

echo "== install"
must dpkg --install /trial/first.deb >/tmp/said 2>&1
says /tmp/said "installed, not started"
must_not is_active
must_not systemctl --quiet is-enabled steelyard 2>/dev/null

echo "== start"
origins=
for port in 9001 9002; do
    steelyard origin http --listen 127.0.0.1:$port >/dev/null 2>&1 &
    origins="$origins $!"
done
must systemctl --quiet enable --now steelyard
must is_active
process=$(main)
must test "$(stat -c %U /proc/$process)" = steelyard
must grep -q "NoNewPrivs:.1" /proc/$process/status
must grep -q "CapEff:.0000000000000400" /proc/$process/status
must curl --silent --fail --output /dev/null --retry 50 --retry-delay 1 --retry-all-errors http://127.0.0.1:8080/
systemd-analyze security --no-pager steelyard.service | tail -1

echo "== upgrade under load, with an edited file"
echo "# edited" >>$file
(while [ ! -e /tmp/stop ]; do
    curl --silent --fail --output /dev/null http://127.0.0.1:8080/ && echo ok || echo "failed: $?"
done >/tmp/asked) &
asker=$!
must dpkg --install /trial/next.deb >/tmp/said 2>&1
says /tmp/said "the service now runs the new version"
says $file "# edited"
must is_active
must test "$(main)" != $process
touch /tmp/stop
wait $asker
echo "requests meanwhile: $(grep -c ok /tmp/asked)"
must_not grep failed /tmp/asked

echo "== reload"
must systemctl reload steelyard
cp $file /tmp/good.yaml
echo "old_key: 1" >>$file
process=$(main)
must_not systemctl reload steelyard 2>/dev/null
# The journal may be a moment behind on a busy host.
journalctl --sync
journalctl --no-pager -n 20 -u steelyard >/tmp/said
says /tmp/said old_key
must is_active

echo "== an old configuration that the new version refuses"
must dpkg --install /trial/next.deb >/tmp/said 2>&1
says /tmp/said "$file has errors in the eyes of this version"
must is_active
must test "$(main)" = $process
must systemctl stop steelyard
cannot_start
must test "$(systemctl show --property=ExecMainStatus --value steelyard)" = 64
cp /tmp/good.yaml $file

echo "== a port that is taken"
systemctl reset-failed steelyard
systemd-run --quiet --unit=taken steelyard origin http --listen 127.0.0.1:8080
must curl --silent --fail --output /dev/null --retry 50 --retry-delay 1 --retry-all-errors http://127.0.0.1:8080/
cannot_start
# The journal may be a moment behind on a busy host.
journalctl --sync
journalctl --no-pager -n 20 -u steelyard >/tmp/said
says /tmp/said 127.0.0.1:8080
systemctl stop taken
systemctl stop steelyard
systemctl reset-failed steelyard || true
must systemctl start steelyard

echo "== remove and purge"
must dpkg --remove steelyard
must_not is_active
must test -z "$(ss -Hltn 'sport = 8080')"
says $file "# edited"
must dpkg --purge steelyard
kill $origins
left=$(find / -xdev -path /trial -prune -o -name '*steelyard*' -print)
must test -z "$left"
must test "$(systemctl show --property=LoadState --value steelyard)" = not-found
touch /trial/done
