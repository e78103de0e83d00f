"""A gRPC server whose messages are plain bytes. Usage: server.py PORT"""

import sys
import threading
from concurrent import futures

import grpc

CHUNK = bytes(16_000)


def echo(request, context):
    context.set_trailing_metadata((("answered", "yes"),))
    return request


def count(request, context):
    """Streams as many chunks as the request says."""
    for _ in range(int(request)):
        yield CHUNK


def add(requests, context):
    """Returns how many bytes the stream of requests has."""
    return str(sum(len(request) for request in requests)).encode()


def ignore(requests, context):
    """Reads nothing of the stream of requests until the call ends."""
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()
    return b""


def reflect(requests, context):
    """Answers each request of the stream at once."""
    yield from requests


def fail(request, context):
    """Fails with as many bytes of details as the request says."""
    context.set_trailing_metadata((("details-bin", bytes(int(request))),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the call fails, as it should: 100 %")


CANCELLED = threading.Event()


def hang(request, context):
    """Waits until the call is cancelled."""
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()
    CANCELLED.set()
    return b""


def cancelled(request, context):
    """Reports when a call that hung was cancelled."""
    CANCELLED.wait(60)
    return str(CANCELLED.is_set()).encode()


HANDLERS = {
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Add": grpc.stream_unary_rpc_method_handler(add),
    "Ignore": grpc.stream_unary_rpc_method_handler(ignore),
    "Reflect": grpc.stream_stream_rpc_method_handler(reflect),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Hang": grpc.unary_unary_rpc_method_handler(hang),
    "Cancelled": grpc.unary_unary_rpc_method_handler(cancelled),
}


def serve(port, age):
    options = [
        # Connections end after this many milliseconds, each with a GOAWAY.
        ("grpc.max_connection_age_ms", age),
        ("grpc.max_connection_age_grace_ms", 60_000),
        ("grpc.absolute_max_metadata_size", 1 << 20),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(futures.ThreadPoolExecutor(64), options=options)
    handler = grpc.method_handlers_generic_handler("test.Calls", HANDLERS)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


serve(*map(int, sys.argv[1:]))
