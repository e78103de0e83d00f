//! A change of the operator's leader. It runs alone, because after it other tests would
//! have to wait until all pods have reported to the new leader.

use sluice_tests::client::get;
use sluice_tests::node::{SYSTEM, Shop, install, kubectl};
use sluice_tests::wait::until;

#[tokio::test]
async fn e2e_another_replica_takes_over_and_serves_the_sidecars_when_the_leader_dies() {
    install();
    let shop = Shop::open("leader");
    shop.deploy("web", 2);
    shop.limit("p", "web", 5);
    shop.wait_for("p", "Ready", "True Ready").await;
    let query = format!("-n {SYSTEM} get lease sluice-operator -o jsonpath={{.spec.holderIdentity}}");
    let holder = kubectl(&query);
    let pod = holder.rsplit_once('_').unwrap().0.to_owned();
    kubectl(&format!("-n {SYSTEM} delete pod {pod} --grace-period=0 --force"));
    until("another replica holds the lease", async || {
        let now = kubectl(&query);
        (!now.is_empty() && now != holder).then_some(())
    })
    .await;
    shop.limit("p", "web", 7);
    shop.wait_for("p", "Ready", "True Ready").await;
    let response = get(&shop.address("web"), "/", &[("x-client", "a")]).await;
    assert_eq!(response.header("x-ratelimit-limit"), Some("7"), "{response:?}");
}
