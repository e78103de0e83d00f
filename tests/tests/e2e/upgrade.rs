//! `helm upgrade` from the previous commit to this one.

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
    // The new operator with the old sidecars.
    shop.limit_in_all("p", "web", N + 1);
    shop.wait_for("p", "Ready", "True Ready").await;
    assert_eq!(sidecar_images(), old_images);
    // Until it has ended, the API server may still send a pod to an operator of the previous release.
    until("the previous operators have ended", async || {
        (!operator_images().contains("previous")).then_some(())
    })
    .await;
    shop.restart("web").await;
    shop.wait_for("p", "Ready", "True Ready").await;
    assert_ne!(sidecar_images(), old_images);
    if redis_pod() == redis {
        load.expect_exactly(N + 1).await;
    } else {
        // The charts' embedded Redis differ. Its counters started at zero, and without it each pod had its share.
        load.expect_no_loss().await;
    }
}
