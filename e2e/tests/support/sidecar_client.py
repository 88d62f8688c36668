"""A client for tests of sidecars. Standard library only.

    greeting ADDRESS PORT        reads the server's greeting, and sends a line that must come back
    bulk ADDRESS PORT MIB        sends this much, ends its side, and compares what comes back
    datagram ADDRESS PORT        sends a datagram, and prints the answer
    silent ADDRESS PORT          connects, sends nothing, and prints how the connection ends
    stray ADDRESS PORT SOURCE    sends a packet of no connection from this port (IPv4), and prints whether it may leave
    slow ADDRESS PORT            sends the bytes of a request one at a time, and prints the status line
"""

import hashlib
import os
import socket
import struct
import sys
import threading
import time

what, address, port, *rest = sys.argv[1:]
place = (address, int(port))

if what == "datagram":
    client = socket.socket(socket.getaddrinfo(*place)[0][0], socket.SOCK_DGRAM)
    client.settimeout(10)
    client.sendto(b"query", place)
    print(client.recvfrom(4096)[0].decode())
    sys.exit()

if what == "stray":
    stray = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    stray.connect(place)
    pseudo = socket.inet_aton(stray.getsockname()[0]) + socket.inet_aton(address) + struct.pack("!BBH", 0, 6, 26)
    permitted = "sent"
    # The numbers are made up, around the whole circle: what is below the window of a connection belongs to it, and only what is above does not. The
    # flags are PSH and ACK.
    for quarter in range(4):
        number = 1 + (quarter << 30)
        segment = struct.pack("!HHIIBBHHH", int(rest[0]), int(port), number, number, 5 << 4, 0x18, 500, 0, 0) + b"secret"
        total = sum(struct.unpack("!19H", pseudo + segment))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        try:
            stray.send(segment[:16] + struct.pack("!H", ~total & 0xFFFF) + segment[18:])
        except PermissionError:
            permitted = "not permitted"
    print(permitted)
    sys.exit()

try:
    client = socket.create_connection(place, timeout=60)
except ConnectionResetError:
    # The reset may arrive before this program has looked at its connection.
    print("reset")
    sys.exit(what != "silent")
if what == "greeting":
    file = client.makefile("rb")
    greeting = file.readline().decode().strip()
    client.sendall(b"echo\r\n")
    assert file.readline() == b"echo\r\n"
    print(greeting)
elif what == "bulk":
    sent = os.urandom(1 << 20) * int(rest[0])

    def send():
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    got = hashlib.sha256()
    length = 0
    while data := client.recv(1 << 18):
        got.update(data)
        length += len(data)
    assert length == len(sent), f"{length} of {len(sent)} bytes came back"
    assert got.digest() == hashlib.sha256(sent).digest(), "other bytes came back"
    print(length)
elif what == "silent":
    try:
        print("end" if client.recv(1) == b"" else "bytes")
    except ConnectionResetError:
        print("reset")
elif what == "slow":
    for byte in b"GET /slow HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n":
        client.sendall(bytes([byte]))
        time.sleep(0.001)
    print(client.makefile("rb").readline().decode().strip())
