"""An application for tests of sidecars: HTTP, a server that sends first, and one that returns what it got once its client has ended.

Standard library only. Prints "ready" when everything listens.
"""

import hashlib
import http.server
import json
import socket
import sys
import threading

HTTP, GREETS, RETURNS, DNS = 8080, 9000, 9001, 53


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body=b""):
        said = json.dumps(
            {
                "client": self.client_address[0].removeprefix("::ffff:"),
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "sha256": hashlib.sha256(body).hexdigest(),
                "length": len(body),
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(said)

    def do_GET(self):
        self.answer()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 256


def listen(port, kind=socket.SOCK_STREAM):
    server = socket.socket(socket.AF_INET6, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", port))
    if kind == socket.SOCK_STREAM:
        server.listen(64)
    return server


def greet(conn, peer):
    """As SMTP: the server begins. It names its client."""
    conn.sendall(b"220 " + peer.removeprefix("::ffff:").encode() + b"\r\n")
    while data := conn.recv(65536):
        conn.sendall(data)


def give_back(conn, _):
    """Returns everything after the client has ended its side."""
    got = bytearray()
    while data := conn.recv(1 << 16):
        got += data
    conn.sendall(got)


def accept(server, serve):
    while True:
        conn, peer = server.accept()

        def one(conn=conn, peer=peer):
            with conn:
                try:
                    serve(conn, peer[0])
                except OSError:
                    pass

        threading.Thread(target=one, daemon=True).start()


def answer_datagrams(server):
    while True:
        data, peer = server.recvfrom(4096)
        server.sendto(peer[0].removeprefix("::ffff:").encode() + b" " + data, peer)


class OnAll(Server):
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


threads = [
    (OnAll(("::", HTTP), Handler).serve_forever, ()),
    (accept, (listen(GREETS), greet)),
    (accept, (listen(RETURNS), give_back)),
    (accept, (listen(DNS), greet)),
    (answer_datagrams, (listen(DNS, socket.SOCK_DGRAM),)),
]
for work, arguments in threads:
    threading.Thread(target=work, args=arguments, daemon=True).start()
print("ready", file=sys.stderr, flush=True)
threading.Event().wait()
