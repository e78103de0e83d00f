//! Admission by the CRD alone, on a real API server: the schema and its CEL rules accept what `sluice check`
//! accepts and name the field of what they reject.

mod documentation;
mod server_side_apply;
mod words;

use serde_json::{Value, json};
use sluice_crds::{Compiled, Installation, Violation, compile};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::repository_root;

/// Returns a policy with one valid limit, changed by `extra`.
fn limit(extra: Value) -> Value {
    let mut limit = json!({"name": "a", "rates": [{"requests": 1, "per": "1m"}]});
    limit.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"limits": [limit]})
}

async fn namespace() -> TestNamespace {
    TestNamespace::create(ControlPlane::shared().await.client().await, "schema").await
}

fn compiled(spec: &Value) -> Result<Compiled, Vec<Violation>> {
    compile(&json!({"metadata": {"name": "bad"}, "spec": spec}), &Installation::default())
}

#[tokio::test]
async fn admit_accepts_every_field_and_fills_in_defaults() {
    let namespace = namespace().await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "checkout"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]},
        "mode": "Shadow",
        "consistency": "Leased",
        "onStoreFailure": "Deny",
        "responseHeaders": ["XRateLimit"],
        "clientAddress": {"trustedProxies": ["10.0.0.0/8"], "header": "Forwarded"},
        "limits": [{
            "name": "per-customer",
            "mode": "Enforce",
            "matches": [
                {"path": {"prefix": "/v1"}, "methods": ["GET"], "headers": [{"name": "x-plan", "exact": "free"}, {"name": "x", "present": false}]},
                {"path": {"regex": "/a.*"}}, {"path": {"exact": "/b"}}, {"path": {"template": "/c/{id}"}},
                {
                    "query": [{"name": "q", "prefix": "a", "not": true}], "cookies": [{"name": "c", "regex": "a.*"}],
                    "grpc": {"service": "shop.Checkout", "method": "Pay"},
                },
            ],
            "except": [{"clientCIDRs": ["192.0.2.0/24", "2001:db8::/32"]}],
            "key": {"parts": [{"header": {"name": "X-Api-Key"}}, {"query": {"name": "q"}}, {"host": {}}, {"method": {}}, {"path": {}}, {"grpcMethod": {}}, {"clientIP": {"ipv4Prefix": 24, "ipv6Prefix": 56}}], "onMissing": "Deny"},
            "rates": [{"requests": 0, "per": "1ms"}, {"requests": 1_099_511_627_776_i64, "per": "8784h"}],
            "algorithm": {"fixedWindow": {}},
            "onLimit": {"reject": {
                "statusCode": 503, "headers": [{"name": "a", "value": "b c"}], "resetFormat": "EpochMillis",
                "jitterPercent": 20, "body": {"template": {"text": "${limit}", "contentType": "text/plain"}},
            }},
            "tiers": [
                {"name": "gold", "matches": [{"headers": [{"name": "x-plan", "exact": "gold"}]}], "rates": [{"requests": 9, "per": "1m"}]},
                {"name": "partner", "matches": [{"path": {"prefix": "/p"}}], "unlimited": {}},
                {"name": "banned", "matches": [{"clientCIDRs": ["192.0.2.0/24"]}], "deny": {}},
            ],
        }],
    });
    namespace.apply("all", spec).await.unwrap();
    let least = namespace.apply("least", limit(json!({}))).await.unwrap();
    let json = serde_json::to_value(&least.spec).unwrap();
    assert_eq!((&json["mode"], &json["onStoreFailure"]), (&json!("Enforce"), &json!("Share")));
    assert_eq!(json["consistency"], "Strict");
    let mut local = limit(json!({}));
    local["consistency"] = json!("Local");
    local["onStoreFailure"] = json!("Allow");
    let local = namespace.apply("local", local).await.unwrap();
    let json = serde_json::to_value(&local.spec).unwrap();
    assert_eq!((&json["consistency"], &json["onStoreFailure"]), (&json!("Local"), &json!("Allow")));
    for (field, value) in [("consistency", "Eventual"), ("onStoreFailure", "Hope")] {
        let mut bad = limit(json!({}));
        bad[field] = json!(value);
        let error = namespace.apply("bad", bad).await.unwrap_err().to_string();
        assert!(error.contains(&format!("spec.{field}")), "{error}");
    }
}

