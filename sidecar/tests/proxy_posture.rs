//! What a sidecar does and tells when something is missing: its policies, its store, its application.
#![allow(clippy::unwrap_used, reason = "helper functions of tests unwrap too")]

mod support;

use std::time::Duration;

use sluice_config::store_access::StoreChoice;
use sluice_sidecar::{Options, Route, Sidecar, StartupPolicy};
use support::*;

/// Starts a sidecar with options of the test, which has received no policies.
fn start(application: &Application, tune: impl FnOnce(&mut Options)) -> Sidecar {
    let upstream = application.address.to_string().parse().unwrap();
    let mut options = Options::new(vec![Route { listen: "127.0.0.1:0".parse().unwrap(), upstream }]);
    options.admin = Some("127.0.0.1:0".parse().unwrap());
    options.startup_wait = Duration::ZERO;
    tune(&mut options);
    Sidecar::start(options).unwrap()
}

#[tokio::test]
async fn a_strict_sidecar_rejects_all_requests_until_it_has_policies() {
    let application = Application::start().await;
    let sidecar = start(&application, |options| options.startup_policy = StartupPolicy::Deny);
    let (address, admin) = (sidecar.addresses()[0], sidecar.admin().unwrap());
    let mut client = Client::connect(address).await;
    for _ in 0..2 {
        let denied = client.get("").await;
        assert_eq!((denied.status, denied.header("retry-after")), (503, "1"), "{denied:?}");
        assert_eq!(denied.json()["detail"], "The service is not ready. Try again in 1 s.");
    }
    let grpc = grpc_call(address, "application/grpc").await;
    assert_eq!(grpc.headers()["grpc-status"], "14");
    assert_eq!(application.count(), 0);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 0);
    assert_eq!(metric(&sidecar.metrics(), "sluice_refused_requests_total{reason=\"no_policies\"}"), 3);
    // The pod starts, and gets no traffic from Services.
    while page(admin, "/startupz").await.status != 200 {}
    let ready = page(admin, "/readyz").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (503, "no policies received: all requests are rejected\n")
    );
    assert_eq!(page(admin, "/livez").await.status, 200);

    publish(&sidecar, &StoreChoice::Memory, &[]);
    assert_eq!((client.get("").await.status, application.count()), (200, 1));
    assert_eq!(page(admin, "/readyz").await.status, 200);
}

#[tokio::test]
async fn a_sidecar_forwards_requests_without_policies_by_default() {
    let application = Application::start().await;
    let sidecar = start(&application, |_| {});
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 1);
    assert_eq!(page(sidecar.admin().unwrap(), "/readyz").await.status, 200);
}
