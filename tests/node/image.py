#!/usr/bin/env python3
"""Build a container image from files of this machine, without a registry, a daemon or root.

    image.py NAME:TAG OUT.tar [options]

The output is a docker-archive, which `ctr images import`, `podman load` and `docker load` accept. Equal files produce
equal bytes.
"""
import argparse
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name")
    p.add_argument("out")
    p.add_argument("--bin", action="append", default=[], metavar="HOST[:DEST]",
                   help="a program, with every shared library it loads")
    p.add_argument("--file", action="append", default=[], metavar="HOST:DEST")
    p.add_argument("--dir", action="append", default=[], metavar="DEST[:MODE]")
    p.add_argument("--env", action="append", default=[], metavar="K=V")
    p.add_argument("--entrypoint", default="", metavar="A,B")
    p.add_argument("--cmd", default="", metavar="A,B")
    p.add_argument("--user", default="", metavar="UID[:GID]")
    p.add_argument("--workdir", default="")
    return p.parse_args()


class Layer:
    def __init__(self):
        self.entries = {}  # path -> (content, or None for a directory; mode)

    def add_dir(self, dest, mode=0o755):
        self._parents(dest)
        self.entries[dest.strip("/")] = (None, mode)

    def add_file(self, host, dest):
        self._parents(dest)
        with open(host, "rb") as f:  # follows links: the image holds the content under the given name
            self.entries[dest.strip("/")] = (f.read(), 0o755 if os.access(host, os.X_OK) else 0o644)

    def add_program(self, host, dest):
        self.add_file(host, dest)
        ldd = subprocess.run(["ldd", os.path.realpath(host)], capture_output=True, text=True)
        for library in re.findall(r"(/\S+) \(0x", ldd.stdout):  # empty for a static program
            self.add_file(library, library)

    def _parents(self, dest):
        parts = dest.strip("/").split("/")
        for i in range(1, len(parts)):
            self.entries.setdefault("/".join(parts[:i]), (None, 0o755))


def tar(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as t:
        for path, (content, mode) in entries:
            info = tarfile.TarInfo(path)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            t.addfile(info, None if content is None else io.BytesIO(content))
    return buffer.getvalue()


def digest(data):
    return hashlib.sha256(data).hexdigest()


def main():
    a = arguments()
    layer = Layer()
    for spec in a.bin:
        host, _, dest = spec.partition(":")
        layer.add_program(host, dest or host)
    for spec in a.file:
        layer.add_file(*spec.split(":", 1))
    for spec in a.dir:
        dest, _, mode = spec.partition(":")
        layer.add_dir(dest, int(mode or "755", 8))
    blob = tar(sorted(layer.entries.items()))

    run = {"Env": [PATH] + a.env}
    if a.entrypoint:
        run["Entrypoint"] = a.entrypoint.split(",")
    if a.cmd:
        run["Cmd"] = a.cmd.split(",")
    if a.user:
        run["User"] = a.user
    if a.workdir:
        run["WorkingDir"] = a.workdir
    config = json.dumps({
        "architecture": ARCHITECTURES[platform.machine()], "os": "linux", "created": "1970-01-01T00:00:00Z",
        "config": run, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(blob)]},
        "history": [{"created_by": "image.py"}],
    }).encode()
    config_name, layer_name = digest(config) + ".json", digest(blob) + "/layer.tar"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [a.name], "Layers": [layer_name]}]).encode()
    archive = tar([(config_name, (config, 0o644)), (layer_name, (blob, 0o644)), ("manifest.json", (manifest, 0o644))])

    partial = f"{a.out}.{os.getpid()}"
    with open(partial, "wb") as f:
        f.write(archive)
    os.replace(partial, a.out)  # a reader sees the old image or the new one, never a part


main()
