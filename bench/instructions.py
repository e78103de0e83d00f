#!/usr/bin/env python3
"""instructions.py PROGRAM [OLDER]: count the instructions of a request, and compare them with those of an older program.

Both are `sluice`, built alike. Each kind of request is sent to it under valgrind, one after another on one connection, in two runs of
different lengths, whose difference is divided by the number of requests between them: what a start costs is in both. Processor time
says more about what a user pays, and differs by several per cent from run to run; this finds the steps of one per cent that add up, on a
machine that does nothing else. Exits with 1 if a kind needs more than 2 % more than with the older program.
"""

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Allocators and system calls add a little that differs.
TOLERANCE = 0.02
FEW, MANY = 500, 2500
POLICY = """\
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: bench, namespace: bench}
spec:
  enforcedBy: [Sidecar, Service]
  responseHeaders: [XRateLimit]
  limits:
  - name: admit
    matches: [{path: {prefix: /admit/}}, {rls: {domain: bench, entries: [{key: user}]}}]
    key: {parts: [{header: {name: x-api-key}, descriptorKey: user}]}
    rates: [{requests: 1000000000, per: 1h}]
  - name: deny
    matches: [{path: {prefix: /deny/}}]
    key: {parts: [{header: {name: x-api-key}}]}
    rates: [{requests: 0, per: 1h}]
""" + "".join(
    f"  - {{name: other-{n}, matches: [{{path: {{prefix: /other-{n}/}}}}], rates: [{{requests: 10, per: 1m}}]}}\n" for n in range(18)
)
# What the client of a page of a shop sends.
HEADERS = [
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("accept-language", "en-US,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br"),
    ("cookie", "session=0123456789abcdef0123456789abcdef; theme=dark"),
]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEAD, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def read_exactly(connection, length):
    read = b""
    while len(read) < length:
        more = connection.recv(length - len(read))
        if not more:
            raise EOFError
        read += more
    return read


def frames(connection):
    """Yields the frames of a connection, and answers those about the connection itself."""
    while True:
        head = read_exactly(connection, 9)
        body = read_exactly(connection, int.from_bytes(head[:3]))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
        if kind in (SETTINGS, PING):
            if not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, body if kind == PING else b""))
        else:
            yield kind, flags, stream, body


def literal(name, value):
    """Encodes a header without a table (RFC 7541, 6.2.2)."""

    def text(value):
        length = len(value)
        return (bytes([length]) if length < 127 else bytes([127, length - 127])) + value.encode()

    return b"\0" + text(name) + text(value)


class Http1:
    """A client of HTTP/1."""

    def __init__(self, address, request):
        self.connection = socket.create_connection(address)
        self.request = request

    def ask(self, key):
        self.connection.sendall(self.request(key))
        answer = b""
        while True:
            answer += self.connection.recv(65536)
            head, end, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
            if end and len(body) >= int(length.group(1) if length else 0):
                return int(head.split()[1])


class Http2:
    """A client of HTTP/2."""

    def __init__(self, address, request):
        self.connection = socket.create_connection(address)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 1 - 65535)))
        self.frames = frames(self.connection)
        self.stream = -1
        self.request = request

    def ask(self, key):
        self.stream += 2
        head, body = self.request(key)
        block = b"".join(literal(name, value) for name, value in head)
        sent = frame(HEAD, END_HEADERS | (0 if body else END_STREAM), self.stream, block)
        self.connection.sendall(sent + (frame(DATA, END_STREAM, self.stream, body) if body else b""))
        status = None
        for kind, flags, stream, block in self.frames:
            if stream != self.stream:
                continue
            if kind == HEAD and status is None:
                # A status of the static table (RFC 7541, appendix A), or a literal whose name is of it. Digits are the shortest code.
                status = {0x88: 200}.get(block[0], 429)
            if flags & END_STREAM:
                return status


def serve_http1(connection):
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nok\n"
    with contextlib.suppress(OSError):
        received = b""
        while more := connection.recv(65536):
            received += more
            if received.endswith(b"\r\n\r\n"):
                received = b""
                connection.sendall(answer)


def serve_http2(connection):
    with contextlib.suppress(EOFError, OSError):
        read_exactly(connection, len(PREFACE))
        connection.sendall(frame(SETTINGS, 0, 0))
        for kind, flags, stream, _ in frames(connection):
            if kind == HEAD and flags & END_STREAM:
                head = b"\x88" + literal("content-type", "text/plain") + literal("content-length", "3")
                connection.sendall(frame(HEAD, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, b"ok\n"))


