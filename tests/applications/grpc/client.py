"""Calls of a gRPC client through a proxy. Usage: client.py PORT CHECK...

Prints a line for each check that holds. The first that does not ends the program with an error.
"""

import sys
import threading

import grpc

# Longest time that a call needs, in seconds, with much to spare.
PATIENCE = 60
CHUNK = bytes(16_000)


class Calls:
    """The methods of the server, on one connection."""

    def __init__(self, port):
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.absolute_max_metadata_size", 1 << 20),
            # A call that fails is not made again by the client.
            ("grpc.enable_retries", 0),
        ]
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        grpc.channel_ready_future(channel).result(timeout=PATIENCE)
        for name in ("Echo", "Fail", "Hang", "Cancelled"):
            setattr(self, name.lower(), channel.unary_unary(f"/test.Calls/{name}"))
        for name in ("Add", "Ignore"):
            setattr(self, name.lower(), channel.stream_unary(f"/test.Calls/{name}"))
        self.count = channel.unary_stream("/test.Calls/Count")
        self.reflect = channel.stream_stream("/test.Calls/Reflect")


def status(call):
    """Makes a call that fails, and returns its error."""
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call has not failed")


def unary(calls):
    response, call = calls.echo.with_call(b"hello", timeout=PATIENCE, metadata=(("a", "b"), ("c-bin", b"\0\xff")))
    assert response == b"hello", response
    assert ("answered", "yes") in [tuple(entry) for entry in call.trailing_metadata()]


def compressed(calls):
    assert calls.echo(bytes(100_000), compression=grpc.Compression.Gzip, timeout=PATIENCE) == bytes(100_000)


def streams(calls):
    assert sum(len(message) for message in calls.count(b"100", timeout=PATIENCE)) == 100 * len(CHUNK)
    assert calls.add(iter([CHUNK] * 100), timeout=PATIENCE) == str(100 * len(CHUNK)).encode()
    wake = threading.Semaphore(1)

    def requests():
        for n in range(10):
            wake.acquire()
            yield str(n).encode()

    # Each request is sent when the one before is answered.
    for n, response in enumerate(calls.reflect(requests(), timeout=PATIENCE)):
        assert response == str(n).encode(), response
        wake.release()


def unread_downloads(calls):
    unread = [calls.count(b"2000") for _ in range(10)]
    for call in unread:
        assert next(call) == CHUNK
    for _ in range(100):
        assert calls.echo(b"alone", timeout=PATIENCE) == b"alone"
    # What was not read is not lost.
    assert sum(1 for _ in unread[0]) == 1999
    for call in unread:
        call.cancel()


def unread_uploads(calls):
    ended = threading.Event()
    sent = 0

    def requests():
        nonlocal sent
        while not ended.is_set():
            sent += 1
            yield CHUNK

    unread = [calls.ignore.future(requests()) for _ in range(12)]
    before, calm = 0, 0
    # Until no more is sent, because all windows are full.
    while calm < 100:
        assert calls.add(iter([b"small"]), timeout=PATIENCE) == b"5"
        calm = calm + 1 if sent == before and sent > len(unread) else 0
        before = sent
    ended.set()
    for call in unread:
        call.cancel()


def errors(calls):
    error = status(lambda: calls.fail(b"10", timeout=PATIENCE))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
    assert error.details() == "the call fails, as it should: 100 %", error
    error = status(lambda: calls.hang(b"", timeout=0.2))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error


def long_trailers(calls):
    """The bytes of a trailer in base64, which is four thirds of its length: the first passes, and the second fails as an error."""
    error = status(lambda: calls.fail(b"45000", timeout=PATIENCE))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
    assert len(dict(map(tuple, error.trailing_metadata()))["details-bin"]) == 45_000
    assert calls.echo(b"next", timeout=PATIENCE) == b"next"


def too_long_trailers(calls):
    unread = calls.count(b"100")
    next(unread)
    error = status(lambda: calls.fail(b"80000", timeout=PATIENCE))
    assert error.code() not in (grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION), error
    # Its neighbour goes on.
    assert sum(1 for _ in unread) == 99


def cancellation(calls):
    call = calls.hang.future(b"")
    assert calls.echo(b"", timeout=PATIENCE) == b""
    call.cancel()
    assert calls.cancelled(b"", timeout=PATIENCE) == b"True"


def leaving_connections(calls):
    """The server ends its connections all the time, and no call fails."""
    for _ in range(3_000):
        assert calls.echo(b"again", timeout=PATIENCE) == b"again"


def denied(calls):
    """A limit of two calls."""
    assert calls.echo(b"", timeout=PATIENCE, metadata=(("user", "alice"),)) == b""
    assert calls.echo(b"", timeout=PATIENCE, metadata=(("user", "alice"),)) == b""
    error = status(lambda: calls.echo(b"", timeout=PATIENCE, metadata=(("user", "alice"),)))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    assert "retry-after" in dict(map(tuple, error.initial_metadata() or error.trailing_metadata())), error


for name in sys.argv[2:]:
    globals()[name](Calls(sys.argv[1]))
    print(name, flush=True)
