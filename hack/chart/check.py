#!/usr/bin/env python3
"""Checks the chart: renders it with the defaults and with every file of hack/chart/values, for every Kubernetes version
that it supports, and reads what comes out.

- `helm lint --strict`
- the schemas of Kubernetes, and the Go types of the Prometheus operator and of cert-manager
- kube-score, whose findings must be the listed ones
- promtool, for the alerts (alerts.py)
- what the values of the service lead to
- the values that must be refused
"""
import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import importlib_resources
import jsonschema
import referencing
import yaml

import alerts

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSIONS = [f"1.{minor}.0" for minor in range(30, 38)]
# Groups whose objects the Go types check.
OTHER_GROUPS = ("monitoring.coreos.com", "cert-manager.io")
# Flags of a service with TLS.
TLS = {"--callers-file", "--tls-cert-file", "--tls-key-file"}
# First line of a values file: kinds that the API server has, beside those of Kubernetes.
APIS = "# apis: "

problems = []


def run(*command, text=""):
    """Runs a command, and returns whether it succeeded and its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def render(case, version, *more):
    """Renders the chart with a values file, or with the defaults."""
    apis = [f"--api-versions={api}" for api in apis_of(case)]
    values = [f"--values={case}"] if case else []
    command = ["helm", "template", "sluice", "charts/sluice", "--namespace=sluice-system"]
    return run(*command, f"--kube-version={version}", *apis, *values, *more)


def apis_of(case):
    first = case.read_text().split("\n", 1)[0] if case else ""
    return first.removeprefix(APIS).split() if first.startswith(APIS) else []


@functools.cache
def validator(version, kind, api_version):
    """Returns the strict schema of a kind."""
    group, _, number = api_version.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.split(".")[0], number]))
    files = importlib_resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")
    folder = next(f for f in files.iterdir() if f.name.startswith(f"v{version[:4]}.") and f.name.endswith("-strict"))
    schema = json.loads(folder.joinpath(f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=definitions(folder))


@functools.cache
def definitions(folder):
    text = folder.joinpath("_definitions.json").read_text()
    return referencing.Resource.from_contents(json.loads(text)) @ referencing.Registry()


def schema_problems(version, document):
    """Yields what the API server of a version would find wrong with an object."""
    object = f"{document['kind']} {document['metadata']['name']}"
    try:
        schema = validator(version, document["kind"], document["apiVersion"])
    except FileNotFoundError:
        yield f"{object}: Kubernetes {version} has no {document['apiVersion']}"
        return
    for error in schema.iter_errors(document):
        yield f"{object}: Kubernetes {version}: {error.json_path}: {error.message[:200]}"


def check_objects(case, name):
    """Checks the objects that a values file gives, for all versions. Equal objects are checked once a version."""
    for version in VERSIONS:
        ok, text = render(case, version)
        if not ok:
            problems.append(f"{name}, Kubernetes {version}: {text}")
            continue
        documents = [document for document in yaml.safe_load_all(text) if document]
        for document in documents:
            if document["apiVersion"].split("/")[0] not in OTHER_GROUPS:
                problems.extend(f"{name}: {problem}" for problem in schema_problems(version, document))
        names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
        problems.extend(f"{name}: two objects are {twice}" for twice in set(names) if names.count(twice) > 1)
    foreign = [document for document in documents if document["apiVersion"].split("/")[0] in OTHER_GROUPS]
    ok, count = run("types", text=yaml.safe_dump_all(foreign))
    if not ok:
        problems.append(f"{name}: {count}")
    elif int(count) != len(foreign):
        problems.append(f"{name}: {len(foreign)} objects of other groups, but types read {count}")


def check_score():
    """Compares the findings of kube-score with the listed ones."""
    _, text = render(HERE / "values/everything.yaml", VERSIONS[-1])
    command = ["kube-score", "score", "--kubernetes-version=v1.37", "--output-format=json", "-"]
    _, report = run(*command, text=text)
    found = set()
    for object in json.loads(report[: report.rindex("]") + 1]):
        name = f"{object['type_meta']['kind']} {object['object_meta']['name']}"
        for check in object["checks"]:
            if not check["skipped"] and check["grade"] < 10:
                found.update(f"{name}: {comment['summary']}" for comment in check["comments"] or [])
    listed = {finding for reason in yaml.safe_load((HERE / "exceptions.yaml").read_text()) for finding in reason["findings"]}
    problems.extend(f"kube-score: {finding}" for finding in sorted(found - listed))
    problems.extend(f"hack/chart/exceptions.yaml lists what kube-score does not find: {old}" for old in sorted(listed - found))


def check_refusals():
    """Values that would be a mistake must be refused, with a reason."""
    for refused in yaml.safe_load((HERE / "refused.yaml").read_text()):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(refused["values"], file)
            file.flush()
            ok, text = render(None, VERSIONS[-1], f"--values={file.name}")
        if ok or refused["reason"] not in text:
            problems.append(f"{refused['values']} should be refused with {refused['reason']!r}: {text[-300:]}")


def scalars(values, path=()):
    """Yields the paths of all values that have a default and no values of their own."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from scalars(value, (*path, key))
        elif value != "" and not isinstance(value, list):
            yield (*path, key)


