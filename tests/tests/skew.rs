//! Today's operator with a sidecar of an older release. One policy is told what the sidecar does not know and which side is older. The
//! others go on. `tests/skew.sh` builds the older sidecar and runs these tests.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sluice_tests::application;
use sluice_tests::client::get;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};

const N: usize = 3;
/// Headers that the policies of these tests count.
const HEADERS: [&str; 2] = ["x-client", "x-edited"];

/// Returns the path of a program of the older release.
fn older(name: &str) -> PathBuf {
    let directory = std::env::var_os("SLUICE_OLDER").expect("SLUICE_OLDER: run tests/skew.sh");
    Path::new(&directory).join(name)
}

fn spec(header: &str, requests: usize) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": header}}]}, "rates": [{"requests": requests, "per": "24h"}]}],
    })
}

/// Sends twice as many requests of a client as one policy admits, and expects that it admits exactly these.
async fn expect_exactly(sidecar: &Sidecar, header: &str, client: &str, requests: usize) {
    let mut admitted = 0;
    for n in 0..2 * requests {
        // Another client for each other policy.
        let other = format!("{client}-{n}");
        let mut headers = vec![(header, client)];
        headers.extend(HEADERS.iter().filter(|name| **name != header).map(|name| (*name, other.as_str())));
        admitted += usize::from(get(&sidecar.address, "/", &headers).await.status == 200);
    }
    assert_eq!(admitted, requests, "{header}: {client}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs of an older commit: tests/skew.sh"]
async fn an_older_sidecar_refuses_one_policy_and_obeys_the_others() {
    let plane = ControlPlane::start().await;
    let redis = Redis::start().await;
    let operator = Operator::start(&plane, "skew-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "skew").await;
    namespace.apply("plain", spec("x-client", N)).await.expect("a policy");
    namespace.apply("edited", spec("x-edited", N)).await.expect("a policy");
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let upstream = application::immediate().await;
    let program = older("sluice-sidecar");
    let sidecar = Sidecar::start_program(program, &namespace, &pod, &operator, &upstream, "KILL", &[]).await;
    namespace.wait_for("plain", "Ready", "True Ready").await;
    namespace.wait_for("edited", "Ready", "True Ready").await;
    expect_exactly(&sidecar, "x-client", "before", N).await;

    // The older commit has no spec.application.
    let mut later = spec("x-edited", N + 1);
    later["application"] = json!({"habits": ["QueryNamesIgnoreCase"]});
    namespace.apply("edited", later).await.expect("an edit");
    let message = namespace.wait_for("edited", "Programmed", "False Refused").await;
    println!("{message}");
    assert!(message.contains("habits") && message.contains("older than the operator, restart"), "{message}");
    expect_exactly(&sidecar, "x-edited", "its version before", N).await;
    namespace.apply("plain", spec("x-client", N + 1)).await.expect("an edit of the other policy");
    namespace.wait_for("plain", "Ready", "True Ready").await;
    expect_exactly(&sidecar, "x-client", "after", N + 1).await;
}
