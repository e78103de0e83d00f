#!/usr/bin/env python3
"""Writes the Grafana dashboards of the chart, charts/sluice/dashboards, from the panels below.

dashboards.py          write them
dashboards.py --check  fail if they are out of date
"""
import json
import pathlib
import sys

DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "charts/sluice/dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
OF_POLICY = 'policy_namespace=~"$namespace", policy=~"$policy"'


def rate(metric, *labels):
    return f"rate({metric}{{{', '.join(labels)}}}[$__rate_interval])"


def policy_rate(metric, *labels):
    return rate(metric, OF_POLICY, *labels)


def fleet_rate(metric, *labels):
    return rate(metric, 'namespace=~"$namespace"', *labels)


def of_policy(metric):
    return f"{metric}{{{OF_POLICY}}}"


def of_fleet(metric):
    return f'{metric}{{namespace=~"$namespace"}}'


def graph(title, description, *queries, unit="short"):
    """A time series. A query is a pair of an expression and the name of its lines."""
    return {"type": "timeseries", "title": title, "description": description, "queries": queries, "unit": unit}


def stat(title, description, query, unit="short"):
    return {"type": "stat", "title": title, "description": description, "queries": [(query, "")], "unit": unit}


def limits(expression):
    return f"sum by (policy_namespace, policy, limit) ({expression})"


DECISIONS = "sluice_decisions_total"
REJECTED = 'outcome=~"denied|blocked|shed"'
SHED = 'outcome="shed"'