def emptied(before, after, path=""):
    """Yields the fields that had a value before, and have an empty one after."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() & after.keys():
            yield from emptied(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for at, (one, other) in enumerate(zip(before, after)):
            yield from emptied(one, other, f"{path}[{at}]")
    elif before not in (None, "") and after in (None, ""):
        yield path


def check_nulls():
    """In Helm, null removes a default. It must leave no field empty: either nothing needs the value, or it is refused."""
    def objects(*more):
        ok, text = render(HERE / "values/everything.yaml", VERSIONS[-1], "--set=service.autoscaling.enabled=false", *more)
        named = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text) if d} if ok else {}
        return ok, text, named

    _, _, before = objects()
    for path in scalars(yaml.safe_load((ROOT / "charts/sluice/values.yaml").read_text())):
        key = ".".join(part.replace(".", "\\.") for part in path)
        ok, text, after = objects(f"--set={key}=null")
        empty = [f"{name} {field}" for name, found in after.items() for field in emptied(before.get(name), found)]
        if empty or not ok and path[-1] not in text:
            problems.append(f"{key}: null: {empty or text[-300:]}")


def check_alerts():
    with tempfile.TemporaryDirectory() as directory:
        problems.extend(alerts.problems(render, run, directory))


def check_users():
    """On OpenShift no pod may ask for a user. Elsewhere all have the same one."""
    openshift = HERE / "values/openshift.yaml"
    for case, more, users in [
        (None, "", {65532}),
        (openshift, "", {None}),
        (openshift, "--set=compatibility.openshift=false", {65532}),
        (None, "--set=compatibility.openshift=true", {None}),
    ]:
        _, text = render(case, VERSIONS[-1], *filter(None, [more]))
        specs = [d["spec"] for d in yaml.safe_load_all(text) if d and d["kind"] in ("Deployment", "Pod")]
        pods = [spec.get("template", {"spec": spec})["spec"] for spec in specs]
        found = {pod["securityContext"].get(key) for pod in pods for key in ("runAsUser", "runAsGroup", "fsGroup")}
        environment = {e["name"] for pod in pods for c in pod["containers"] for e in c.get("env", [])}
        if found != users or ("SLUICE_SIDECAR_PLATFORM_USER" in environment) != (users == {None}):
            problems.append(f"{case} {more}: pods have the users {found}, sidecars have others")


def told(name):
    """Returns what the service and the operator are told with a values file, and the objects beside them."""
    _, text = render(HERE / f"values/{name}.yaml", VERSIONS[-1])
    documents = [document for document in yaml.safe_load_all(text) if document]
    of = lambda kind, end: next((d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(end)), None)
    container = lambda deployment: deployment["spec"]["template"]["spec"]["containers"][0]
    deployment, scaler, policy = of("Deployment", "-service"), of("HorizontalPodAutoscaler", "-service"), of("NetworkPolicy", "-service")
    pod = deployment["spec"]["template"]
    callers = of("ConfigMap", "-callers")
    return {
        "flags": {argument.partition("=")[0] for argument in container(deployment)["args"]} & {"--insecure", "--client-ca-file", *TLS},
        "certificate": next((v["secret"]["secretName"] for v in pod["spec"]["volumes"] if v["name"] == "tls"), None),
        "callers": callers and yaml.safe_load(callers["data"]["callers.yaml"])["callers"],
        "labels": [pod["metadata"]["labels"].get(f"sluice.dev/{label}") for label in ("component", "inject")],
        "replicas": (deployment["spec"].get("replicas"), scaler and scaler["spec"]["minReplicas"]),
        "protocol": of("Service", "sluice-service")["spec"]["ports"][0].get("appProtocol"),
        # The last one is the pod of `helm test`.
        "clients": policy and (policy["spec"]["ingress"][0].get("from") or [])[:-1],
        "operator": {
            variable["name"].removeprefix("SLUICE_"): variable["value"]
            for variable in container(of("Deployment", "-operator"))["env"]
            if variable["name"].startswith(("SLUICE_SERVICE_", "SLUICE_DOMAINS"))
        },
        "rights": [r["verbs"] for r in of("Role", "-operator")["rules"] if "sluice-service-tls" in r.get("resourceNames", [])],
    }


def check_service():
    """What the service and the operator are told must follow from the values of the service."""
    usual = {
        "flags": TLS, "callers": [], "labels": ["service", "false"], "replicas": (2, None), "protocol": None, "clients": None,
        "operator": {"SERVICE_ACCOUNT": "sluice-service"}, "rights": [],
    }
    everything = yaml.safe_load((HERE / "values/everything.yaml").read_text())["service"]
    insecure = yaml.safe_load((HERE / "values/service-insecure.yaml").read_text())["service"]
    for name, different in {
        "service": {
            "certificate": "sluice-service-tls", "rights": [["get", "patch"]],
            "operator": {"SERVICE_ACCOUNT": "sluice-service", "SERVICE_CERTIFICATE": "true"},
        },
        "service-secret": {
            "certificate": "gateway-tls",
            "callers": [{"subject": "gateways/envoy", "namespaces": ["*"], "domains": []}],
        },
        "service-insecure": {
            "certificate": None, "flags": {"--insecure"}, "callers": None, "replicas": (1, None),
            "protocol": "kubernetes.io/h2c", "clients": insecure["networkPolicy"]["from"],
        },
        "cert-manager": {"certificate": "sluice-service-serving"},
        "everything": {
            "certificate": "rates-service-serving", "flags": TLS | {"--client-ca-file"}, "replicas": (None, 3),
            "callers": [{"domains": [], **caller} for caller in everything["callers"]],
            "clients": everything["networkPolicy"]["from"],
            "operator": {"SERVICE_ACCOUNT": "sluice-service", "DOMAINS": "edge=shop,edge=accounts,edge/mobile=shop"},
        },
    }.items():
        expected, found = {**usual, **different}, told(name)
        problems.extend(f"{name}: service: {key} is {found[key]}, not {expected[key]}" for key in found if found[key] != expected[key])
    _, text = render(None, VERSIONS[-1])
    if "sluice-service" in text or "SLUICE_SERVICE" in text:
        problems.append("the defaults install the service")


def check_metadata():
    """The texts for Artifact Hub must be YAML, and name the CustomResourceDefinitions that there are."""
    chart = yaml.safe_load((ROOT / "charts/sluice/Chart.yaml").read_text())
    for missing in {"icon", "maintainers", "sources", "keywords"} - chart.keys():
        problems.append(f"Chart.yaml has no {missing}")
    read = lambda name: yaml.safe_load(chart["annotations"][f"artifacthub.io/{name}"])
    files = [yaml.safe_load(file.read_text()) for file in (ROOT / "charts/sluice/files/crds").glob("*.yaml")]
    listed = {(crd["name"], crd["kind"], crd["version"]) for crd in read("crds")}
    present = {(f["metadata"]["name"], f["spec"]["names"]["kind"], v["name"]) for f in files for v in f["spec"]["versions"]}
    if listed != present:
        problems.append(f"Chart.yaml lists other CustomResourceDefinitions than there are: {sorted(listed ^ present)}")
    if not all(link["url"].startswith("https://") for link in read("links")):
        problems.append("Chart.yaml has a link without https")
    schemas = {f["spec"]["names"]["kind"]: f["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for f in files}
    for example in read("crdsExamples"):
        for error in jsonschema.Draft202012Validator(schemas[example["kind"]]).iter_errors(example):
            problems.append(f"Chart.yaml: the example is not valid: {error.json_path}: {error.message}")


def check_health():
    """The reasons that the health check for Argo CD knows must be reasons of the operator."""
    conditions = (ROOT / "crds/src/conditions.rs").read_text()
    used = set(re.findall(r'reason == "(\w+)"', (ROOT / "hack/argocd/health.lua").read_text()))
    unknown = [reason for reason in sorted(used) if f'"{reason}"' not in conditions]
    if unknown or not used:
        problems.append(f"hack/argocd/health.lua has reasons that no condition has: {unknown}")


def check_itself():
    """A check that finds nothing in a wrong object would be worth nothing."""
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"port": []}}
    if not list(schema_problems(VERSIONS[0], document)):
        problems.append("the schemas do not find an unknown field")
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {"name": "a"}, "spec": {"a": 1}}
    if run("types", text=json.dumps(monitor))[0]:
        problems.append("the Go types do not find an unknown field")


def main():
    check_itself()
    for case in [None, *sorted((HERE / "values").glob("*.yaml"))]:
        name = case.name if case else "the defaults"
        values = [f"--values={case}"] if case else []
        ok, text = run("helm", "lint", "--strict", "charts/sluice", f"--kube-version={VERSIONS[-1]}", *values)
        if not ok:
            problems.append(f"{name}: {text}")
        check_objects(case, name)
    check_score()
    check_users()
    check_service()
    check_metadata()
    check_health()
    check_alerts()
    check_refusals()
    check_nulls()
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
