//! Policies that refer to Secrets and ConfigMaps.

use base64::Engine as _;
use hyper::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use sluice_config::message::{PolicyFindings, PolicyReport};
use sluice_config::overrides::OverrideTable;
use sluice_config::policy::BlobHash;
use sluice_tests::components::Session;
use sluice_tests::kubernetes::TestNamespace;

use super::fixture::{confirm, open_session, review_policies, start};

/// Returns a policy with the overrides of a ConfigMap and a Secret.
fn spec(requests: i64) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{
            "name": "l", "key": {"parts": [{"header": {"name": "x-api-key"}}]},
            "rates": [{"requests": requests, "per": "1h"}],
            "plans": [{"name": "large", "rates": [{"requests": 50, "per": "1h"}]}],
            "overridesFrom": [
                {"configMapRef": {"name": "quotas", "key": "clients"}},
                {"secretRef": {"name": "vips", "key": "clients"}},
            ],
        }],
    })
}

async fn apply_config_map(namespace: &TestNamespace, lines: &str) {
    namespace.apply_object::<ConfigMap>("quotas", json!({"data": {"clients": lines}})).await;
}

async fn apply_secret(namespace: &TestNamespace, lines: &str) {
    let lines = base64::engine::general_purpose::STANDARD.encode(lines);
    namespace.apply_object::<Secret>("vips", json!({"data": {"clients": lines}})).await;
}

/// Confirms the next policy, and returns the hash of its overrides with the table.
async fn confirm_table(session: &mut Session) -> (String, OverrideTable) {
    // Until the operator has read the objects, pods without a version get one without overrides.
    let (uid, published) = loop {
        let (policies, _) = session.policies().await;
        if let Some(policy) = policies.policies.into_iter().next() {
            break policy;
        }
    };
    let policy: Value = serde_json::from_str(published.policy.get()).unwrap();
    let hash = policy["limits"][0]["kind"]["rates"]["overrides"].as_str().unwrap().to_owned();
    let (status, bytes) = session.fetch(&hash).await;
    assert_eq!((status, BlobHash::of(&bytes).to_string()), (StatusCode::OK, hash.clone()));
    let report = PolicyReport::Applied { hash: published.hash, findings: PolicyFindings::NOTHING };
    session.report([(uid, report)], sluice_config::message::StoreReport::HEALTHY).await;
    (hash, OverrideTable::new(bytes.to_vec().into()).unwrap())
}

fn plan(table: &OverrideTable, client: &str) -> Option<String> {
    let found = table.find(client.as_bytes())?;
    Some(table.plans()[usize::from(found.plan)].clone())
}

