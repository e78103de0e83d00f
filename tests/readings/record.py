#!/usr/bin/env python3
"""Sends the spellings of spellings.json to an application, and writes what its handler saw to NAME.tsv.

A line has three fields: the part of the request, the spelling, and the reading, both as JSON.
The reading is what the application says of that part:
- method: the method that the login handler saw, or null where another handler answered
- path: the handler that answered
- query: the parameter `plan`
- cookie: the cookie `session`
- header: the fields X-Api-Key and X-Plan
- host: the name by which the application is asked
- cached: the cookie, X-Api-Key or Authorization of the second of two requests on a connection, each with one line of the spelling
An application that does not tell one of the last two has no lines of them.
The word `refused` stands for every answer that is not a 200 of a handler, and for none at all.

A spelling has bytes as Latin-1 characters. "\\n" in a cookie or a header begins another line.
A query that begins with "target:" is a whole target.
"""

import argparse
import json
import socket
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT = 5  # seconds


def request(part, spelling):
    """Returns the bytes of a request with this spelling."""
    method, target, lines = "POST", "/login", []
    if part == "method":
        method = spelling
    elif part == "path":
        target = spelling
    elif part == "query":
        target = spelling.removeprefix("target:") if spelling.startswith("target:") else f"/login?{spelling}"
    elif part == "cookie":
        lines = [f"Cookie: {value}" for value in spelling.split("\n")]
    elif part in ("header", "host"):
        lines = spelling.split("\n")
    elif part == "cached":
        first, second = (request("host", line) for line in spelling.split("\n"))
        return first.replace(b"Connection: close\r\n", b""), second
    host = [] if any(line.startswith("Host:") for line in lines) else ["Host: localhost"]
    # The last line: Jetty caches no field behind it.
    head = [f"{method} {target} HTTP/1.1", *host, "Content-Length: 0", *lines, "Connection: close"]
    return "\r\n".join([*head, "", ""]).encode("latin-1")


def send(port, requests):
    """Sends a request, or several on one connection, and returns all that the server answers to the last one."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
            for data in requests if isinstance(requests, tuple) else (requests,):
                # What was answered to the one before counts no more, and one that is not complete ends all.
                if answer and not complete(answer):
                    return b""
                answer = b""
                connection.sendall(data)
                while chunk := connection.recv(65536):
                    answer += chunk
                    if complete(answer):
                        break
    except OSError:
        # What arrived before counts, unless it is the answer to another request.
        if isinstance(requests, tuple):
            return b""
    return answer


def complete(answer):
    """Returns whether a body with a known length has arrived."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = fields(head).get("content-length", "")
    return bool(end) and length.isdecimal() and len(body) >= int(length)


def fields(head):
    """Returns the header fields of an answer."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def joined(body):
    """Returns a chunked body as one piece."""
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        whole, body = whole + rest[:length], rest[length + 2 :]
    return whole


def reading(part, spelling, answer):
    """Returns what the handler saw, or "refused"; None if the application does not tell."""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not head.startswith(b"HTTP/1.") or len(words) < 2 or words[1] != b"200":
        return "refused"
    headers = fields(head)
    if "x-handler" not in headers:
        return "refused"
    if headers.get("transfer-encoding") == "chunked":
        body = joined(body)
    # Only the answer to a HEAD request has no body.
    seen = json.loads(body) if body else {"handler": headers["x-handler"], "method": "HEAD"}
    match part:
        case "method":
            value = seen["method"] if seen["handler"] == "login" else None
        case "path":
            value = seen["handler"]
        case "query" | "cookie":
            value = seen[part]
        case "host" | "cached":
            names = {"Cookie": "cookie", "X-Api-Key": "key", "Authorization": "authorization"}
            name = names.get(spelling.split("\n")[-1].partition(":")[0], "host")
            if name not in seen:
                return None
            value = seen[name]
        case "header":
            value = {"key": seen["key"], "plan": seen["plan"]}
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def main():
    spellings = json.loads((HERE / "spellings.json").read_text())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="the name of the table")
    parser.add_argument("port", type=int, help="where the application listens on 127.0.0.1")
    parser.add_argument("--parts", nargs="+", choices=spellings, default=list(spellings), help="all parts unless given")
    parser.add_argument("--versions", default="", help="the first line of the table")
    arguments = parser.parse_args()

    file = HERE / f"{arguments.name}.tsv"
    # The lines of the parts that are not recorded now stay.
    before = file.read_text().splitlines()[1:] if file.exists() else []
    lines = [f"# {arguments.versions}"]
    for part in spellings:
        if part not in arguments.parts:
            lines += [line for line in before if line.startswith(f"{part}\t")]
            continue
        for spelling in spellings[part]:
            read = reading(part, spelling, send(arguments.port, request(part, spelling)))
            if read is not None:
                lines.append(f"{part}\t{json.dumps(spelling)}\t{read}")
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
