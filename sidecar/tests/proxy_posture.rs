//! A sidecar without its policies, its store or its application: what it does, and what it tells.

use std::time::Duration;

use sluice_config::store_access::StoreChoice;
use sluice_sidecar::{Options, Route, Sidecar, StartupPolicy};

use crate::support::*;

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
        assert_eq!(denied.json()["detail"], "The service is not ready. Try again in 1 second.");
    }
    let grpc = grpc_call(address, "application/grpc").await;
    assert_eq!(grpc.headers()["grpc-status"], "14");
    assert_eq!(application.count(), 0);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 0);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_rejecting"), 1);
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
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_rejecting"), 0);
    assert_eq!(page(admin, "/readyz").await.status, 200);
}

#[tokio::test]
async fn a_sidecar_forwards_requests_without_policies_by_default() {
    let application = Application::start().await;
    let sidecar = start(&application, |_| {});
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 1);
    assert!(sidecar.metrics().contains("\nsluice_sidecar_rejecting 0\n"));
    assert_eq!(page(sidecar.admin().unwrap(), "/readyz").await.status, 200);
}

/// Returns every header and body that a client receives while the store and then the application are away.
async fn responses_to_faults(debug_headers: bool) -> Vec<HttpResponse> {
    let application = Application::start().await;
    // Bound, so that nobody else gets the port, but not listening.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let redis = redis_at(&format!("redis://{}", closed.local_addr().unwrap()));
    let tuned = |options: &mut Options| options.debug_headers = debug_headers;
    let mut responses = Vec::new();
    for on_failure in ["Allow", "Deny", "Share"] {
        let sidecar = start(&application, tuned);
        publish(&sidecar, &redis, &[prepare(&policy_json("p", on_failure, &[limit("l", 1, "")]))]);
        for _ in 0..2 {
            responses.push(get(sidecar.addresses()[0], "x-api-key: a\r\n").await);
        }
    }
    let nowhere = Application { address: "127.0.0.1:1".parse().unwrap(), ..application };
    let sidecar = start(&nowhere, tuned);
    responses.push(get(sidecar.addresses()[0], "").await);
    responses
}

#[tokio::test]
async fn responses_do_not_tell_that_limits_are_off_nor_where_the_application_is() {
    let responses = responses_to_faults(false).await;
    let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 200, 429, 502]);
    for response in responses {
        let text = format!("{response:?}").to_lowercase().replace("\"cache-control\": \"no-store\"", "");
        for word in ["sluice", "redis", "store", "unreachable", "127.0.0.1", "refused", "os error"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
}

#[tokio::test]
async fn debug_headers_tell_why_the_store_and_the_application_did_not_answer() {
    let mut responses = responses_to_faults(true).await;
    let bad_gateway = responses.pop().unwrap();
    assert!(bad_gateway.body.contains("at 127.0.0.1:1: "), "{bad_gateway:?}");
    for response in &responses {
        assert_eq!(response.header("x-sluice-store-failure"), "unreachable", "{response:?}");
    }
    assert!(responses[2].body.contains("(unreachable)"), "{:?}", responses[2]);
}