#[tokio::test]
async fn admit_accepts_every_algorithm_and_enforcement() {
    let namespace = namespace().await;
    let soft = json!({"soft": {"overPercent": 1000, "for": "8784h"}});
    let elastic = json!({"elastic": {"requests": 2, "utilizationBelowPercent": 100, "capacity": {"inFlight": 1_000_000}}});
    for (n, extra) in [
        json!({"algorithm": {"slidingWindowCounter": {"bound": "Guaranteed"}}, "enforcement": {"hard": {}}}),
        json!({"algorithm": {"slidingWindowCounter": {}}, "enforcement": soft}),
        json!({"rates": [{"requests": 1, "per": "1m", "subWindows": 60}, {"requests": 5, "per": "1h"}], "enforcement": soft}),
        json!({"algorithm": {"fixedWindow": {"alignment": "FirstRequest"}}, "enforcement": soft}),
        json!({"algorithm": {"fixedWindow": {"alignment": "Spread"}}, "enforcement": elastic}),
        json!({"algorithm": {"slidingWindowLog": {"minInterval": "2s", "countDenied": true}}}),
        json!({"algorithm": {"slidingWindowLog": {}}}),
        json!({"algorithm": {"slidingWindowCounter": {"countDenied": true}}}),
        json!({"algorithm": {"fixedWindow": {"countDenied": true}}, "enforcement": soft}),
        json!({"countWhen": {"statusCodes": ["401", "5xx"], "grpcStatuses": ["UNAUTHENTICATED"]}}),
        json!({"cost": {"request": {"number": 0}, "response": {"header": "x-cost"}}}),
        json!({"cost": {"request": {"header": "x-cost"}, "response": {"grpcTrailer": "x-cost", "reserve": 5}}}),
        json!({"cost": {"request": {"bodyBytes": {}}, "response": {"bodyBytes": {}}}}),
        json!({"cost": {"request": {"cel": "size(request.path)"}}}),
        json!({"cost": {"response": {"jsonField": "usage.total_tokens", "reserve": 0}}}),
        json!({"algorithm": {"tokenBucket": {"burst": 500_000}}}),
        json!({"algorithm": {"tokenBucket": {"warmUp": {"period": "1h", "coldFactor": 100}}}}),
        json!({"algorithm": {"tokenBucket": {}}, "enforcement": elastic}),
        json!({"algorithm": {"gcra": {"burst": 2}}}),
        json!({"algorithm": {"gcra": {}}}),
        json!({"algorithm": {"leakyBucket": {"maxWait": "1h"}}}),
        json!({"onLimit": {"queue": {"maxWait": "5m", "maxLength": 10_000, "order": "Lifo"}, "reject": {"statusCode": 503}}}),
        json!({"onLimit": {"mark": {"header": "X-Rate-Limited"}}}),
        json!({"onLimit": {"block": {"after": 1000, "within": "1ms", "for": "8784h"}}}),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = limit(extra);
        let own = compiled(&spec);
        assert!(own.is_ok(), "sluice check rejects what the API server accepts: {spec}\n{own:?}");
        let applied = namespace.apply(&format!("algorithm-{n}"), spec.clone()).await;
        applied.unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
}

#[tokio::test]
async fn admit_names_the_field_of_an_invalid_policy() {
    let namespace = namespace().await;
    for (spec, path) in [
        (json!({"limits": []}), "spec.limits"),
        (json!({}), "at least one of limits, concurrency must be set"),
        (json!({"limits": "many"}), "spec.limits"),
        (json!({"limits": [{"name": "a"}]}), "spec.limits[0].rates"),
        (json!({"limits": [{"name": "a", "rates": []}]}), "spec.limits[0].rates"),
        (
            json!({"limits": [{"name": "a", "rates": [{"requests": -1, "per": "1m"}]}]}),
            "spec.limits[0].rates[0].requests",
        ),
        (
            json!({"limits": [{"name": "a", "rates": [{"requests": 1_099_511_627_777_i64, "per": "1m"}]}]}),
            "spec.limits[0].rates[0].requests",
        ),
        (json!({"limits": [{"name": "a", "rates": [{"requests": "1", "per": "1m"}]}]}), "requests"),
        (
            json!({"limits": [{"name": "a", "rates": [{"requests": 1, "per": "1d"}]}]}),
            "spec.limits[0].rates[0].per",
        ),
        (json!({"limits": [{"name": "", "rates": [{"requests": 1, "per": "1m"}]}]}), "spec.limits[0].name"),
        (
            json!({"limits": [{"name": "a", "rates": [{"requests": 1, "per": "1m"}]}, {"name": "a", "rates": [{"requests": 1, "per": "1m"}]}]}),
            "name=\"a\"",
        ),
        (limit(json!({"mode": "Loud"})), "spec.limits[0].mode"),
        (limit(json!({"key": {"parts": []}})), "spec.limits[0].key.parts"),
        (limit(json!({"key": {"parts": [{}]}})), "spec.limits[0].key.parts[0]"),
        (
            limit(json!({"key": {"parts": [{"header": {"name": "x"}, "clientIP": {}}]}})),
            "exactly one of header, cookie, query, method, path, host, grpcMethod, pathTemplate, cel, jwtClaim, clientIP",
        ),
        (
            limit(json!({"algorithm": {"fixedWindow": {}, "slidingWindowCounter": {}}})),
            "exactly one of slidingWindowCounter, fixedWindow, slidingWindowLog, tokenBucket, gcra, leakyBucket",
        ),
        (limit(json!({"algorithm": {}})), "exactly one of slidingWindowCounter"),
        (limit(json!({"algorithm": {"gcra": {}, "leakyBucket": {"maxWait": "1s"}}})), "exactly one of"),
        (limit(json!({"algorithm": {"fixedWindow": {"alignment": "Noon"}}})), "fixedWindow.alignment"),
        (limit(json!({"algorithm": {"slidingWindowCounter": {"bound": "Exact"}}})), "bound"),
        (
            limit(json!({"algorithm": {"slidingWindowLog": {"minInterval": "1d"}}})),
            "slidingWindowLog.minInterval",
        ),
        (
            limit(json!({"algorithm": {"tokenBucket": {"burst": 5, "warmUp": {"period": "1s"}}}})),
            "burst and warmUp cannot be combined",
        ),
        (limit(json!({"algorithm": {"tokenBucket": {"burst": 0}}})), "tokenBucket.burst"),
        (limit(json!({"algorithm": {"tokenBucket": {"warmUp": {}}}})), "tokenBucket.warmUp.period"),
        (
            limit(json!({"algorithm": {"tokenBucket": {"warmUp": {"period": "1s", "coldFactor": 1}}}})),
            "warmUp.coldFactor",
        ),
        (limit(json!({"algorithm": {"leakyBucket": {}}})), "leakyBucket.maxWait"),
        (limit(json!({"rates": [{"requests": 1, "per": "1m", "subWindows": 61}]})), "rates[0].subWindows"),
        (
            limit(
                json!({"rates": [{"requests": 1, "per": "1m", "subWindows": 2}], "algorithm": {"gcra": {}}}),
            ),
            "subWindows is only allowed with slidingWindowCounter",
        ),
        (limit(json!({"enforcement": {}})), "exactly one of hard, soft, elastic"),
        (limit(json!({"cost": {}})), "at least one of request, response"),
        (limit(json!({"cost": {"request": {}}})), "exactly one of number, header, bodyBytes, cel"),
        (
            limit(json!({"cost": {"response": {"reserve": 1}}})),
            "exactly one of header, jsonField, grpcTrailer, bodyBytes",
        ),
        (limit(json!({"countWhen": {}})), "at least one of statusCodes, grpcStatuses"),
        (limit(json!({"countWhen": {"statusCodes": ["600"]}})), "countWhen.statusCodes"),
        (
            limit(json!({"enforcement": {"hard": {}, "soft": {"overPercent": 1, "for": "1s"}}})),
            "exactly one of hard, soft, elastic",
        ),
        (limit(json!({"enforcement": {"soft": {"overPercent": 0, "for": "1s"}}})), "soft.overPercent"),
        (limit(json!({"enforcement": {"soft": {"overPercent": 1}}})), "enforcement.soft.for"),
        (
            limit(
                json!({"algorithm": {"gcra": {}}, "enforcement": {"soft": {"overPercent": 1, "for": "1s"}}}),
            ),
            "soft is only allowed with slidingWindowCounter and fixedWindow",
        ),
        (
            limit(
                json!({"enforcement": {"elastic": {"requests": 2, "utilizationBelowPercent": 70, "capacity": {}}}}),
            ),
            "inFlight must be set",
        ),
        (
            limit(json!({
                "rates": [{"requests": 1, "per": "1m"}, {"requests": 2, "per": "1h"}],
                "enforcement": {"elastic": {"requests": 2, "utilizationBelowPercent": 70, "capacity": {"inFlight": 1}}},
            })),
            "elastic is only allowed with exactly one rate",
        ),
        (
            limit(json!({"matches": [{"path": {"exact": "/a", "prefix": "/b"}}]})),
            "exactly one of exact, prefix, template, regex",
        ),
        (
            limit(json!({"matches": [{"headers": [{"name": "a"}]}]})),
            "exactly one of exact, prefix, regex, present",
        ),
        (
            limit(json!({"except": [{"query": [{"name": "a", "not": true}]}]})),
            "exactly one of exact, prefix, regex, present",
        ),
        (limit(json!({"colour": "red"})), ".colour: field not declared"),
    ] {
        let result = namespace.apply("bad", spec.clone()).await;
        let Err(error) = result else { panic!("{spec} was accepted") };
        let text = error.to_string();
        assert!(text.contains(path), "{spec}\nexpected {path} in: {text}");
        let own = compiled(&spec);
        assert!(own.is_err(), "sluice check accepts what the API server rejects: {spec}");
    }
}

#[tokio::test]
async fn admit_accepts_concurrency_limits_and_names_the_field_of_an_invalid_limit() {
    let namespace = namespace().await;
    let limit = |extra: Value| {
        let mut limit = json!({"name": "a"});
        limit.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"concurrency": [limit]})
    };
    for (n, extra) in [
        json!({"max": 1_000_000, "mode": "Shadow", "matches": [{"methods": ["GET"]}],
               "key": {"parts": [{"clientIP": {}}]}}),
        json!({"adaptive": {"aimd": {"minimum": 1, "maximum": 1, "timeout": "1h", "tolerancePercent": 1000}}}),
        json!({"adaptive": {"vegas": {"minimum": 1, "initial": 7, "maximum": 9, "queuePercent": 100}}}),
        json!({"adaptive": {"gradient2": {"minimum": 4, "maximum": 400, "tolerancePercent": 0, "queuePercent": 0}}}),
    ]
    .into_iter()
    .enumerate()
    {
        namespace.apply(&format!("good-{n}"), limit(extra)).await.unwrap();
    }
    let gradient2 = json!({"gradient2": {"minimum": 4, "maximum": 400}});
    for (spec, expected) in [
        (json!({}), "at least one of limits, concurrency must be set"),
        (limit(json!({})), "exactly one of max, adaptive must be set"),
        (limit(json!({"max": 1, "adaptive": gradient2})), "exactly one of max, adaptive must be set"),
        (limit(json!({"max": 0})), "spec.concurrency[0].max"),
        (limit(json!({"adaptive": {}})), "exactly one of aimd, vegas, gradient2 must be set"),
        (
            limit(json!({"adaptive": gradient2, "key": {"parts": [{"clientIP": {}}]}})),
            "key is not allowed with adaptive",
        ),
        (
            limit(json!({"adaptive": {"vegas": {"minimum": 2, "maximum": 1}}})),
            "minimum <= initial <= maximum",
        ),
        (
            limit(json!({"adaptive": {"aimd": {"minimum": 2, "initial": 1, "maximum": 3}}})),
            "minimum <= initial <= maximum",
        ),
        (
            json!({"concurrency": [{"name": "a", "max": 1}],
                   "limits": [{"name": "a", "rates": [{"requests": 1, "per": "1s"}]}]}),
            "names must be unique",
        ),
    ] {
        let error = namespace.apply("bad", spec.clone()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{spec}: {error}");
    }
}

