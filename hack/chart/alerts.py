"""Tests the alerts of the chart with promtool, from alerts_test.yaml. Each alert is given to rules without and with a label of
clusters:

- it fires at its time, and not before, and no other alert does;
- of two clusters, it fires for its own;
- a while after all targets are gone, only SluiceOperatorHasNoLeader fires, for every cluster, or for the one whose are gone.

In a healthy cluster in which pods start, no alert fires at any time.
"""
import json
import pathlib
import re

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LABEL, CLUSTERS = "cluster", ("one", "two")
# Minutes of a healthy cluster, and until nothing is left of targets in any window but that of a day.
LENGTH, GONE = 70, 60
NO_LEADER = "SluiceOperatorHasNoLeader"


def minutes(text):
    return int(text.removesuffix("m"))


def metric(series):
    return series.split("{")[0]


def values(text, length):
    """Returns the values of a healthy cluster, which have no end."""
    return f"0{text}x{length}" if text.startswith("+") else f"{text}x{length}"


def cluster(tests, series, label, length=LENGTH):
    """Returns the series of a cluster: a healthy one but for these."""
    own = {metric(name) for name in series}
    healthy = {name: values(text, length) for name, text in tests["healthy"].items() if metric(name) not in own}
    both = {**healthy, **series}
    if label:
        # Objects of two clusters never have the same UID.
        both = {name.replace("{", f'{{{LABEL}="{label}",', 1).replace('uid="', f'uid="{label}-'): text for name, text in both.items()}
    return [{"series": name, "values": text} for name, text in both.items()]


def starting(tests):
    """Returns the series of a healthy cluster in which pods start."""
    return {**{name: values(text, LENGTH) for name, text in tests["healthy"].items()}, **tests["starting"]}


def expected(alert, label):
    """Returns how an alert fires."""
    prefix = f"{label}: " if label else ""
    labels = {**alert["labels"], **({LABEL: label} if label else {})}
    return {"exp_labels": labels, "exp_annotations": {"summary": prefix + alert["summary"]}}


def case(name, series, alerts, times):
    """Returns a test of promtool. `times` gives what fires at a time: lists by the alerts' names."""
    checks = [
        {"alertname": alert["alert"], "eval_time": f"{time}m", "exp_alerts": fires.get(alert["alert"], [])}
        for time, fires in times.items()
        for alert in alerts
    ]
    return {"name": name, "interval": "1m", "input_series": series, "alert_rule_test": checks}


def cases(tests, clusters):
    """Yields the tests of rules that know these clusters, or a single one without a label: None."""
    alerts = tests["alerts"]
    leader = next(alert for alert in alerts if alert["alert"] == NO_LEADER)
    for alert in alerts:
        silent, fires = minutes(alert["silent"]), minutes(alert["fires"])
        series = cluster(tests, alert["series"], clusters[0], fires)
        for other in clusters[1:]:
            series += cluster(tests, {}, other, fires)
        name = alert["alert"]
        gone = {NO_LEADER: [expected(leader, label) for label in clusters]}
        last = max(length(one["values"]) for one in series) + GONE
        times = {silent: {}, fires: {name: [expected(alert, clusters[0])]}, last: gone}
        yield case(f"{name} {clusters}", series, alerts, times)
    series = [one for label in clusters for one in cluster(tests, starting(tests), label)]
    yield case(f"pods start {clusters}", series, alerts, {time: {} for time in range(5, LENGTH)})
    gone, *left = clusters
    series = cluster(tests, {}, gone, LENGTH // 2) + [one for label in left for one in cluster(tests, {}, label)]
    yield case(f"{gone} is gone", series, alerts, {LENGTH // 2: {}, LENGTH: {NO_LEADER: [expected(leader, gone)]}})


def length(text):
    """Returns the number of minutes of values in promtool's notation."""
    repeated = [re.search(r"x(\d+)$", part) for part in text.split()]
    return sum(int(number[1]) + 1 if number else 1 for number in repeated)


def rules(render, *options):
    """Returns the groups of rules that the chart makes with these options."""
    ok, text = render(None, "1.37.0", "--set=monitoring.prometheusRule.enabled=true", *options)
    if not ok:
        raise RuntimeError(text)
    objects = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "PrometheusRule"]
    return objects[0]["spec"]


def alerts_of(spec):
    return {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"]}


def problems(render, run, directory):
    """Yields what is wrong with the alerts. `render` renders the chart, and `run` runs a command."""
    directory = pathlib.Path(directory)
    tests = yaml.safe_load((HERE / "alerts_test.yaml").read_text())
    option = "--set=monitoring.prometheusRule."
    optional = json.loads((ROOT / "charts/sluice/values.schema.json").read_text())["properties"]["monitoring"]
    optional = optional["properties"]["prometheusRule"]["properties"]["optional"]["items"]["enum"]
    every = option + "optional={" + ",".join(optional) + "}"
    for clusters, more in [((None,), []), (CLUSTERS, [f"{option}clusterLabel={LABEL}"])]:
        spec = rules(render, every, *more)
        (directory / "rules.yaml").write_text(yaml.safe_dump(spec))
        ok, text = run("promtool", "check", "rules", f"{directory}/rules.yaml")
        if not ok:
            yield f"promtool check rules: {text}"
        for rule in alerts_of(spec).values():
            # The tests leave out what would only repeat the text.
            rule["annotations"] = {"summary": rule["annotations"]["summary"]}
        (directory / "rules.yaml").write_text(yaml.safe_dump(spec))
        test = {"rule_files": [f"{directory}/rules.yaml"], "evaluation_interval": "1m"}
        test["tests"] = list(cases(tests, clusters))
        (directory / "test.yaml").write_text(yaml.safe_dump(test))
        ok, text = run("promtool", "test", "rules", f"{directory}/test.yaml")
        if not ok:
            yield f"promtool test rules: {text}"
    names = alerts_of(spec).keys()
    for what, found in [
        ("by default there are", alerts_of(rules(render)).keys() | set(optional)),
        ("hack/chart/alerts_test.yaml tests", {alert["alert"] for alert in tests["alerts"]}),
        ("docs/alerts.md describes", set(re.findall(r"^## (Sluice\w+)$", (ROOT / "docs/alerts.md").read_text(), re.M))),
    ]:
        if found != names:
            yield f"{what} other alerts than there are: {sorted(found ^ names)}"
    if set(optional) & alerts_of(rules(render)).keys():
        yield "an optional alert is on by default"
    before = rules(render, every)
    thresholds = yaml.safe_load((ROOT / "charts/sluice/values.yaml").read_text())["monitoring"]["prometheusRule"]["thresholds"]
    for name, value in thresholds.items():
        if rules(render, every, f"{option}thresholds.{name}={value * 1.1}") == before:
            yield f"no alert uses the threshold {name}"
