#!/usr/bin/env python3
"""archive.py ARCHIVE FILE...: pack files into a .tar.gz, without folders. Equal files give equal archives.

They have the time of the commit, or of the epoch outside a checkout.
"""

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path


def pack(files, time):
    """The bytes of an archive of these files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in map(Path, files):
            entry = tarfile.TarInfo(file.name)
            entry.size, entry.mtime = file.stat().st_size, time
            entry.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            with file.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(raw.getvalue(), mtime=0)


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: archive.py ARCHIVE FILE...")
    git = subprocess.run(["git", "log", "-1", "--format=%ct"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    Path(sys.argv[1]).write_bytes(pack(sys.argv[2:], int(git.stdout or 0)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