POLICIES = {
    "Decisions": [
        graph(
            "Decisions",
            "Requests by outcome: admitted, denied by a limit, shed by an adaptive limit, or only counted because of Shadow.",
            (f"sum by (outcome) ({policy_rate(DECISIONS)})", "{{outcome}}"),
            unit="reqps",
        ),
        graph(
            "Rejected share by limit",
            "Part of the requests that a limit rejected: denied, blocked or shed.",
            (f"{limits(policy_rate(DECISIONS, REJECTED))} / {limits(policy_rate(DECISIONS))}", "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="percentunit",
        ),
        graph(
            "Rejected requests by limit",
            "The ten limits that reject the most requests.",
            (f"topk(10, {limits(policy_rate(DECISIONS, REJECTED))})", "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Would be denied",
            "Requests that a limit in Shadow would deny. Look here before you enforce it.",
            (limits(policy_rate(DECISIONS, 'outcome="shadow_denied"')), "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Clients that would be denied",
            "Distinct clients that a limit in Shadow would have denied in the last 5 to 20 minutes, over all pods.",
            (f"max by (policy_namespace, policy, limit) ({of_policy('sluice_shadow_denied_clients')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
        ),
        graph(
            "Decisions without the store",
            "Requests for which the store did not answer in time, so that onStoreFailure decided.",
            (f"sum by (policy_namespace, policy, outcome) ({policy_rate('sluice_fallback_total')})", "{{policy_namespace}}/{{policy}} {{outcome}}"),
            unit="reqps",
        ),
        graph(
            "Refused tokens",
            "JSON Web Tokens that count as missing because they are not valid. A token counts once in a second.",
            (f"sum by (policy_namespace, policy, jwt, reason) ({policy_rate('sluice_jwt_refused_total')})", "{{policy_namespace}}/{{policy}} {{jwt}} {{reason}}"),
            unit="cps",
        ),
        graph(
            "Settled requests",
            "Requests of limits with countWhen or a cost of the response: counted or not by their outcome, without the cost that "
            "the response should have had, and with a correction that the store did not answer.",
            (f"sum by (policy_namespace, policy, limit, outcome) ({policy_rate('sluice_settlements_total')})", "{{policy_namespace}}/{{policy}} {{limit}} {{outcome}}"),
            unit="reqps",
        ),
    ],
    "Status": [
        graph(
            "Conditions",
            "Policies by condition and status. The message of a policy names the cause of a condition that is not True.",
            (f"count by (condition, status) ({of_policy('sluice_policy_condition')})", "{{condition}} {{status}}"),
        ),
    ],
    "Keys": [
        graph(
            "Keys in use",
            "Part of maxKeys that is in use.",
            (f"max by (policy_namespace, policy, limit) ({of_policy('sluice_key_usage_ratio')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="percentunit",
        ),
        graph(
            "Checks of the shared counter",
            "Checks of clients without a counter of their own, because all maxKeys are in use.",
            (limits(policy_rate("sluice_key_overflow_total")), "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Conditions without a value",
            "Requests for which a condition in CEL had an error. After an error a limit applies, and so does a tier with deny.",
            (limits(policy_rate("sluice_expression_errors_total")), "{{policy_namespace}}/{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Keys that are not clear",
            "Requests with a part of the key that is repeated, not valid, or under a spelling of its name that not all applications know. Below "
            "them, by policy, those for which a trusted proxy reports no address.",
            (limits(policy_rate("sluice_unclear_keys_total")), "{{policy_namespace}}/{{policy}} {{limit}}"),
            (
                f"sum by (policy_namespace, policy) ({policy_rate('sluice_unreadable_addresses_total')})",
                "{{policy_namespace}}/{{policy}} address",
            ),
            unit="reqps",
        ),
    ],
    "Concurrency and delays": [
        graph(
            "Slots in use",
            "Slots of concurrency limits that requests hold, over all pods.",
            (f"sum by (policy_namespace, policy, limit) ({of_policy('sluice_concurrency_held')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
        ),
        graph(
            "Adaptive limits",
            "Concurrent requests that a pod admits, and those in flight: means over the pods.",
            (f"avg by (policy_namespace, policy, limit) ({of_policy('sluice_adaptive_limit')})", "{{policy_namespace}}/{{policy}} {{limit}}: limit"),
            (f"avg by (policy_namespace, policy, limit) ({of_policy('sluice_adaptive_in_flight')})", "{{policy_namespace}}/{{policy}} {{limit}}: in flight"),
        ),
        graph(
            "Shed requests of priorities",
            "Part of the requests with a priority that an adaptive limit has shed, or would have shed without Shadow.",
            (
                f"sum by (policy_namespace, policy, limit, priority) ({policy_rate('sluice_priority_requests_total', SHED)})"
                f" / sum by (policy_namespace, policy, limit, priority) ({policy_rate('sluice_priority_requests_total')})",
                "{{policy_namespace}}/{{policy}} {{limit}} {{priority}}",
            ),
            unit="percentunit",
        ),
        graph(
            "Adaptive limits that measure",
            "Pods whose adaptive limit is lowered to measure the latency without a queue.",
            (f"sum by (policy_namespace, policy, limit) ({of_policy('sluice_adaptive_probing')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
        ),
        graph(
            "Waiting requests",
            "Requests that wait in the queue of a limit, or in the delay queue of a leaky bucket.",
            (f"sum by (policy_namespace, policy, limit) ({of_policy('sluice_waiting_requests')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
        ),
        graph(
            "Raised limits",
            "Pods in which an elastic limit uses its higher number.",
            (f"sum by (policy_namespace, policy, limit) ({of_policy('sluice_limit_raised')})", "{{policy_namespace}}/{{policy}} {{limit}}"),
        ),
    ],
    "Pods": [
        graph(
            "Pods that enforce the policy",
            "Sidecars that have the policy, and replicas that they know of.",
            (f"count by (policy_namespace, policy) ({of_policy('sluice_policy_info')})", "{{policy_namespace}}/{{policy}}: enforce it"),
            (f"max by (policy_namespace, policy) ({of_policy('sluice_policy_pods')})", "{{policy_namespace}}/{{policy}}: replicas"),
        ),
        graph(
            "Versions of the policy",
            "More than 1 for longer than a moment: some sidecars have another version.",
            (f"count by (policy_namespace, policy) (count by (policy_namespace, policy, uid, hash) ({of_policy('sluice_policy_info')}))", "{{policy_namespace}}/{{policy}}"),
        ),
    ],
}

FLEET = {
    "Overview": [
        stat("Sidecars", "Sidecars that Prometheus scrapes.", f"count({of_fleet('sluice_open_connections')})"),
        stat("Releases", "Releases that run: 1, or 2 during an upgrade.", "count(count by (version) (sluice_build_info))"),
        stat("Sessions", "Sidecars with a session with the operator.", "sum(sluice_operator_streams)"),
        stat("Leaders", "Operators that lead: 1.", "sum(sluice_operator_leader)"),
        stat("Turned to Shadow", "1 while the installation turns all policies to Shadow.", "max(sluice_operator_shadow)"),
        stat("Webhook not called", "1 while the API server does not call the webhook, so new pods get no sidecar.", "max(sluice_operator_webhook_not_called)"),
        stat("Without policies", "Sidecars that forward all requests without limits.", f"sum({of_fleet('sluice_sidecar_unlimited')})"),
        stat("Reject all", "Sidecars that reject all requests because they have no policies.", f"sum({of_fleet('sluice_sidecar_rejecting')})"),
        stat("Open circuits", "Connections to stores that do not work.", f"sum({of_fleet('sluice_store_circuit_open')})"),
    ],
    "Sidecars": [
        graph(
            "Requests in flight",
            "Requests that were forwarded and have not ended, and those of them whose client has left.",
            (f"sum by (namespace) ({of_fleet('sluice_requests_in_flight')})", "{{namespace}}"),
            (f"sum by (namespace) ({of_fleet('sluice_abandoned_requests')})", "{{namespace}}: client has left"),
        ),
        graph(
            "Connections",
            "Open connections of clients.",
            (f"sum by (namespace) ({of_fleet('sluice_open_connections')})", "{{namespace}}"),
        ),
        graph(
            "Connections ended by the sidecar",
            "evicted_idle, evicted_stalled and memory: there was no room. The others: a timeout.",
            (f"sum by (namespace, reason) ({fleet_rate('sluice_ended_connections_total')})", "{{namespace}} {{reason}}"),
            (
                f"sum by (namespace, reason) ({fleet_rate('sluice_ended_streams_total')})",
                "{{namespace}} {{reason}}: streams of HTTP/2",
            ),
            unit="cps",
        ),
        graph(
            "No response from the application",
            "Requests that the application did not answer.",
            (f"sum by (namespace, reason) ({fleet_rate('sluice_upstream_errors_total')})", "{{namespace}} {{reason}}"),
            unit="reqps",
        ),
        graph(
            "Applications that do not answer",
            "Captured ports whose application has accepted no connection for a minute, although requests came.",
            (f"sum by (namespace) ({of_fleet('sluice_unreachable_applications')})", "{{namespace}}"),
        ),
        graph(
            "Refused requests",
            "Requests that are malformed or ambiguous, meet more than 32 limits, or came before the first policies.",
            (f"sum by (namespace, reason) ({fleet_rate('sluice_refused_requests_total')})", "{{namespace}} {{reason}}"),
            unit="reqps",
        ),
        graph(
            "Spans",
            "Spans that the collector received, those that it did not (failed, dropped), and sampled requests without spans.",
            (f"sum by (namespace, outcome) ({fleet_rate('sluice_spans_total')})", "{{namespace}} {{outcome}}"),
            (f"sum by (namespace) ({fleet_rate('sluice_requests_without_spans_total')})", "{{namespace}} requests without spans"),
            unit="cps",
        ),
        graph(
            "Defects",
            "Requests and connections that ended by a defect of a sidecar, the service or the operator. Please report it with the log.",
            (f"sum by (namespace) ({fleet_rate('sluice_panics_total')})", "{{namespace}}"),
            unit="reqps",
        ),
        graph(
            "Ports of the operator and the service",
            "Connections of the webhook and of callers that ended so that others have room, and requests without room for their bytes.",
            (f"sum by (namespace, reason) ({rate('sluice_port_connections_ended_total')})", "{{namespace}} {{reason}}"),
            (f"sum by (namespace) ({rate('sluice_port_requests_without_room_total')})", "{{namespace}} requests without room"),
            unit="cps",
        ),
        graph(
            "Dropped lines of logs",
            "Lines that standard error did not take: its disk is full, or nobody reads it.",
            (f"sum by (namespace) ({rate('sluice_log_lines_dropped_total')})", "{{namespace}}"),
            unit="reqps",
        ),
    ],
    "Stores": [
        graph(
            "Added latency",
            "Time from the head of a request to the decision of its limits, with the check in the store. Requests of limits with a "
            "queue are left out.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (namespace, le) ({fleet_rate('sluice_added_latency_seconds_bucket')}))",
                    f"{{{{namespace}}}} p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Latency with queues",
            "Time from the head of a request that meets a limit with a queue to its decision, with its wait.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (namespace, le) ({fleet_rate('sluice_queued_latency_seconds_bucket')}))",
                    f"{{{{namespace}}}} p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Store healthy",
            "Part of the sidecars whose last call to the store succeeded.",
            (f"avg by (namespace, store) ({of_fleet('sluice_store_healthy')})", "{{namespace}} {{store}}"),
            unit="percentunit",
        ),
        graph(
            "Latency",
            "Duration of the calls that the store answered.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (store, le) ({fleet_rate('sluice_store_latency_seconds_bucket')}))",
                    f"{{{{store}}}} p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Checks and calls",
            "Checks, those merged with an equal one, and the calls that carry them.",
            (f"sum by (store) ({fleet_rate('sluice_store_checks_total')})", "{{store}}: checks"),
            (f"sum by (store) ({fleet_rate('sluice_store_merged_total')})", "{{store}}: merged"),
            (f"sum by (store) ({fleet_rate('sluice_store_calls_total')})", "{{store}}: calls"),
            unit="ops",
        ),
        graph(
            "Checks without an answer",
            "By the reason. operations.md describes each.",
            (f"sum by (store, fault) ({fleet_rate('sluice_store_faults_total')})", "{{store}} {{fault}}"),
            unit="ops",
        ),
        graph(
            "Failed calls",
            "Calls without a reply within the latency budget, those that were too late and counted nothing, checks dropped before they were sent, errors, new connections, and counters that the store had lost.",
            *(
                (f"sum by (store) ({fleet_rate(f'sluice_store_{what}_total')})", f"{{{{store}}}}: {what}")
                for what in ("timeouts", "late", "expired", "errors", "reconnects", "counters_lost")
            ),
            unit="ops",
        ),
        graph(
            "Denials without a check",
            "Requests denied because the store had just denied the same.",
            (f"sum by (store) ({fleet_rate('sluice_denials_remembered_total')})", "{{store}}"),
            unit="reqps",
        ),
    ],
    "Quota leases and local quota": [
        graph(
            "Requests of leased limits",
            "All requests, those denied without a call, and those with a call of their own. Few calls are good.",
            *(
                (f"sum by (store) ({fleet_rate(f'sluice_lease_{what}_total')})", f"{{{{store}}}}: {what}")
                for what in ("requests", "denied", "calls", "takes", "returns")
            ),
            unit="ops",
        ),
        graph(
            "Quota in leases",
            "Quota taken, returned, and lost because it expired unused.",
            *(
                (f"sum by (store) ({fleet_rate(f'sluice_lease_quota_{what}_total')})", f"{{{{store}}}}: {what}")
                for what in ("taken", "returned", "lost")
            ),
            unit="reqps",
        ),
        graph(
            "Clients of leased limits",
            "Counters that sidecars hold a lease of, or know.",
            (f"sum by (store) ({of_fleet('sluice_lease_keys')})", "{{store}}"),
        ),
        graph(
            "Decisions by local quota",
            "Checks decided in the sidecar, because of onStoreFailure: Share or consistency: Local.",
            (f"sum by (store) ({fleet_rate('sluice_share_admitted_total')})", "{{store}}: admitted"),
            (f"sum by (store) ({fleet_rate('sluice_share_denied_total')})", "{{store}}: denied"),
            unit="reqps",
        ),
        graph(
            "Local usage to flush",
            "Counters whose local usage the store does not have yet, and those flushed in a second.",
            (f"sum by (store) ({of_fleet('sluice_share_pending')})", "{{store}}: pending"),
            (f"sum by (store) ({fleet_rate('sluice_share_handed_over_total')})", "{{store}}: flushed"),
        ),
    ],
    "Operator": [
        graph(
            "Reconciles",
            "Reconciles of policies, and those that failed and will be retried.",
            (f"sum({rate('sluice_operator_reconciles_total')})", "reconciles"),
            (f"sum({rate('sluice_operator_reconcile_failures_total')})", "failures"),
            unit="ops",
        ),
        graph(
            "Admission reviews",
            "Pods and policies that the webhook reviewed.",
            (f"sum by (webhook, outcome) ({rate('sluice_operator_admission_reviews_total')})", "{{webhook}} {{outcome}}"),
            unit="reqps",
        ),
        graph(
            "Sessions",
            "Events sent to sidecars, sessions denied, and tokens that the API server had to review.",
            (f"sum({rate('sluice_operator_stream_events_total')})", "events"),
            (f"sum({rate('sluice_operator_streams_denied_total')})", "denied"),
            (f"sum({rate('sluice_operator_token_reviews_total')})", "reviews"),
            unit="ops",
        ),
    ],
}

OBSERVED = 'outcome="shadow_denied"'
OF_DOMAIN = 'policy_namespace="@rls", policy=~"$domain"'


def domain_rate(metric, *labels):
    return rate(metric, OF_DOMAIN, *labels)


def service_rate(metric, *labels):
    return rate(metric, 'namespace=~"$namespace"', *labels)


SERVICE = {
    "Questions": [
        graph(
            "Answers",
            "Questions of gateways by the answer. With error, gateways let the request pass unless they are told otherwise.",
            (f"sum by (answer) ({service_rate('sluice_rls_answers_total')})", "{{answer}}"),
            unit="reqps",
        ),
        graph(
            "Answers that were not what they seem",
            "Questions about domains without rules, which are answered with ok, and those for which the store did not answer.",
            (f"sum({service_rate('sluice_rls_unknown_domain_total')})", "unknown domain"),
            (f"sum({service_rate('sluice_rls_answers_without_store_total')})", "without the store"),
            unit="reqps",
        ),
        graph(
            "Latency",
            "Time from the arrival of a question to its answer. Envoy waits 20 ms by default.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (le) ({service_rate('sluice_rls_seconds_bucket')}))",
                    f"p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Connections",
            "Open connections of gateways and applications.",
            ('sum by (pod) (sluice_port_connections{namespace=~"$namespace"})', "{{pod}}"),
        ),
        graph(
            "Waiting questions",
            "Questions and checks that wait for their turn because their caller has many others, and those whose turn did not come in time.",
            ('sum by (pod) (sluice_questions_waiting{namespace=~"$namespace"})', "{{pod}} waiting"),
            (f"sum({service_rate('sluice_questions_late_total')})", "late, in a second"),
        ),
    ],
    "Requests that gateways show": [
        graph(
            "Authorizations",
            "Requests at authz and auth by the answer. Far fewer than the gateway's requests: it caches answers, or does not ask.",
            (f"sum by (door, answer) ({service_rate('sluice_authorizations_total')})", "{{door}} {{answer}}"),
            (f"sum by (door) ({service_rate('sluice_authorizations_without_store_total')})", "{{door}} without the store"),
            unit="reqps",
        ),
        graph(
            "Latency of authorizations",
            "Time from the arrival of a question at authz or auth to its answer, with that of an authorizer behind them.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (le) ({service_rate('sluice_authorization_seconds_bucket')}))",
                    f"p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Authorizer",
            "Answers of the authorizer behind authz and auth.",
            (f"sum by (answer) ({service_rate('sluice_authorizer_answers_total')})", "{{answer}}"),
            unit="reqps",
        ),
    ],
    "Checks": [
        graph(
            "Checks",
            "Checks of applications by the answer.",
            (f"sum by (answer) ({service_rate('sluice_checks_total')})", "{{answer}}"),
            (f"sum({service_rate('sluice_checks_without_store_total')})", "without the store"),
            unit="reqps",
        ),
        graph(
            "Latency of checks",
            "Time from the arrival of a body to its answer.",
            *(
                (
                    f"histogram_quantile({quantile}, sum by (le) ({service_rate('sluice_check_seconds_bucket')}))",
                    f"p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.99)
            ),
            unit="s",
        ),
        graph(
            "Reservations",
            "Reservations of gateways and applications. Those that nobody settles stay charged.",
            (f"sum by (event) ({service_rate('sluice_reservations_total')})", "{{event}}"),
        ),
    ],
    "Rules": [
        graph(
            "Decisions by domain",
            "Descriptors by domain and outcome.",
            (f"sum by (policy, outcome) ({domain_rate(DECISIONS)})", "{{policy}} {{outcome}}"),
            unit="reqps",
        ),
        graph(
            "Denied by rule",
            "The ten rules that deny most.",
            (f"topk(10, sum by (policy, limit) ({domain_rate(DECISIONS, REJECTED)}))", "{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Would be denied",
            "Descriptors that a rule in shadow_mode or quota_mode would deny.",
            (f"sum by (policy, limit) ({domain_rate(DECISIONS, OBSERVED)})", "{{policy}} {{limit}}"),
            unit="reqps",
        ),
        graph(
            "Configurations",
            "Configurations that were applied or rejected.",
            (f"sum by (outcome) ({service_rate('sluice_ratelimit_config_loads_total')})", "{{outcome}}"),
            unit="ops",
        ),
        graph(
            "Rejected files",
            "1 while a file differs from what is in force, because its edit was rejected. The log has the lines that are wrong.",
            ('max by (file) (sluice_file_rejected_timestamp_seconds{namespace=~"$namespace"} > bool 0)', "{{file}}"),
        ),
    ],
}


def variable(name, label, query):
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def panel(number, spec, x, y, width, height):
    is_stat = spec["type"] == "stat"
    targets = [
        {"refId": chr(65 + at), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend, "instant": is_stat, "range": not is_stat}
        for at, (expression, legend) in enumerate(spec["queries"])
    ]
    return {
        "id": number,
        "type": spec["type"],
        "title": spec["title"],
        "description": spec["description"],
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": spec["unit"], "min": 0}, "overrides": []},
        "options": {} if is_stat else {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": targets,
    }


def dashboard(uid, title, variables, rows):
    panels, y = [], 0
    for row, specs in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y += 1
        columns, height = (6, STAT_HEIGHT) if specs[0]["type"] == "stat" else (2, HEIGHT)
        width = WIDTH // columns
        for at, spec in enumerate(specs):
            panels.append(panel(len(panels) + 1, spec, at % columns * width, y + at // columns * height, width, height))
        y += -(-len(specs) // columns) * height
    return {
        "uid": uid,
        "title": title,
        "tags": ["sluice"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [{"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}, *variables]},
        "links": [{"type": "dashboards", "tags": ["sluice"], "title": "Sluice", "asDropdown": False, "includeVars": False, "keepTime": True}],
        "panels": panels,
    }


DASHBOARDS = {
    "policies.json": dashboard(
        "sluice-policies",
        "Sluice / Policies",
        [
            variable("namespace", "Namespace", "label_values(sluice_decisions_total, policy_namespace)"),
            variable("policy", "Policy", 'label_values(sluice_decisions_total{policy_namespace=~"$namespace"}, policy)'),
        ],
        POLICIES,
    ),
    "fleet.json": dashboard(
        "sluice-fleet",
        "Sluice / Fleet",
        [variable("namespace", "Namespace", "label_values(sluice_open_connections, namespace)")],
        FLEET,
    ),
    "service.json": dashboard(
        "sluice-service",
        "Sluice / Service",
        [
            variable("namespace", "Namespace", "label_values(sluice_rls_seconds_count, namespace)"),
            variable("domain", "Domain", 'label_values(sluice_decisions_total{policy_namespace="@rls"}, policy)'),
        ],
        SERVICE,
    ),
}


def main():
    for name, content in DASHBOARDS.items():
        text = json.dumps(content, indent=1) + "\n"
        file = DIRECTORY / name
        if sys.argv[1:] != ["--check"]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.exit(f"{file.relative_to(DIRECTORY.parents[2])} is out of date: run `make generate`")


if __name__ == "__main__":
    main()
