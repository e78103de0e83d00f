"""ask.py SERVICE NOBODY SILENCE: asks a service, an address without one, and one that takes requests and never answers. Prints
the answers.

drive.py SCRIPT: sends what scripted responses are for.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from ask import Asker, Problem

POLICY = "shop/checkout"


def problem(call):
    try:
        call()
    except Problem as found:
        return f"problem {found.status} {found.field}"
    return "no problem"


def word(value):
    return str(value).lower()


def service(url):
    asker = Asker(url, timeout=60)
    for _ in range(5):
        answer = asker.allow(POLICY, "per-customer", "python")
        print("allow", word(answer.allowed), word(answer.answered), answer.remaining)
    answer = asker.allow(POLICY, "per-customer", "python")
    print("allow", word(answer.allowed), word(answer.answered), answer.remaining, word(answer.retry_after > 0))

    barrier = threading.Barrier(16)

    def reserve(_):
        barrier.wait()
        return asker.reserve(POLICY, "tokens", "python", cost=1000, expires_after=600)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(reserve, range(16)))
    ids = [answer.id for answer in answers if answer]
    print("reserved", len(ids), "ids", len(set(ids)), "without", sum(answer.id is None for answer in answers))
    print("settled", sum(asker.settle(id, 400) for id in ids))
    print("settled again", sum(asker.settle(id, 9000) for id in ids))
    with ThreadPoolExecutor(16) as pool:
        print("reserved", sum(map(bool, pool.map(reserve, range(16)))))

    with asker.reserving(POLICY, "tokens", "other", cost=1000) as reservation:
        reservation.used = 420
    print("left", asker.allow(POLICY, "tokens", "other", cost=0).remaining)

    asker.reserve(POLICY, "tokens", "third")
    print("default", asker.allow(POLICY, "tokens", "third", cost=0).remaining)

    # The work is done, whatever becomes of its settlement.
    with asker.reserving(POLICY, "tokens", "lost", cost=1) as reservation:
        reservation.id = "none"
    assert "404" in reservation.failure, reservation

    jobs = [asker.reserve(POLICY, "jobs", "python") for _ in range(3)]
    print("jobs", *(word(job.allowed) for job in jobs))
    print("settled", word(asker.settle(jobs[0].id)))
    print("job", word(asker.reserve(POLICY, "jobs", "python").allowed))

    print(problem(lambda: asker.allow("shop/other", "per-customer", "python")))
    print(problem(lambda: asker.allow(POLICY, "per-customer", "python", "more")))
    print(problem(lambda: asker.settle("none")))


def nobody(url, timeout):
    for fail_open in (True, False):
        asker = Asker(url, timeout=timeout, fail_open=fail_open)
        for answer in (asker.allow(POLICY, "per-customer", "python"), asker.reserve(POLICY, "tokens", "python", cost=1000)):
            print("nobody", word(answer.allowed), word(answer.answered), word(answer.id is None))


def script(url):
    def token(text):
        with open("token", "w", encoding="ascii") as file:
            file.write(text + "\n")

    asker = Asker(url + "/prefix/", token_file="token", timeout=60, fail_open=False)
    token("one")
    print("settled", word(asker.settle("some", 400)))
    token("two")
    print("allow", word(asker.allow(POLICY, "per-customer", "python", cost=2).allowed))
    print("allow", word(asker.allow(POLICY, "per-customer", "python").answered))
    print(problem(lambda: asker.reserve(POLICY, "tokens", "python", cost=7, expires_after=600)))


if len(sys.argv) == 2:
    script(sys.argv[1])
else:
    service(sys.argv[1])
    nobody(sys.argv[2], 60)
    nobody(sys.argv[3], 0.5)
