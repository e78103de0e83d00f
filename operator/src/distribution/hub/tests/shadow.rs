//! Clients of limits in Shadow in the hub.

use std::collections::BTreeMap;

use sluice_config::CompiledPolicy;
use sluice_config::distinct::DistinctSketch;
use sluice_config::message::{Report, VERSION};

use crate::distribution::clients::HALF;
use crate::distribution::fixtures::{hub, identity, publish, selector, strict};
use crate::distribution::hub::Hub;
use crate::distribution::session::Identity;
use crate::names::PolicyKey;

fn report(hub: &Hub, session: &str, policy: &str, clients: std::ops::Range<u64>) {
    let mut sketch = DistinctSketch::default();
    clients.for_each(|n| sketch.add(u128::from((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))));
    let limits: BTreeMap<_, _> = [
        ("l".to_owned(), sketch.to_string()),
        ("enforced".to_owned(), sketch.to_string()),
        ("l2".to_owned(), "?".to_owned()),
    ]
    .into();
    let shadow_denied = [(format!("n/{policy}"), limits)].into();
    assert!(hub.report(session, Report { version: VERSION, shadow_denied, ..Report::default() }));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_several_pods_would_have_denied_counts_once() {
    let hub = hub();
    let limit = |name: &str, mode: &str| {
        let kind = r#"{"slots":{"max":5,"leaseMillis":30000,"abandonedForMillis":30000}}"#;
        let json = format!(r#"{{"name":"{name}","mode":"{mode}","onMissing":"Shared","kind":{kind}}}"#);
        serde_json::from_str(&json).unwrap()
    };
    let limits = vec![limit("l", "Shadow"), limit("l2", "Shadow"), limit("enforced", "Enforce")];
    publish(&hub, "1", selector("a"), &CompiledPolicy { limits, ..strict() });
    let mut closed = Vec::new();
    for (uid, app) in [("one", "a"), ("two", "a"), ("other", "b")] {
        let pod = Identity { pod_uid: uid.into(), ..identity(&[("app", app)]) };
        closed.push(hub.connect(pod, uid));
    }
    report(&hub, "one", "p", 0..20);
    report(&hub, "two", "p", 10..30);
    // Neither a pod that the policy does not select nor a policy that does not exist.
    report(&hub, "other", "p", 100..200);
    let counts = hub.shadow_denied();
    let limit = (PolicyKey::new("n", "p"), "l".to_owned());
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&limit]);
    assert!((28..=32).contains(&counts[&limit]), "{counts:?}");
    report(&hub, "two", "unknown", 10..30);
    tokio::time::advance(HALF).await;
    report(&hub, "one", "p", 40..50);
    assert!((37..=43).contains(&hub.shadow_denied()[&limit]));
    tokio::time::advance(HALF).await;
    assert!((9..=11).contains(&hub.shadow_denied()[&limit]));
    hub.remove("1");
    assert!(hub.shadow_denied().is_empty());
}
