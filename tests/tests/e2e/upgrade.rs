//! `helm upgrade` from the previous commit to this one.

use sluice_config::message::VERSION;
use sluice_tests::node::{Load, SYSTEM, Shop, install_previous, kubectl, run, upgrade};
use sluice_tests::wait::until;

/// Returns the images of the sidecars, and the pod of the embedded Redis.
fn sidecar_images() -> String {
    let images = "{.items[*].spec.initContainers[?(@.name==\"sluice-sidecar\")].image}{.items[*].spec.containers[?(@.name==\"sluice-sidecar\")].image}";
    kubectl(&format!("-n upgrade get pods -l app=web -o jsonpath={images}"))
}

fn redis_pod() -> String {
    let query = "-l app.kubernetes.io/component=redis -o jsonpath={.items[*].metadata.name}";
    kubectl(&format!("-n {SYSTEM} get pods {query}"))
}

/// Returns the images of the operators, those that are ending too.
fn operator_images() -> String {
    let query = "-l app.kubernetes.io/component=operator -o jsonpath={.items[*].spec.containers[*].image}";
    kubectl(&format!("-n {SYSTEM} get pods {query}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_an_upgrade_under_load_loses_no_request_and_admits_n() {
    const N: usize = 5000;
    // The previous version finds nothing of this one.
    let uninstall = ["uninstall", "sluice", "--namespace", SYSTEM, "--ignore-not-found", "--wait"];
    assert!(run("helm", &uninstall, "").0);
    let crds = kubectl("get crd -o name");
    for crd in crds.lines().filter(|name| name.ends_with(".sluice.dev")) {
        kubectl(&format!("delete {crd} --timeout=180s"));
    }
    kubectl(&format!("-n {SYSTEM} delete secrets --all"));
    kubectl("delete namespaces -l sluice.dev/injection=enabled --wait=false");
    install_previous();
    let shop = Shop::open("upgrade");
    shop.deploy("web", 2);
    shop.limit_in_all("p", "web", N);
    shop.wait_for("p", "Ready", "True Ready").await;
    let (old_images, redis) = (sidecar_images(), redis_pod());
    let load = Load::start(&shop.address("web"));

    upgrade(&["--wait", "--timeout", "5m"]);
    // The new operator with the old sidecars, which it refuses if they speak otherwise. They go on with what they have then.
    let understands = std::env::var("SLUICE_E2E_PREVIOUS_MESSAGES") == Ok(VERSION.to_string());
    shop.limit_in_all("p", "web", N + 1);
    let expected = if understands { "True Ready" } else { "False PodsUnconfirmed" };
    shop.wait_for("p", "Ready", expected).await;
    if !understands {
        until("the logs of the old sidecars say what to do", async || {
            let logs = kubectl("-n upgrade logs -l app=web -c sluice-sidecar --tail=-1");
            logs.contains("restart the pod to update its sidecar").then_some(())
        })
        .await;
    }
    assert_eq!(sidecar_images(), old_images);
    // Until it has ended, the API server may still send a pod to an operator of the previous release.
    until("the previous operators have ended", async || {
        (!operator_images().contains("previous")).then_some(())
    })
    .await;
    shop.restart("web").await;
    shop.wait_for("p", "Ready", "True Ready").await;
    assert_ne!(sidecar_images(), old_images);
    if redis_pod() == redis && understands {
        load.expect_exactly(N + 1).await;
    } else {
        // The charts' embedded Redis differ, so its counters started at zero, and without it each pod had its share. Or the sidecars
        // that were refused went on with the limit before.
        load.expect_no_loss().await;
    }
}
