"""A client that obeys rate limits: it slows down before it is denied, and waits as long as it is told when it is.

    from obey import Session
    with Session() as session:
        response = session.get("http://localhost:8790/orders")

It needs nothing but the standard library.
"""

import re
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime

# A name in quotation marks, and its parameters: "per-client/1m";r=0;t=12
_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z]+=[^;,]+)*)')


class GaveUp(Exception):
    """The request was denied, and the client stopped trying: no wait helps, the wait is too long, or all tries were denied."""


def _items(header):
    for name, parameters in _ITEM.findall(header or ""):
        pairs = (pair.split("=", 1) for pair in parameters.split(";") if "=" in pair)
        yield name, {key.strip(): value.strip() for key, value in pairs}


def _number(text):
    return int(text) if text and text.isascii() and text.isdigit() else 0


def retry_after(headers, now=time.time):
    """Returns the seconds of Retry-After, which is a number or a date, or None without one."""
    text = (headers.get("retry-after") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (TypeError, ValueError):
        return None


def pause(headers):
    """Returns the seconds until the next request: when nothing remains, the time in which a limit admits one more."""
    rates = {name: parameters for name, parameters in _items(headers.get("ratelimit-policy"))}
    longest = 0.0
    for name, state in _items(headers.get("ratelimit")):
        if state.get("r") != "0":
            continue
        rate = rates.get(name, {})
        quota, window = _number(rate.get("q")), _number(rate.get("w"))
        longest = max(longest, window / quota if quota and window else _number(state.get("t")))
    return longest


class Session:
    """Sends requests one after the other. Waits for at most `longest` seconds before another try."""

    def __init__(self, attempts=5, longest=300.0, sleep=time.sleep, clock=time.monotonic):
        self.attempts, self.longest, self.sleep, self.clock = attempts, longest, sleep, clock
        self.next = self.clock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get(self, url, headers=None):
        """Returns the response to a GET request, or raises GaveUp."""
        for _ in range(self.attempts):
            self._wait()
            response = self._send(urllib.request.Request(url, headers=headers or {}))
            if response.status != 429:
                # From when the answer arrived, so that nothing is lost by rounding.
                self.next = self.clock() + pause(response.headers)
                return response
            response.close()
            wait = retry_after(response.headers)
            if wait is None:
                raise GaveUp(f"{url}: denied without Retry-After: no wait helps")
            if wait > self.longest:
                raise GaveUp(f"{url}: denied: Retry-After is {wait:.0f} s, and the longest wait {self.longest:.0f} s")
            self.next = self.clock() + wait
        raise GaveUp(f"{url}: denied {self.attempts} times")

    def _wait(self):
        seconds = self.next - self.clock()
        if seconds > 0:
            self.sleep(seconds)

    @staticmethod
    def _send(request):
        try:
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as response:
            return response