/// Returns the files of the examples. Folders there have the configuration of other programs.
fn examples() -> impl Iterator<Item = std::path::PathBuf> {
    let entries = std::fs::read_dir(repository_root().join("examples")).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
}

#[tokio::test]
async fn admit_accepts_every_example() {
    let namespace = namespace().await;
    for path in examples() {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.contains("kind: RateLimitPolicy") {
            continue;
        }
        for document in text.split("\n---\n").filter(|document| document.contains("kind: RateLimitPolicy")) {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            namespace
                .apply(name, object["spec"].clone())
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

/// Returns the path of the first value of a manifest that the API server changed. A GitOps tool compares lists as
/// a whole; it ignores fields that were added to an object outside of lists.
fn difference(manifest: &Value, live: &Value, path: &str) -> Option<String> {
    match (manifest, live) {
        (Value::Object(fields), Value::Object(_)) => {
            fields.iter().find_map(|(name, value)| difference(value, &live[name], &format!("{path}.{name}")))
        }
        _ => (manifest != live).then(|| format!("{path}: {manifest} became {live}")),
    }
}

#[tokio::test]
async fn admit_changes_nothing_of_an_example_that_is_applied_twice() {
    let namespace = namespace().await;
    let control_plane = ControlPlane::shared().await;
    let kubectl = |arguments: &[&str], file: &std::path::Path| {
        let mut command = control_plane.kubectl();
        command.args(["--namespace", &namespace.name]).args(arguments).arg("--filename").arg(file);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let mut applied = 0;
    for path in examples() {
        let text = std::fs::read_to_string(&path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for document in text.split("\n---\n").filter(|document| document.contains("kind: RateLimitPolicy")) {
            let mut manifest: Value = serde_saphyr::from_str(document).unwrap();
            manifest["metadata"].as_object_mut().unwrap().remove("namespace");
            let file = folder.path().join("policy.json");
            std::fs::write(&file, manifest.to_string()).unwrap();
            let (code, first) = kubectl(&["apply"], &file);
            assert_eq!(code, Some(0), "{}: {first}", path.display());
            let (_, second) = kubectl(&["apply"], &file);
            assert!(second.trim_end().ends_with("unchanged"), "{}: {second}", path.display());
            assert_eq!(kubectl(&["diff"], &file), (Some(0), String::new()), "{}", path.display());
            let (_, live) = kubectl(&["get", "--output", "json"], &file);
            let live: Value = serde_json::from_str(&live).unwrap();
            let difference = difference(&manifest["spec"], &live["spec"], "spec");
            assert_eq!(difference, None, "{}", path.display());
            applied += 1;
        }
    }
    assert!(applied >= 14, "{applied} policies");
}
