#!/usr/bin/env python3
"""run.py [--jobs N] [--only MODULE]... [CARGO TEST ARGUMENT...]: build tests and run them side by side.

`cargo test` runs one program after another, and most tests wait: for real servers, for windows to end. Here each module of an
integration test is a process, as the tests of each library are. The arguments choose what is built, as for `cargo test`; examples in
doc comments are not run. Prints the results of each process when it ends, with all its output if it failed.
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
LONGEST = ["redis_differential", "sluice_models", "sidecar_managed", "chaos", "reconcile", "redis_topology", "admit_schema", "leases", "recipes", "redis_faults"]
# These measure the memory of a process under a limit, or have to send more in a second than a loaded machine can: nothing runs
# beside them.
ALONE = ["pressure", "proxy_store", "proxy_concurrency"]


class Group:
    """Tests of one process: all of a program, or those of a module."""

    def __init__(self, name, executable, folder, tests=()):
        self.name, self.executable, self.folder, self.tests = name, executable, folder, tests


def groups(name, executable, folder):
    """One for each module of a program."""
    listed = subprocess.run([executable, "--list"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    modules = {}
    for test in (line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")):
        module, inside, _ = test.partition("::")
        modules.setdefault(module if inside else name, []).append(test)
    return [Group(module, executable, folder, ["--exact", *tests]) for module, tests in modules.items()]


def build(arguments):
    """All groups of tests."""
    command = [os.environ.get("CARGO", "cargo"), "test", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    lines = done.stdout.splitlines()
    messages = (json.loads(line) for line in lines if line.startswith("{"))
    built = (
        (message["target"], message["executable"], Path(message["manifest_path"]).parent)
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    )
    return [
        group
        for target, executable, folder in built
        for group in (
            groups(target["name"], executable, folder)
            if target["kind"] == ["test"]
            else [Group(target["name"], executable, folder)]
        )
    ]


class Runner:
    def __init__(self):
        self.printing = threading.Lock()
        self.failed = []

    def run(self, group):
        start = time.monotonic()
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(group.folder)}
        done = subprocess.run([group.executable, *group.tests], cwd=group.folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        lines = done.stdout.splitlines()
        results = [line for line in lines if line.startswith("test result:")]
        with self.printing:
            if done.returncode:
                self.failed.append(group.name)
                print(*(line for line in lines if line not in results), sep="\n")
            for line in results or [f"test result: FAILED. 0 passed; 1 failed; status {done.returncode}"]:
                print(f"{line.split('; 0 measured')[0]}; {group.name}, {time.monotonic() - start:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # More than there are processors, because most of them wait.
    parser.add_argument("--jobs", type=int, metavar="N", default=(os.cpu_count() or 1) + 2)
    parser.add_argument("--only", action="append", default=[], metavar="MODULE")
    options, arguments = parser.parse_known_args()
    order = {name: n for n, name in enumerate(LONGEST)}
    chosen = [group for group in build(arguments) if not options.only or group.name in options.only]
    if unknown := set(options.only) - {group.name for group in chosen}:
        sys.exit(f"run.py: no module {', '.join(sorted(unknown))}")
    chosen.sort(key=lambda group: order.get(group.name, len(order)))
    runner = Runner()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(runner.run, (group for group in chosen if group.name not in ALONE)))
    for group in chosen:
        if group.name in ALONE:
            runner.run(group)
    if runner.failed:
        print(f"failed: {', '.join(sorted(runner.failed))}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
