# The process in the router's network namespace, which is also the network of the clients. When its standard input ends before it says `stay`,
# the process that started the cluster has ended, and so do the nodes. The router then removes what the cluster has left on the host.
# Arguments: the folder of the cluster, the folder with the hierarchies of control groups.
run=$1 hierarchies=$2
# Not by exec: `cluster down` recognizes this process by its arguments.
if read -r word && [ "$word" = stay ]; then sleep infinity; fi

# A control group can be removed once its last process has ended.
for second in $(seq 60); do
    left=
    for file in "$run"/n*/cgroup; do
        for group in "$hierarchies"/*/"$(cat "$file")"; do
            if [ -d "$group" ]; then
                find "$group" -depth -type d -exec rmdir {} + || left=yes
            fi
        done
    done
    if [ -z "$left" ]; then break; fi
    sleep 1
done 2>/dev/null
# A program of a node that is about to end may still write a file.
rm -rf "$run" || { sleep 1; rm -rf "$run"; }
