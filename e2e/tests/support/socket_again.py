"""Connects datagram sockets, and connects each of them again as soon as it has lost its connection.

Usage: socket_again.py ADDRESS PORT COUNT

The first line of JSON on standard error comes when all are connected, the second one upon SIGUSR1: its peers are those of the sockets.
"""

import json
import selectors
import signal
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
waiting = selectors.DefaultSelector()
sockets = []


def report(*_):
    peers = [f"{host} {port}" for host, port, *_ in (sock.getpeername() for sock in sockets)]
    print("report " + json.dumps({"peers": peers}), file=sys.stderr, flush=True)


for _ in range(count):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((address, port))
    sock.setblocking(False)
    waiting.register(sock, selectors.EVENT_READ)
    sockets.append(sock)
signal.signal(signal.SIGUSR1, report)
report()
while True:
    for key, _ in waiting.select(1):
        try:
            key.fileobj.recv(1)
        except ConnectionAbortedError:
            key.fileobj.connect((address, port))
        except OSError:
            pass
