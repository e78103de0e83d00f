//! All certificates are replaced while sidecars are connected. It runs alone: until all replicas of the operator have the
//! new certificate, pods may start without a sidecar.

use std::io::Write as _;

use base64::Engine as _;
use sluice_tests::client::get_many;
use sluice_tests::node::{Load, SYSTEM, Shop, install, kubectl, run};
use sluice_tests::wait::until;

fn authority() -> String {
    let query = format!("-n {SYSTEM} get secret sluice-certificates -o jsonpath={{.data.ca\\.crt}}");
    let bytes = base64::engine::general_purpose::STANDARD.decode(kubectl(&query).trim()).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_new_certificates_reach_live_sessions_and_redis_without_a_lost_request() {
    const N: usize = 5000;
    install();
    let shop = Shop::open("certificates");
    shop.deploy("web", 2);
    shop.limit_in_all("p", "web", N);
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    let before = authority();
    let load = Load::start(&address);

    kubectl(&format!("-n {SYSTEM} delete secret sluice-certificates"));
    kubectl(&format!("-n {SYSTEM} rollout restart deployment/sluice-operator"));
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    let after = authority();
    assert_ne!(before, after);

    // The sidecars have sessions again: they confirm an edit.
    shop.limit_in_all("p", "web", N + 1);
    shop.wait_for("p", "Ready", "True Ready").await;
    // New pods get a sidecar, and their namespace gets a user in Redis, so the operator can connect to it.
    let fresh = Shop::open("certificates-new");
    fresh.deploy("web", 1);
    fresh.limit("p", "web", 5);
    fresh.wait_for("p", "Ready", "True Ready").await;
    fresh.wait_for("p", "StoreHealthy", "True Healthy").await;
    let tally = get_many(&fresh.address("web"), 8, 1, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (5, 3), "{tally:?}");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(after.as_bytes()).unwrap();
    let ip = kubectl(&format!("-n {SYSTEM} get service sluice-redis -o jsonpath={{.spec.clusterIP}}"));
    until("Redis has a certificate of the new authority", async || {
        let (server, file) = (format!("{}:6379", ip.trim()), file.path().to_str().unwrap());
        let arguments = ["s_client", "-brief", "-verify_return_error", "-CAfile", file, "-connect", &server];
        run("openssl", &arguments, "").0.then_some(())
    })
    .await;
    shop.wait_for("p", "StoreHealthy", "True Healthy").await;
    load.expect_exactly(N + 1).await;
}
