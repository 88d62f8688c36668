"""What sockets see after calls that end or change their connections, as lines of JSON like those of socket_client.py.

Usage: socket_corners.py VIP EMPTY_VIP ENDPOINT PORT

VIP has one endpoint, for TCP and for UDP; EMPTY_VIP has none for UDP. SIGUSR1 causes a second report, for which the vips should be gone.
"""

import ctypes
import errno
import json
import signal
import socket
import sys

vip, empty, endpoint, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
family = socket.AF_INET6 if ":" in vip else socket.AF_INET
libc = ctypes.CDLL(None, use_errno=True)
kept = []


def made(kind=socket.SOCK_DGRAM, to=vip):
    sock = socket.socket(family, kind)
    sock.settimeout(20)
    kept.append(sock)
    if to:
        sock.connect((to, port))
    return sock


def disconnect(sock):
    """connect(2) to AF_UNSPEC."""
    assert libc.connect(sock.fileno(), bytes(28), 28) == 0, errno.errorcode[ctypes.get_errno()]


def asked(sock, to):
    """Who answers a datagram."""
    sock.sendto(b"hello", (to, port))
    return sock.recvfrom(5)[1][0]


def again(sock, to):
    """The error of connecting again, and what the socket calls its peer then."""
    try:
        sock.connect((to, port))
        error = "connected"
    except OSError as failed:
        error = errno.errorcode[failed.errno]
    return f"{error} {sock.getpeername()[0]}"


def ended(sock):
    disconnect(sock)
    return sock


def stream():
    sock = made(socket.SOCK_STREAM)
    sock.send(b"hello")
    assert sock.recv(5) == b"hello"
    return sock


def report(seen):
    print("report " + json.dumps({"peers": [f"{name}: {saw}" for name, saw in seen.items()]}), file=sys.stderr, flush=True)


connected, unconnected = made(), made(to=None)
first = {
    "disconnected, asks the endpoint": asked(ended(made()), endpoint),
    "disconnected, asks the vip": asked(ended(made()), vip),
    "connects to a vip without endpoints": again(made(), empty),
    "connects to where no route leads": again(made(), "fd00:ff::1" if family == socket.AF_INET6 else "198.51.100.1"),
    "names the vip after a failure": asked(kept[-1], vip),
    "connects to the endpoint": again(made(), endpoint),
    "asks the vip": asked(unconnected, vip),
}
ended(stream())
report(first)
signal.signal(signal.SIGUSR1, lambda *_: report({
    "connected": connected.getpeername()[0],
    "asks the endpoint": asked(unconnected, endpoint),
}))
while True:
    signal.pause()
