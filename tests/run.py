#!/usr/bin/env python3
"""run.py [--jobs N] [CARGO TEST ARGUMENT...]: build tests and run their binaries side by side.

`cargo test` runs one binary after another, and most of them wait: for real servers, for windows to end. The arguments choose what
is built, as for `cargo test`; examples in doc comments are not run. Prints the results of each binary when it ends, with all its output if it failed.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Those that take longest start first.
LONGEST = ["redis_differential", "sidecar_managed", "installation", "reconcile", "admit_schema", "chaos", "leases"]
# These measure the memory of a process under a limit, or have to send more in a second than a loaded machine can: nothing runs
# beside them.
ALONE = ["pressure", "proxy_store", "proxy_concurrency"]


def build(arguments):
    """The test binaries, each with the folder that it runs in."""
    command = [os.environ.get("CARGO", "cargo"), "test", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    lines = done.stdout.splitlines()
    messages = (json.loads(line) for line in lines if line.startswith("{"))
    return [
        (message["target"]["name"], message["executable"], Path(message["manifest_path"]).parent)
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    ]


class Runner:
    def __init__(self):
        self.printing = threading.Lock()
        self.failed = []

    def run(self, binary):
        name, executable, folder = binary
        start = time.monotonic()
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(folder)}
        done = subprocess.run([executable], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        lines = done.stdout.splitlines()
        results = [line for line in lines if line.startswith("test result:")]
        with self.printing:
            if done.returncode:
                self.failed.append(name)
                print(*(line for line in lines if line not in results), sep="\n")
            for line in results or [f"test result: FAILED. 0 passed; 1 failed; status {done.returncode}"]:
                print(f"{line.split('; 0 measured')[0]}; {name}, {time.monotonic() - start:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # One more than there are processors, because most of them wait.
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1)
    options, arguments = parser.parse_known_args()
    order = {name: n for n, name in enumerate(LONGEST)}
    binaries = sorted(build(arguments), key=lambda binary: order.get(binary[0], len(order)))
    runner = Runner()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(runner.run, (binary for binary in binaries if binary[0] not in ALONE)))
    for binary in binaries:
        if binary[0] in ALONE:
            runner.run(binary)
    if runner.failed:
        print(f"failed: {', '.join(sorted(runner.failed))}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
