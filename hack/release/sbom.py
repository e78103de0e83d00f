#!/usr/bin/env python3
"""sbom.py --target TRIPLE --output FOLDER [--artifacts FILE] PACKAGE...: write FOLDER/BINARY.cdx.json for each package.
sbom.py --check SCHEMAS: compare the SBOMs of all platforms with the units that cargo would compile, and validate them
    with the schemas in this folder. jsonschema-rs must be importable: hack/sbom-check.sh.

An SBOM lists what is linked into a binary, as CycloneDX 1.5: the crates, Rust's standard library, and the C libraries of
a static binary. It lists neither procedural macros nor crates that only build scripts, tests or other platforms use.

The crates are those of `cargo tree`. Generators that read `cargo metadata` list more: it does not tell which features a
build for one target has. The packages of one call are built together, so cargo unifies their features.

--artifacts is the output of `cargo build --message-format=json`. The crates that it compiled for the target must be those
of the SBOMs. --check makes the same comparison for each binary, with cargo's unit graph, which needs no build.

For one commit, and one version of the C libraries, the output is always the same.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent.parent
REPOSITORY = "https://github.com/sluice-dev/sluice"
# What hack/binaries.sh builds together, and what it builds for platforms that run no containers.
LINUX_PACKAGES = ["sluice-operator", "sluice-sidecar", "sluice-service", "sluice"]
OTHER_PACKAGES = ["sluice"]
SCHEMAS = [f"{name}.SNAPSHOT.schema.json" for name in ("bom-1.5", "spdx", "jsf-0.82")]


def run(*command, env=None):
    process = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"sbom.py: failed: {' '.join(command)}")
    return process.stdout


def cargo_options(target, packages):
    return ["--locked", "--target", target, *(option for package in packages for option in ("-p", package))]


def parse_tree(lines):
    """The graph in the output of `cargo tree --prefix depth --format ' {p}'`, as names and versions.

    cargo prints the dependencies of a package once, and marks its repetitions.
    """
    graph, path = {}, []
    for line in lines:
        match = re.fullmatch(r"(\d+) (\S+) v(\S+)( .*)?", line)
        if not match:
            continue
        depth, crate = int(match[1]), (match[2], match[3])
        path[depth:] = [crate]
        graph.setdefault(crate, set())
        if depth:
            graph[path[depth - 1]].add(crate)
    return graph


def closure(graph, start):
    found, waiting = set(), [start]
    while waiting:
        crate = waiting.pop()
        if crate not in found:
            found.add(crate)
            waiting.extend(graph[crate])
    return found


def linked_units(units, roots, binary):
    """The package ids of the units that are linked into a binary, by cargo's unit graph."""

    def linked(unit):
        # Build scripts and procedural macros are for the host, which has no platform here.
        return unit["platform"] and unit["mode"] == "build" and "proc-macro" not in unit["target"]["kind"]

    waiting = [i for i in roots if units[i]["target"]["kind"] == ["bin"] and units[i]["target"]["name"] == binary]
    seen = set()
    while waiting:
        index = waiting.pop()
        if index not in seen:
            seen.add(index)
            waiting.extend(d["index"] for d in units[index]["dependencies"] if linked(units[d["index"]]))
    return {units[i]["pkg_id"] for i in seen}


class Workspace:
    """What cargo knows of the packages, for one target and the packages that are built together."""

    def __init__(self, target, packages):
        self.target, self.packages = target, packages
        metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1"))
        self.details = {(p["name"], p["version"]): p for p in metadata["packages"]}
        if len(self.details) != len(metadata["packages"]):
            sys.exit("sbom.py: two packages have the same name and version")
        self.ids = {p["id"]: key for key, p in self.details.items()}
        lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
        self.checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
        tree = ["cargo", "tree", "-e", "normal,no-proc-macro", "--prefix", "depth", "--format", " {p}"]
        self.graph = parse_tree(run(*tree, *cargo_options(target, packages)).splitlines())

    def crate(self, name):
        """The package of the workspace with this name."""
        return next(key for key in self.graph if key[0] == name and self.details[key]["source"] is None)


