"""A client that asks Sluice whether a customer may go on, reserves a cost in advance, and settles it in the end.

    from ask import Asker
    asker = Asker("http://localhost:8080")
    if asker.allow("shop/checkout", "per-customer", "alice"):
        ...
    with asker.reserving("shop/checkout", "tokens", "alice", cost=1000) as reservation:
        if reservation:
            ...
            reservation.used = 420

It needs nothing but the standard library.
"""

import collections
import contextlib
import dataclasses
import http.client
import json
import math
import os
import time
import urllib.parse

# Seconds before each further try to settle.
_PAUSES = (0.1, 0.2, 0.4)


class Problem(Exception):
    """Sluice refused to answer, because the call is wrong: `detail` says why, and `field` is the part of the body, or None."""

    def __init__(self, status, detail, field=None):
        super().__init__(f"{status}: {field}: {detail}" if field else f"{status}: {detail}")
        self.status, self.detail, self.field = status, detail, field


class Unanswered(Exception):
    """Sluice cannot be reached, or cannot answer now."""


@dataclasses.dataclass
class Answer:
    """An answer, which is true if it allows to go on."""

    allowed: bool
    answered: bool = True  # Whether Sluice gave the answer. If not, it is `fail_open`, and `failure` says why.
    remaining: int | None = None  # What is left of the limit.
    retry_after: float | None = None  # Seconds after which the same call may be allowed.
    id: str | None = None  # The id of the reservation.
    used: int | None = None  # The cost to settle at the end of `reserving`; None: what was reserved.
    failure: str | None = None  # Why there is no answer, or why the end of `reserving` could not settle.

    def __bool__(self):
        return self.allowed


class Asker:
    """Asks the service at `base_url`. Threads may share it. An answer takes at most `timeout` seconds, if the name resolves."""

    def __init__(self, base_url, token_file=None, timeout=0.5, fail_open=True, tls=None):
        url = urllib.parse.urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{base_url}: not a URL of http or https")
        self.url, self.path, self.tls = url, url.path.rstrip("/"), tls
        self.token_file, self.timeout, self.fail_open = token_file, timeout, fail_open
        # Open connections that no thread uses, by process: one that is forked off must not share them.
        self.idle = collections.defaultdict(list)

    def close(self):
        """Closes the connections that are kept."""
        for connection in self.idle.pop(os.getpid(), []):
            connection.close()

    def allow(self, policy, limit, *key, cost=None):
        """Charges the cost, by default 1, if the limit has room for it. Returns the answer, or raises Problem."""
        return self._check({"policy": policy, "limit": limit, "key": key, "cost": cost})

    def reserve(self, policy, limit, *key, cost=None, expires_after=None):
        """Charges the cost in advance if the limit has room for it, by default what the policy reserves. The answer has an id if
        something is reserved. It can be settled for the time of `expires_after`, in seconds."""
        reserve = {} if expires_after is None else {"expiresAfterSeconds": math.ceil(expires_after)}
        return self._check({"policy": policy, "limit": limit, "key": key, "cost": cost, "reserve": reserve})

    def settle(self, id, cost=None):
        """Charges the cost in place of what was reserved, or just that if None. Returns False if it was settled before or has
        expired. Raises Unanswered after four tries."""
        if id is None:
            return False
        for pause in (*_PAUSES, None):
            try:
                return self._post("/v1/settle", {"id": id, "cost": cost})["settled"]
            except Unanswered:
                if pause is None:
                    raise
                time.sleep(pause)

    @contextlib.contextmanager
    def reserving(self, policy, limit, *key, cost=None, expires_after=None):
        """Reserves, and settles at the end what `used` of the answer says. The body runs even if nothing is reserved. An error of
        settling is none of the body, whose work is done: it is in `failure`, and what cannot be settled expires."""
        reservation = self.reserve(policy, limit, *key, cost=cost, expires_after=expires_after)
        try:
            yield reservation
        finally:
            try:
                self.settle(reservation.id, reservation.used)
            except (Problem, Unanswered, OSError) as failure:
                reservation.failure = str(failure)

    def _check(self, check):
        try:
            found = self._post("/v1/check", check)
        except Unanswered as failure:
            return Answer(self.fail_open, answered=False, failure=str(failure))
        limit, reservation = found["limits"][0], found.get("reservation") or {}
        return Answer(found["allowed"], True, limit.get("remaining"), limit.get("retryAfterSeconds"), reservation.get("id"))

    def _post(self, path, body):
        headers = {"content-type": "application/json"}
        if self.token_file:
            # Tokens are replaced before they expire, so the file is read each time.
            with open(self.token_file, encoding="ascii") as file:
                headers["authorization"] = "Bearer " + file.read().strip()
        try:
            status, text = self._send(self.path + path, json.dumps(body).encode(), headers)
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{path}: {error or type(error).__name__}") from error
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if status == 200 and isinstance(found, dict):
            return found
        problem = found if isinstance(found, dict) else {}
        detail = problem.get("detail") or text[:200].decode(errors="replace")
        if status == 200 or status >= 500:
            raise Unanswered(f"{path}: {status}: {detail}")
        raise Problem(status, detail, problem.get("field"))

    def _send(self, path, body, headers):
        deadline, idle = time.monotonic() + self.timeout, self.idle[os.getpid()]
        try:
            connection, kept = idle.pop(), True
        except IndexError:
            connection, kept = self._connection(), False
        try:
            try:
                answer = self._exchange(connection, deadline, path, body, headers)
            except ConnectionError:
                if not kept:
                    raise
                # The service has closed it in the meantime, so a new one is tried, once.
                connection.close()
                connection = self._connection()
                answer = self._exchange(connection, deadline, path, body, headers)
        except BaseException:
            connection.close()
            raise
        idle.append(connection)
        return answer

    def _connection(self):
        if self.url.scheme == "https":
            return http.client.HTTPSConnection(self.url.hostname, self.url.port, context=self.tls)
        return http.client.HTTPConnection(self.url.hostname, self.url.port)

    def _exchange(self, connection, deadline, path, body, headers):
        def limit_time():
            connection.timeout = deadline - time.monotonic()
            if connection.timeout <= 0:
                raise TimeoutError("timed out")
            if connection.sock:
                connection.sock.settimeout(connection.timeout)

        limit_time()
        if connection.sock is None:
            connection.connect()
            limit_time()
        connection.request("POST", path, body, headers)
        limit_time()
        response = connection.getresponse()
        limit_time()
        return response.status, response.read()
