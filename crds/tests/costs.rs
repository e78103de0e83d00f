//! Costs and outcomes: compiled policies, their summaries, warnings, and the errors of invalid ones.

use sluice_config::PreparedPolicy;
use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, Problem, load};
use sluice_crds::summary::full;

/// Returns a policy of one limit with these fields.
fn limit(fields: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n  \
         clientAddress: {{trustedProxies: []}}\n  limits:\n  - {{name: l, rates: [{{requests: 6, per: 1m}}], {fields}}}\n"
    )
}

fn loaded(fields: &str) -> LoadedPolicy {
    load(&limit(fields), &Installation::default())
        .unwrap_or_else(|problems| panic!("{fields}: {problems:?}"))
        .policies
        .remove(0)
}

fn first_problem(fields: &str) -> Problem {
    load(&limit(fields), &Installation::default()).expect_err(fields).remove(0)
}

#[test]
fn every_cost_and_outcome_compiles_is_applied_by_a_sidecar_and_has_a_summary() {
    for (fields, summary, json) in [
        ("cost: {request: {number: 3}}", "cost 3", r#""cost":{"request":{"number":3}}"#),
        (
            "cost: {request: {header: X-Cost}}",
            "cost header X-Cost",
            r#""cost":{"request":{"header":"X-Cost"}}"#,
        ),
        (
            "cost: {request: {bodyBytes: {}}}",
            "cost bytes of the request",
            r#""cost":{"request":{"bodyBytes":{}}}"#,
        ),
        (
            "cost: {request: {cel: 'size(request.path)'}}",
            "cost by CEL",
            r#""expressions":{"size(request.path)":{"root":{"size":{"attribute":"path"}}}}"#,
        ),
        (
            "cost: {request: {number: 1}, response: {header: X-Cost}}",
            "cost 1 and header X-Cost of the response (reserve 1)",
            r#""cost":{"request":{"number":1},"response":{"header":"X-Cost"}}"#,
        ),
        (
            "cost: {response: {jsonField: usage.total_tokens, reserve: 5}}",
            "cost usage.total_tokens (reserve 5)",
            r#""response":{"reserve":5,"jsonField":"usage.total_tokens"}"#,
        ),
        (
            "cost: {response: {grpcTrailer: X-Cost}}",
            "cost trailer X-Cost (reserve 1)",
            r#""response":{"grpcTrailer":"X-Cost"}"#,
        ),
        (
            "cost: {response: {bodyBytes: {}}}",
            "cost bytes of the response (reserve 1)",
            r#""response":{"bodyBytes":{}}"#,
        ),
        (
            "countWhen: {statusCodes: [5xx, '401'], grpcStatuses: [UNAUTHENTICATED, PERMISSION_DENIED]}",
            "counts 5xx 401 UNAUTHENTICATED PERMISSION_DENIED",
            r#""countWhen":{"statusCodes":["5xx","401"],"grpcStatuses":["UNAUTHENTICATED","PERMISSION_DENIED"]}"#,
        ),
    ] {
        let policy = loaded(fields).compiled;
        assert_eq!(full(&policy), format!("l 6/1m [{summary}]"));
        let compiled = policy.to_json();
        assert!(compiled.contains(json), "{json} in {compiled}");
        PreparedPolicy::from_json(&compiled).unwrap_or_else(|nack| panic!("{fields}: {nack}"));
    }
}

#[test]
fn what_cannot_be_a_cost_or_an_outcome_is_named_by_its_field() {
    for (fields, field, message) in [
        ("cost: {}", "cost", "needs at least one of request and response"),
        ("cost: {request: {}}", "cost.request", "exactly one"),
        ("cost: {request: {number: -1}}", "cost.request.number", "out of range"),
        ("cost: {request: {number: 1, bodyBytes: {}}}", "cost.request", "exactly one"),
        (
            "cost: {request: {cel: request.path}}",
            "cost.request.cel",
            "is a string, and a cost must be an int",
        ),
        ("cost: {request: {cel: '1 +'}}", "cost.request.cel", ""),
        ("cost: {response: {reserve: 5}}", "cost.response", "exactly one"),
        ("cost: {response: {jsonField: 'a..b'}}", "cost.response.jsonField", "names with dots"),
        ("countWhen: {}", "countWhen", "needs at least one of statusCodes and grpcStatuses"),
        ("countWhen: {statusCodes: [600]}", "countWhen.statusCodes[0]", "must be a string"),
        ("countWhen: {statusCodes: ['600']}", "countWhen.statusCodes[0]", "a class such as 5xx"),
        ("countWhen: {grpcStatuses: [BAD]}", "countWhen.grpcStatuses[0]", "use one of OK"),
        (
            "algorithm: {leakyBucket: {maxWait: 1s}}, countWhen: {statusCodes: ['401']}",
            "countWhen",
            "use another algorithm",
        ),
        (
            "algorithm: {leakyBucket: {maxWait: 1s}}, cost: {response: {header: a}}",
            "cost.response",
            "use another algorithm",
        ),
        (
            "algorithm: {leakyBucket: {maxWait: 1s}}, cost: {request: {bodyBytes: {}}}",
            "cost.request.bodyBytes",
            "use another algorithm",
        ),
        (
            "algorithm: {tokenBucket: {warmUp: {period: 1s}}}, countWhen: {statusCodes: ['401']}",
            "countWhen",
            "use another algorithm",
        ),
        (
            "key: {parts: [{pathTemplate: {templates: [/a/*]}}]}",
            "key.parts[0].pathTemplate.templates[0]",
            "write a name",
        ),
        (
            "key: {parts: [{pathTemplate: {templates: [/a/:b]}}]}",
            "key.parts[0].pathTemplate.templates[0]",
            "write a name",
        ),
        (
            "key: {parts: [{pathTemplate: {templates: ['/a%20b/{c}']}}]}",
            "key.parts[0].pathTemplate.templates[0]",
            "write \"/a b/{c}\"",
        ),
        (
            "key: {parts: [{pathTemplate: {templates: ['/a/{b}'], variable: c}}]}",
            "key.parts[0].pathTemplate.templates[0]",
            "has no segment {c}",
        ),
        (
            "key: {parts: [{cel: {expression: 'size(request.path)'}}]}",
            "key.parts[0].cel.expression",
            "must be a string",
        ),
        (
            "key: {parts: [{cel: {expression: 'request.host + request.path'}}]}",
            "key.parts[0].cel.expression",
            "list them as parts of the key",
        ),
    ] {
        let problem = first_problem(fields).to_string();
        assert!(problem.contains(&format!("spec.limits[0].{field}: ")), "{fields}: {problem}");
        assert!(problem.contains(message), "{fields}: {problem}");
    }
    loaded("algorithm: {leakyBucket: {maxWait: 1s}}, cost: {request: {number: 2}}");
}

#[test]
fn costs_that_are_probably_not_intended_are_warned_of() {
    for (fields, field, message) in [
        (
            "cost: {request: {number: 7}}",
            "rates[0]",
            "denies every request: each costs 7, and there is room for 6",
        ),
        ("cost: {response: {header: a, reserve: 7}}", "rates[0]", "denies every request"),
        (
            "cost: {response: {header: a, reserve: 0}}",
            "cost.response.reserve",
            "any number of requests at the same time",
        ),
        (
            "cost: {request: {number: 7}}, tiers: [{name: t, when: 'request.host == \"a\"', rates: [{requests: 5, per: 1m}]}]",
            "tiers[0].rates[0]",
            "there is room for 5",
        ),
        ("cost: {response: {header: a}}", "cost.response.reserve", "is 1 if it is not set"),
        ("cost: {request: {cel: 'int(request.headers[\"x\"])'}}", "cost.request.cel", "a client can send"),
        ("cost: {request: {cel: '1 + 1'}}", "cost.request.cel", "the same for all requests"),
        ("cost: {request: {number: 0}}", "cost.request.number", "counts no request"),
        (
            "algorithm: {gcra: {}}, cost: {request: {bodyBytes: {}}}",
            "rates[0]",
            "set `burst` to the largest cost",
        ),
        ("cost: {request: {header: x-cost}}", "cost.request.header", "a client can send"),
    ] {
        let warnings: Vec<_> = loaded(fields).warnings.iter().map(ToString::to_string).collect();
        let found = warnings.iter().any(|warning| {
            warning.contains(&format!("spec.limits[0].{field}: ")) && warning.contains(message)
        });
        assert!(found, "{fields}: {warnings:?}");
    }
}
