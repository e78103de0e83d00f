//! What a real API server says of policies with the CRD alone: the schema and its CEL rules refuse with the field's
//! path, and accept whatever `sluice check` accepts.

use serde_json::{Value, json};
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;

fn limit(extra: Value) -> Value {
    let mut limit = json!({"name": "a", "rates": [{"requests": 1, "per": "1m"}]});
    limit.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"limits": [limit]})
}

async fn namespace() -> TestNamespace {
    TestNamespace::create(ControlPlane::shared().await.client().await, "schema").await
}

#[tokio::test]
async fn admit_accepts_every_field_and_fills_in_defaults() {
    let namespace = namespace().await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "checkout"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]},
        "mode": "Shadow",
        "onStoreFailure": "Deny",
        "clientAddress": {"trustedProxies": ["10.0.0.0/8"], "header": "Forwarded"},
        "limits": [{
            "name": "per-customer",
            "mode": "Enforce",
            "matches": [
                {"path": {"prefix": "/v1"}, "methods": ["GET"], "headers": [{"name": "x-plan", "exact": "free"}, {"name": "x", "present": false}]},
                {"path": {"regex": "/a.*"}}, {"path": {"exact": "/b"}},
            ],
            "key": {"parts": [{"header": {"name": "X-Api-Key"}}, {"clientIP": {"ipv4Prefix": 24, "ipv6Prefix": 56}}], "onMissing": "Deny"},
            "rates": [{"requests": 0, "per": "1ms"}, {"requests": 1_099_511_627_776_i64, "per": "8784h"}],
            "algorithm": {"fixedWindow": {}},
        }],
    });
    namespace.apply("all", spec).await.unwrap();
    let least = namespace.apply("least", limit(json!({"key": {"parts": [{"clientIP": {}}]}}))).await.unwrap();
    let json = serde_json::to_value(&least.spec).unwrap();
    assert_eq!((&json["mode"], &json["onStoreFailure"]), (&json!("Enforce"), &json!("Allow")));
    assert_eq!(json["limits"][0]["key"]["onMissing"], "Shared");
}

#[tokio::test]
async fn admit_refuses_bad_input_with_the_field_s_path() {
    let namespace = namespace().await;
    for (spec, path) in [
        (json!({"limits": []}), "spec.limits"),
        (json!({}), "spec.limits"),
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
            "exactly one of header, clientIP",
        ),
        (
            limit(json!({"algorithm": {"fixedWindow": {}, "slidingWindowCounter": {}}})),
            "exactly one of slidingWindowCounter, fixedWindow",
        ),
        (
            limit(json!({"matches": [{"path": {"exact": "/a", "prefix": "/b"}}]})),
            "exactly one of exact, prefix, regex",
        ),
        (limit(json!({"matches": [{"headers": [{"name": "a"}]}]})), "exactly one of exact, regex, present"),
        (limit(json!({"colour": "red"})), ".colour: field not declared"),
    ] {
        let refused = namespace.apply("bad", spec.clone()).await;
        let Err(error) = refused else { panic!("{spec} was accepted") };
        let text = error.to_string();
        assert!(text.contains(path), "{spec}\nexpected {path} in: {text}");
        let own = sluice_crds::validate(&json!({"metadata": {"name": "bad"}, "spec": spec}));
        assert!(own.is_err(), "sluice check accepts what the API server refuses: {spec}");
    }
}

/// Whatever is in the examples works as it stands.
#[tokio::test]
async fn admit_accepts_every_example() {
    let namespace = namespace().await;
    for entry in std::fs::read_dir(sluice_tests::cluster::root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
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
