"""bpf(2) for tests: what another program does to a control group, and what no test has the time to do.

Usage: bpf.py exclusive CGROUP   attaches a program to connect6 that tolerates no other beside it, and waits
       bpf.py fill MAP COUNT     adds entries of zeros to a pinned hash map with 8-byte keys
"""

import ctypes
import os
import platform
import signal
import struct
import sys

BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
MAP_UPDATE, PROG_LOAD, OBJ_GET, PROG_ATTACH, INFO_BY_FD = 2, 5, 7, 8, 15
CGROUP_SOCK_ADDR, INET6_CONNECT = 18, 11
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    attributes = ctypes.create_string_buffer(attributes.ljust(128, b"\0"))
    result = libc.syscall(BPF, command, attributes, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), command)
    return result


def address(buffer):
    return ctypes.addressof(buffer)


def exclusive(cgroup):
    # r0 = 1; exit
    code = ctypes.create_string_buffer(bytes.fromhex("b700000001000000" "9500000000000000"), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    load = struct.pack("IIQQIIQII16sII", CGROUP_SOCK_ADDR, 2, address(code), address(licence), 0, 0, 0, 0, 0, b"", 0, INET6_CONNECT)
    program = bpf(PROG_LOAD, load)
    bpf(PROG_ATTACH, struct.pack("IIII", os.open(cgroup, os.O_RDONLY), program, INET6_CONNECT, 0))
    print("attached", file=sys.stderr, flush=True)
    signal.pause()


def fill(path, count):
    name = ctypes.create_string_buffer(path.encode())
    held = bpf(OBJ_GET, struct.pack("QII", address(name), 0, 0))
    information = ctypes.create_string_buffer(256)
    bpf(INFO_BY_FD, struct.pack("IIQ", held, len(information), address(information)))
    value = ctypes.create_string_buffer(struct.unpack_from("I", information, 12)[0])
    for key in range(count):
        key = ctypes.create_string_buffer(struct.pack("Q", 1 << 63 | key), 8)
        try:
            bpf(MAP_UPDATE, struct.pack("IIQQQ", held, 0, address(key), address(value), 0))
        except OSError:
            break


if sys.argv[1] == "exclusive":
    exclusive(sys.argv[2])
else:
    fill(sys.argv[2], int(sys.argv[3]))