def git(*arguments):
    process = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process.stdout.strip() if process.returncode == 0 else ""


def purl(details, revision):
    if details["source"] is None:
        # Not pkg:cargo: crates of other projects may have these names there.
        folder = Path(details["manifest_path"]).parent.relative_to(ROOT)
        return f"pkg:github/sluice-dev/sluice@{revision}#{folder}"
    return f"pkg:cargo/{details['name']}@{quote(details['version'], safe='')}"


def component(details, checksum, revision):
    reference = purl(details, revision)
    found = {
        "type": "library",
        "bom-ref": reference,
        "name": details["name"],
        "version": details["version"],
        "scope": "required",
        "purl": reference,
    }
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if details["license"]:
        # Older crates separate alternatives by a slash.
        found["licenses"] = [{"expression": details["license"].replace("/", " OR ")}]
    if details["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": details["repository"]}]
    return found


def standard_library():
    version = re.search(r"^release: (\S+)$", run("rustc", "-vV"), re.MULTILINE)[1]
    reference = f"pkg:github/rust-lang/rust@{version}#library/std"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": "std",
        "version": version,
        "description": "Rust's standard library, with the crates that it contains",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "purl": reference,
    }


def c_libraries(target):
    """The packages of the C libraries in a static binary, and whether all are known. They need dpkg."""
    if "-linux-" not in target:
        return [], True
    linker = os.environ.get(f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER", "cc")
    found = {}
    for library in ("libc.a", "libgcc_eh.a"):
        try:
            path = Path(subprocess.check_output([linker, f"-print-file-name={library}"], text=True).strip()).resolve()
            owner = subprocess.check_output(["dpkg", "-S", path], text=True, stderr=subprocess.DEVNULL).split(": ")[0]
            fields = "${Package} ${Version} ${Architecture} ${source:Package} ${source:Version}"
            facts = subprocess.check_output(["dpkg-query", "-W", "-f", fields, owner], text=True).split()
        except (OSError, subprocess.CalledProcessError):
            return [], False
        name, version, architecture, source, source_version = facts
        system = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.MULTILINE))
        reference = f"pkg:deb/{system['ID']}/{name}@{quote(version, safe='')}?arch={architecture}"
        reference += f"&distro={system['ID']}-{system.get('VERSION_ID', '')}"
        found[name] = {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "description": f"The static library {library}, of the source package {source} {source_version}",
            "purl": reference,
        }
    return list(found.values()), True