#[tokio::test]
async fn a_policy_waits_for_its_content_and_follows_it() {
    let (namespace, control) = start("contents").await;
    review_policies(&namespace).await;
    let name = &namespace.name;
    namespace.apply("p", spec(5)).await.unwrap();
    let message = namespace.wait_for("p", "ResolvedRefs", "False RefNotFound").await;
    assert_eq!(
        message,
        format!(
            "The ConfigMap quotas does not exist in namespace {name}. Create it. The Secret vips does not exist in \
             namespace {name}. Create it. Until then, pods keep the version of the policy that they have. Those without \
             one apply it without overrides, and without the limits whose public keys are unknown."
        )
    );
    namespace.wait_for("p", "Accepted", "True Accepted").await;
    namespace.wait_for("p", "Programmed", "False Pending").await;

    // A pod without a version applies the limit without overrides, and one that has a version would keep it.
    let mut session = open_session(&namespace, &control, "one").await;
    let (policies, _) = session.policies().await;
    assert!(policies.policies.is_empty() && policies.fallback.len() == 1, "{policies:?}");

    apply_config_map(&namespace, "acme: large\n").await;
    apply_secret(&namespace, "mallory: deny\n").await;
    let message = namespace.wait_for("p", "ResolvedRefs", "True ResolvedRefs").await;
    assert_eq!(message, "Everything that the policy refers to can be used.");
    let (first, table) = confirm_table(&mut session).await;
    assert_eq!(plan(&table, "acme").as_deref(), Some("large"));
    assert_eq!(plan(&table, "mallory").as_deref(), Some("deny"));
    namespace.wait_for("p", "Ready", "True Ready").await;

    // Programmed is about the content that is now in the objects.
    apply_config_map(&namespace, "acme: unlimited\n").await;
    namespace.wait_for("p", "Programmed", "False Pending").await;
    let (second, table) = confirm_table(&mut session).await;
    assert_eq!(plan(&table, "acme").as_deref(), Some("unlimited"));
    assert_ne!(first, second);
    namespace.wait_for("p", "Ready", "True Ready").await;
    assert_eq!(session.fetch(&first).await.0, StatusCode::OK, "others may still fetch it");

    // A bad line keeps the last good table, for new pods too.
    apply_secret(&namespace, "mallory: deny\n\nhunter2 is secret\n").await;
    let message = namespace.wait_for("p", "ResolvedRefs", "False InvalidContent").await;
    assert_eq!(
        message,
        "The overrides of limit l cannot be used: line 3 in `clients` of the Secret vips has no plan: write `CLIENT: \
         PLAN`, with a space after the colon. Until then, pods keep the content that could be used last."
    );
    namespace.wait_for("p", "Ready", "False InvalidContent").await;
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    let mut new = open_session(&namespace, &control, "two").await;
    assert_eq!(confirm_table(&mut new).await.0, second);

    // A bad line keeps nobody from editing the policy.
    namespace.apply("p", spec(6)).await.unwrap();
    assert_eq!(confirm_table(&mut session).await.0, second, "the same content");
    assert_eq!(confirm_table(&mut new).await.0, second);
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    namespace.wait_for("p", "ResolvedRefs", "False InvalidContent").await;
    assert_eq!(session.fetch(&first).await.0, StatusCode::NOT_FOUND);
    apply_secret(&namespace, "mallory: deny\n").await;
    namespace.wait_for("p", "Ready", "True Ready").await;

    namespace.api::<ConfigMap>().delete("quotas", &Default::default()).await.unwrap();
    namespace.wait_for("p", "Ready", "False RefNotFound").await;
    namespace.apply_object::<ConfigMap>("quotas", json!({"data": {"other": "acme: large"}})).await;
    sluice_tests::wait::until("the status names the missing field", async || {
        let (_, message) = namespace.condition("p", "ResolvedRefs").await?;
        message.starts_with("There is no `clients` of the ConfigMap quotas. Add the field").then_some(())
    })
    .await;
}

#[tokio::test]
async fn content_is_for_the_pods_of_its_policy_only() {
    let (namespace, control) = start("contents-of").await;
    apply_config_map(&namespace, "acme: large\n").await;
    apply_secret(&namespace, "").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    let (hash, _) = confirm_table(&mut session).await;

    let pod = namespace.pod("other", true, json!({"app": "b"})).await;
    let other = control.connect(&namespace.token(&pod, "sluice.dev").await, None).await.unwrap();
    assert_eq!(other.fetch(&hash).await.0, StatusCode::NOT_FOUND, "a pod without the policy");
    let (elsewhere, control) = start("contents-elsewhere").await;
    elsewhere.apply("p", super::fixture::spec(5)).await.unwrap();
    let mut elsewhere = open_session(&elsewhere, &control, "one").await;
    confirm(&mut elsewhere).await;
    assert_eq!(elsewhere.fetch(&hash).await.0, StatusCode::NOT_FOUND, "another namespace");
    for wrong in ["", "..", "0", "%2e%2e%2fmetrics"] {
        assert_eq!(session.fetch(wrong).await.0, StatusCode::NOT_FOUND, "{wrong}");
    }
    namespace.delete_pod("one").await;
    sluice_tests::wait::until("the session has ended", async || {
        (session.fetch(&hash).await.0 == StatusCode::GONE).then_some(())
    })
    .await;
}