def upstream(serve):
    """Starts an application. Returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def http1_request(path):
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS)
    return lambda key: f"GET {path} HTTP/1.1\r\nhost: shop.example\r\nx-api-key: {key}\r\n{head}\r\n".encode()


def http2_request(path):
    pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "shop.example"), (":path", path)]
    return lambda key: ([*pseudo, ("x-api-key", key), *HEADERS], b"")


def check_request(key):
    body = f'{{"namespace":"bench","request":{{"method":"GET","url":"/admit/7","headers":{{"x-api-key":"{key}"}}}}}}'
    head = "POST /v1/check HTTP/1.1\r\nhost: shop.example\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


def field(number, value):
    return bytes([number << 3 | 2, len(value)]) + value


def rls_request(key):
    entry = field(1, b"user") + field(2, key.encode())
    message = field(1, b"bench") + field(2, field(1, entry))
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "shop.example")]
    path = [(":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")]
    head = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "10S")]
    return pseudo + path + head, struct.pack(">BI", 0, len(message)) + message


# Name, arguments of the command, client, its requests, the application, and the status that is expected.
KINDS = [
    ("HTTP/1, 200", "run", Http1, http1_request("/admit/7"), serve_http1, 200),
    ("HTTP/1, 429", "run", Http1, http1_request("/deny/7"), serve_http1, 429),
    ("HTTP/2, 200", "run", Http2, http2_request("/admit/7"), serve_http2, 200),
    ("HTTP/2, 429", "run", Http2, http2_request("/deny/7"), serve_http2, 429),
    ("/v1/check", "serve", Http1, check_request, None, 200),
    ("rls", "serve", Http2, rls_request, None, 200),
]


def run(program, folder, kind, requests):
    """Returns the instructions of a process that answers so many requests."""
    _, command, client, request, serve, expected = kind
    policy = folder / "policy.yaml"
    port, other, admin = free_port(), free_port(), free_port()
    arguments = [command, f"--policy={policy}", "--store=memory", "--workers=1", f"--admin=127.0.0.1:{admin}"]
    if command == "run":
        arguments += [f"--listen=127.0.0.1:{port}", f"--upstream=http://127.0.0.1:{upstream(serve)}"]
    else:
        http, grpc = (port, other) if client is Http1 else (other, port)
        arguments += [f"--http=127.0.0.1:{http}", f"--grpc=127.0.0.1:{grpc}"]
    log = folder / f"log-{port}"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out-{port}"]
    with log.open("wb") as output:
        process = subprocess.Popen([*valgrind, program, *arguments], stdout=output, stderr=output, env={**os.environ, "RUST_LOG": "error"})
    try:
        for _ in range(600):
            if process.poll() is not None:
                sys.exit(f"{program} has ended:\n{log.read_text()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        asking = client(("127.0.0.1", port), request)
        for n in range(requests):
            status = asking.ask(f"client-{n % 20}")
            if status != expected:
                sys.exit(f"{kind[0]}: {status} in place of {expected}")
    finally:
        process.terminate()
        process.wait(60)
    counted = re.search(r"Collected : (\d+)", log.read_text())
    return int(counted.group(1))


def measure(program, folder, kind):
    """Returns the least of two measurements: what the process does each second is more on a busy machine."""

    def once():
        few, many = (run(program, folder, kind, requests) for requests in (FEW, MANY))
        return (many - few) / (MANY - FEW)

    return min(once(), once())


def main():
    programs = sys.argv[1:]
    if len(programs) not in (1, 2):
        sys.exit("usage: instructions.py PROGRAM [OLDER]")
    is_more = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        folder = Path(folder)
        (folder / "policy.yaml").write_text(POLICY)
        for kind in KINDS:
            count, *older = pool.map(lambda program: measure(program, folder, kind), programs)
            ratios = [count / other for other in older]
            print(f"{kind[0]}: {count:,.0f} instructions", *(f"{ratio:.3f} of the older program" for ratio in ratios), sep=", ", flush=True)
            is_more |= any(ratio > 1 + TOLERANCE for ratio in ratios)
    sys.exit(is_more)


if __name__ == "__main__":
    main()
