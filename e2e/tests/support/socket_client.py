"""Asks for an address and writes what it sees to standard error, as a line of JSON for each report.

Usage: socket_client.py tcp|mptcp|udp|udp-connected|udp-named ADDRESS[,ADDRESS] PORT COUNT

A socket of `udp-named` is connected and names the address in each datagram all the same. With several addresses, a `udp` socket asks each in
turn, twice.

The first report comes when COUNT sockets have asked and were answered by an echo, or were refused. They stay open. SIGUSR1 causes another
exchange on each, and another report.
"""

import errno
import json
import os
import signal
import socket
import sys

# `round_robin` has a cursor for each CPU.
os.sched_setaffinity(0, {0})

kind, addresses, port, count = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
address = addresses[0]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
sockets = []
STREAMS = ("tcp", "mptcp")
# socket.IPPROTO_MPTCP came with Python 3.10.
IPPROTO_MPTCP = 262


def name(pair):
    return f"{pair[0]} {pair[1]}"


def exchange(sock):
    """The echo's address as the process sees it."""
    for other in (addresses * 2)[:-1] if len(addresses) > 1 else []:
        sock.sendto(b"other", (other, port))
        answer, sender = sock.recvfrom(5)
        assert (answer, sender[0]) == (b"other", other), (answer, sender, other)
    if kind in ("udp", "udp-named"):
        sock.sendto(b"hello", (addresses[-1], port))
    else:
        sock.send(b"hello")
    answer, sender = sock.recvfrom(5)
    assert answer == b"hello", answer
    # A stream has no sender.
    return name(sender) if kind not in STREAMS else None


def attempt():
    protocol = IPPROTO_MPTCP if kind == "mptcp" else 0
    sock = socket.socket(family, socket.SOCK_STREAM if kind in STREAMS else socket.SOCK_DGRAM, protocol)
    sock.settimeout(20)
    sockets.append(sock)
    if kind != "udp":
        sock.connect((address, port))


def report(*_):
    seen = {"senders": [], "peers": [], "errors": []}
    while len(sockets) + len(refused) < count:
        try:
            attempt()
        except OSError as error:
            refused.append(sockets.pop())
            seen["errors"].append(errno.errorcode.get(error.errno, str(error)))
    for sock in sockets:
        try:
            seen["senders"].append(exchange(sock))
            if kind != "udp":
                seen["peers"].append(name(sock.getpeername()))
        except OSError as error:
            seen["errors"].append(errno.errorcode.get(error.errno, str(error)))
    print("report " + json.dumps(seen), file=sys.stderr, flush=True)


refused = []
signal.signal(signal.SIGUSR1, report)
report()
while True:
    signal.pause()
