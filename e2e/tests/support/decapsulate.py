"""The endpoint's side of a tunnel, for kernels without `ipip` and `fou`: takes packets out of others, and gives them to the kernel by a tun device.

Usage: decapsulate.py ipip|gue 4|6 DEVICE

Writes the first outer packet of each flow of the tunnel to standard error, as a line of JSON: the addresses and ports of the outer packet, and
the first bytes of the inner one.
"""

import fcntl
import json
import os
import socket
import struct
import sys

kind, version, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PORT = 6080
UDP_NO_CHECK6_RX = 102
SO_RCVBUFFORCE = 33
IPIP, IPV6 = 4, 41

tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
os.system(f"ip link set {device} up")

family = socket.AF_INET if version == 4 else socket.AF_INET6
if kind == "gue":
    outer = socket.socket(family, socket.SOCK_DGRAM)
    if version == 6:
        outer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        outer.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
    outer.bind(("", PORT))
else:
    outer = socket.socket(family, socket.SOCK_RAW, IPIP if version == 4 else IPV6)
outer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
print("decapsulating", file=sys.stderr, flush=True)

seen = set()
while True:
    packet, sender = outer.recvfrom(1 << 17)
    header = {"from": sender[0]}
    if kind == "gue":
        header["port"] = sender[1]
        base = packet[:4]
        # Version 0, no options, no flags.
        assert base[0] == 0 and base[2:] == b"\0\0", base
        assert base[1] == (IPIP if version == 4 else IPV6), base
        packet = packet[4:]
    elif version == 4:
        assert packet[0] >> 4 == 4 and packet[9] == IPIP, packet[:20]
        header.update(to=socket.inet_ntoa(packet[16:20]), ttl=packet[8], tos=packet[1])
        packet = packet[(packet[0] & 15) * 4 :]
    assert packet[0] >> 4 == version, packet[:40]
    # The addresses and ports of the inner packet.
    inner = packet[12:24] if version == 4 else packet[8:44]
    if inner not in seen:
        seen.add(inner)
        print(json.dumps(header), file=sys.stderr, flush=True)
    os.write(tun, packet)
