//! `helm uninstall` leaves pods serving.

use sluice_tests::client::get;
use sluice_tests::node::{SYSTEM, Shop, install, kubectl, run};
use sluice_tests::wait::until;

#[tokio::test]
async fn e2e_uninstall_leaves_pods_serving() {
    install();
    let shop = Shop::open("leave");
    shop.deploy("web", 2);
    shop.limit("p", "web", 3);
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    assert_eq!(get(&address, "/", &[("x-client", "a")]).await.status, 200);

    assert!(run("helm", &["uninstall", "sluice", "--namespace", SYSTEM, "--wait"], "").0);
    until("the operator and Redis are gone", async || {
        let (ok, pods) = run("kubectl", &["-n", SYSTEM, "get", "pods", "-o", "name"], "");
        (ok && pods.trim().lines().all(|line| !line.starts_with("pod/"))).then_some(())
    })
    .await;
    // Without Redis each pod enforces its share of the limit.
    for client in 0..20 {
        assert_eq!(get(&address, "/", &[("x-client", &format!("b{client}"))]).await.status, 200);
    }
    // New pods start without a sidecar.
    kubectl("-n leave rollout restart deployment/web");
    shop.wait_for_rollout("web");
    until("the old pods are gone and the new ones have no sidecar", async || {
        let query = "-n leave get pods -l app=web -o jsonpath={.items[*].spec.containers[*].name},{.items[*].spec.initContainers[*].name}";
        (!kubectl(query).contains("sluice-sidecar")).then_some(())
    })
    .await;
    assert_eq!(get(&address, "/", &[]).await.status, 200);
    assert!(
        run("kubectl", &["get", "crd", "ratelimitpolicies.sluice.dev"], "").0,
        "an uninstall keeps the policies"
    );
}
