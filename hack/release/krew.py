#!/usr/bin/env python3
"""krew.py VERSION FOLDER: print the manifest of the kubectl plugin `sluice` for krew, of the archives in a folder.

An archive is named sluice-VERSION-OS-ARCHITECTURE.tar.gz. Platforms without an archive are left out.
"""

import hashlib
import sys
from pathlib import Path

PLATFORMS = Path(__file__).resolve().parent / "platforms.txt"
RELEASES = "https://github.com/sluice-dev/sluice/releases/download"
HEAD = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: sluice
spec:
  version: v{version}
  homepage: https://github.com/sluice-dev/sluice
  shortDescription: Check rate limit policies
  description: |
    Checks manifests of RateLimitPolicy with the code of the operator's admission, and runs the proxy in front of any
    application without Kubernetes.
  platforms:
"""
PLATFORM = """\
  - selector:
      matchLabels:
        os: {os}
        arch: {architecture}
    uri: {releases}/v{version}/{name}
    sha256: {sha256}
    bin: sluice
"""


def manifest(version, folder, platforms):
    text = HEAD.format(version=version)
    for platform in platforms:
        archive = folder / f"sluice-{version}-{platform}.tar.gz"
        if archive.exists():
            os, architecture = platform.split("-")
            sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
            text += PLATFORM.format(
                os=os, architecture=architecture, releases=RELEASES, version=version, name=archive.name, sha256=sha256
            )
    return text


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: krew.py VERSION FOLDER")
    lines = PLATFORMS.read_text().splitlines()
    platforms = [line.split()[0] for line in lines if line and not line.startswith("#")]
    text = manifest(sys.argv[1], Path(sys.argv[2]), platforms)
    if not text.count("selector"):
        sys.exit(f"krew.py: {sys.argv[2]} has no archive of version {sys.argv[1]}")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