#[tokio::test]
async fn overrides_are_reviewed_with_their_policy() {
    let (namespace, _control) = start("contents-review").await;
    review_policies(&namespace).await;
    let refused = async |change: fn(&mut Value)| {
        let mut spec = spec(5);
        change(&mut spec["limits"][0]);
        namespace.apply("p", spec).await.unwrap_err().to_string()
    };
    for (change, expected) in [
        (
            (|limit: &mut Value| drop(limit.as_object_mut().unwrap().remove("key"))) as fn(&mut Value),
            "overridesFrom needs a key",
        ),
        (|limit| limit["plans"][0]["name"] = json!("deny"), "is a plan that every limit has"),
        (|limit| limit["plans"][0]["rates"][0]["per"] = json!("1y"), "spec.limits[0].plans[0].rates[0].per"),
        (|limit| limit["overridesFrom"][1] = limit["overridesFrom"][0].clone(), "is listed twice"),
        (
            |limit| {
                limit["overridesFrom"][1]["configMapRef"] = limit["overridesFrom"][0]["configMapRef"].clone()
            },
            "exactly one",
        ),
        (
            |limit| {
                limit["tiers"] = json!([{
                    "name": "large", "matches": [{"headers": [{"name": "x", "exact": "1"}]}], "unlimited": {},
                }]);
            },
            "is already used by tiers[0]",
        ),
    ] {
        let error = refused(change).await;
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Confirms the next whole policy, and returns the key set of its tokens.
async fn confirm_keys(session: &mut Session) -> String {
    let (uid, published) = loop {
        let (policies, _) = session.policies().await;
        if let Some(policy) = policies.policies.into_iter().next() {
            break policy;
        }
    };
    let policy: Value = serde_json::from_str(published.policy.get()).unwrap();
    let report = PolicyReport::Applied { hash: published.hash, findings: PolicyFindings::NOTHING };
    session.report([(uid, report)], sluice_config::message::StoreReport::HEALTHY).await;
    policy["jwt"][0]["verification"]["keys"]["jwks"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn public_keys_follow_their_object_and_without_them_their_limits_are_left_out() {
    let (namespace, control) = start("keys").await;
    let spec = |limits: Value| {
        json!({
            "selector": {"matchLabels": {"app": "a"}},
            "jwt": [{
                "name": "main", "issuer": "https://id.example", "audiences": ["shop"],
                "jwksFrom": {"secretRef": {"name": "id", "key": "jwks"}},
            }],
            "limits": limits,
        })
    };
    let rates = json!([{"requests": 5, "per": "1h"}]);
    let of_users = json!({"name": "l", "key": {"parts": [{"jwtClaim": {"jwt": "main", "claim": "sub"}}]}, "rates": rates});
    namespace.apply("p", spec(json!([of_users]))).await.unwrap();
    let message = namespace.wait_for("p", "ResolvedRefs", "False RefNotFound").await;
    assert!(message.starts_with("The Secret id does not exist"), "{message}");
    let mut session = open_session(&namespace, &control, "one").await;
    let (policies, _) = session.policies().await;
    let received = (policies.policies.len(), policies.fallback.len(), policies.keep.len());
    assert_eq!(received, (0, 0, 1), "without keys all clients would be one");
    namespace.apply("p", spec(json!([of_users, {"name": "all", "rates": rates}]))).await.unwrap();
    let fallback = loop {
        let (policies, _) = session.policies().await;
        assert!(policies.policies.is_empty(), "{policies:?}");
        if let Some((_, policy)) = policies.fallback.into_iter().next() {
            break serde_json::from_str::<Value>(policy.policy.get()).unwrap();
        }
    };
    let names: Vec<_> = fallback["limits"].as_array().unwrap().iter().map(|limit| &limit["name"]).collect();
    assert_eq!(names, ["all"]);
    assert!(fallback.get("jwt").is_none(), "{fallback}");

    let key = |id: &str| {
        json!({
            "kty": "EC", "crv": "P-256", "kid": id,
            "x": "lRaUvsc4IuE829Roo5b3YCFe-jbevH1qMSrGrI3aOtA", "y": "vbBE-R0c_-GWpd-YcmvkbWG5J-AySu6CbRUX6BhXerg",
        })
    };
    let apply = async |text: &str| {
        let jwks = base64::engine::general_purpose::STANDARD.encode(text);
        namespace.apply_object::<Secret>("id", json!({"data": {"jwks": jwks}})).await;
    };
    apply(&json!({"keys": [key("one")]}).to_string()).await;
    assert!(confirm_keys(&mut session).await.contains("\"one\""));
    namespace.wait_for("p", "Ready", "True Ready").await;
    apply(&json!({"keys": [key("one"), key("two")]}).to_string()).await;
    assert!(confirm_keys(&mut session).await.contains("\"two\""));
    namespace.wait_for("p", "Ready", "True Ready").await;

    apply("hunter2").await;
    let message = namespace.wait_for("p", "Ready", "False InvalidContent").await;
    assert!(message.contains("`jwks` of the Secret id is not a JSON Web Key Set, see line 1"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    let mut new = open_session(&namespace, &control, "two").await;
    assert!(confirm_keys(&mut new).await.contains("\"two\""), "a new pod gets the last good keys");
}