def document(workspace, binary):
    """The SBOM of a binary. Its serial number follows from its content."""
    commit, time = git("rev-parse", "HEAD"), git("log", "-1", "--format=%ct")
    main = workspace.crate(binary)
    revision = commit or f"v{main[1]}"
    crates = closure(workspace.graph, main)
    reference = lambda key: purl(workspace.details[key], revision)
    described = {key: component(workspace.details[key], workspace.checksums[key], revision) for key in crates}
    native, complete = c_libraries(workspace.target)
    native = [standard_library(), *native]
    dependencies = {reference(key): {reference(other) for other in workspace.graph[key]} for key in crates}
    dependencies[reference(main)] |= {library["bom-ref"] for library in native}
    dependencies |= {library["bom-ref"]: set() for library in native}
    application = described.pop(main) | {"type": "application", "licenses": [{"expression": "Apache-2.0"}]}
    del application["scope"]
    content = {
        "metadata": {
            **({"timestamp": datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")} if time else {}),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "hack/release/sbom.py", "version": main[1]}]},
            "component": application,
            "properties": [{"name": "dev.sluice:target", "value": workspace.target}],
        },
        "components": sorted([*described.values(), *native], key=lambda c: c["bom-ref"]),
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(dependencies.items())],
        "compositions": [{"aggregate": "complete" if complete else "incomplete", "dependencies": [reference(main)]}],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{REPOSITORY}#{digest}')}",
        "version": 1,
        **content,
    }


def crates_of(sbom):
    """The names and versions of the crates in an SBOM, its own included."""
    crate = lambda c: c["purl"].startswith(("pkg:cargo/", "pkg:github/sluice-dev/sluice@"))
    return {(c["name"], c["version"]) for c in [sbom["metadata"]["component"], *sbom["components"]] if crate(c)}


def compiled(messages, target, ids):
    """The packages of which cargo has compiled a library or a binary for the target, by the messages of a build."""
    found = set()
    for line in messages:
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and "custom-build" not in message["target"]["kind"]:
            if any(f"/{target}/" in file for file in message["filenames"]):
                found.add(ids[message["package_id"]])
    return found


def difference(listed, wanted):
    """What one set of crates lacks and has too much, as text. Empty if they are equal."""
    text = lambda crates: ", ".join(f"{name} {version}" for name, version in sorted(crates))
    parts = (("lacks", wanted - listed), ("has too much:", listed - wanted))
    return "; ".join(f"{verb} {text(crates)}" for verb, crates in parts if crates)


def write(options):
    workspace = Workspace(options.target, options.packages)
    documents = {package: document(workspace, package) for package in options.packages}
    if options.artifacts:
        with open(options.artifacts, encoding="utf-8") as messages:
            wanted = compiled(messages, options.target, workspace.ids)
        if problem := difference(set().union(*map(crates_of, documents.values())), wanted):
            sys.exit(f"sbom.py: the SBOMs differ from what was built for {options.target}: {problem}")
    options.output.mkdir(parents=True, exist_ok=True)
    for binary, sbom in documents.items():
        path = options.output / f"{binary}.cdx.json"
        path.write_text(json.dumps(sbom, indent=2, ensure_ascii=False) + "\n")
        # The images contain it, so its mode must not depend on the umask.
        path.chmod(0o644)


def platforms():
    lines = (ROOT / "hack/release/platforms.txt").read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def validator(schemas):
    """A function from a document to its violations of the schema of CycloneDX 1.5, as text."""
    import jsonschema_rs

    schema, *others = ((name, json.loads((schemas / name).read_text())) for name in SCHEMAS)
    # The schemas refer to each other by the names of these files.
    registry = jsonschema_rs.Registry([(f"http://cyclonedx.org/schema/{name}", other) for name, other in others])
    validate = jsonschema_rs.validator_for(schema[1], registry=registry, validate_formats=True)
    return lambda sbom: "; ".join(f"{list(error.instance_path)}: {error.message}" for error in validate.iter_errors(sbom))


def check(schemas):
    violations, failed = validator(schemas), False
    for target in platforms().values():
        packages = LINUX_PACKAGES if "-linux-" in target else OTHER_PACKAGES
        workspace = Workspace(target, packages)
        # The unit graph is an unstable feature of cargo, which this variable allows. rust-toolchain.toml pins cargo.
        options = ["-Z", "unstable-options", "--unit-graph", "--release", *cargo_options(target, packages)]
        plan = json.loads(run("cargo", "build", *options, env={"RUSTC_BOOTSTRAP": "1"}))
        if plan["version"] != 1:
            sys.exit("sbom.py: cargo's unit graph has another version than 1")
        for binary in packages:
            sbom = document(workspace, binary)
            units = {workspace.ids[i] for i in linked_units(plan["units"], plan["roots"], binary)}
            problem = difference(crates_of(sbom), units) or violations(sbom)
            print(f"{binary} for {target}: {problem or f'{len(units)} crates'}")
            failed = failed or bool(problem)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, metavar="SCHEMAS")
    parser.add_argument("--target")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    options = parser.parse_args()
    if options.check:
        return check(options.check)
    if not (options.target and options.output and options.packages):
        parser.error("--target, --output and a PACKAGE are required")
    write(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
