# Builds loxilb from its release, or from $SOURCE: a directory or an archive of it with its submodules.
if [ -z "${SOURCE-}" ]; then
    git clone --quiet --depth 1 --branch "v$VERSION" --recurse-submodules --shallow-submodules \
        https://github.com/loxilb-io/loxilb source
elif [ -d "$SOURCE" ]; then
    cp -R "$SOURCE" source
else
    mkdir source
    tar -xf "$SOURCE" -C source
fi
manifest=$(grep -rlx --include=go.mod 'module github.com/loxilb-io/loxilb' source | head -n 1)
if [ -z "$manifest" ]; then
    echo "${SOURCE-the release} has no go.mod of github.com/loxilb-io/loxilb" >&2
    exit 1
fi
work=$PWD
cd "$(dirname "$manifest")"
if [ ! -e loxilb-ebpf/libbpf/src/Makefile ]; then
    echo "${SOURCE-the release} lacks the submodules loxilb-ebpf and loxilb-ebpf/libbpf" >&2
    exit 1
fi

# Its makefiles call sudo.
mkdir "$work/bin" "$OUT/bin" "$OUT/dp"
printf '#!/bin/sh\nexec "$@"\n' > "$work/bin/sudo"
chmod +x "$work/bin/sudo"

# It ends where it may not raise the limit of locked memory, which kernels since 5.11 do not look at.
echo 'int setrlimit(int r, const void *l) { return 0; } int setrlimit64(int r, const void *l) { return 0; }' |
    gcc -shared -fPIC -w -x c -o "$OUT/bin/norlimit.so" -

# They install into /opt/loxilb, which is $OUT here and for nobody else.
PATH=$work/bin:$PATH unshare --mount --propagation private /bin/sh -eu -c '
    mount -t tmpfs tmpfs /opt
    mkdir /opt/loxilb
    mount --bind "$OUT" /opt/loxilb
    make subsys'
go build -trimpath -ldflags "-X github.com/loxilb-io/loxilb/common.Version=$VERSION" -o "$OUT/bin/loxilb-lab"
