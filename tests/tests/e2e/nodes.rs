//! Three nodes: one is drained, and another one dies. It runs last, because the dead node stays dead. The first node, which
//! also has the control plane, DNS and the embedded Redis, stays.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_tests::authority::Authority;
use sluice_tests::client::get_many;
use sluice_tests::node::{Load, SYSTEM, Shop, apply, install, kubectl, run};
use sluice_tests::wait::until;

use crate::service::{Envoy, enable};

/// Returns the number of pods that are ready on each node.
fn ready_pods(namespace: &str, selector: &str) -> BTreeMap<String, usize> {
    let pods = kubectl(&format!("-n {namespace} get pods -l {selector} -o json"));
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let mut nodes = BTreeMap::new();
    for pod in pods["items"].as_array().unwrap() {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        if is_ready && pod["metadata"]["deletionTimestamp"].is_null() {
            *nodes.entry(pod["spec"]["nodeName"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    nodes
}

const OPERATOR: &str = "app.kubernetes.io/component=operator";

#[tokio::test(flavor = "multi_thread")]
async fn e2e_n_is_n_while_a_node_is_drained_and_after_another_one_has_died() {
    const N: usize = 3000;
    install();
    let authority = Authority::new();
    enable(&authority, "nodes");
    // A replica for each node.
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=3"));
    let shop = Shop::open("nodes");
    shop.deploy_with("web", 3, |pods| {
        // One pod for each node, and two for one of them while another one is away.
        pods["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }]);
        // Otherwise the pods of a dead node are replaced after five minutes.
        pods["tolerations"] = json!([
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        ]);
    });
    apply(
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web, namespace: nodes}, \
         spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}}",
    );
    shop.limit_in_all("p", "web", N);
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    shop.wait_for("p", "Ready", "True Ready").await;
    let operators = ready_pods(SYSTEM, OPERATOR);
    let [drained, killed] =
        if operators.contains_key("node2") { ["node2", "node3"] } else { ["node3", "node2"] };
    assert!(operators.contains_key(drained), "{operators:?}");
    assert_eq!(ready_pods("nodes", "app=web").len(), 3);
    let address = shop.address("web");

    apply(
        "{apiVersion: sluice.dev/v1alpha1, kind: RateLimitPolicy, metadata: {name: edge, namespace: nodes}, spec: {\
           enforcedBy: [Service], limits: [{name: l, rates: [{requests: 100000, per: 8784h}], \
           matches: [{rls: {domain: nodes, entries: [{key: client}]}}], key: {parts: [{descriptor: {key: client}}]}}]}}",
    );
    shop.wait_for("edge", "Programmed", "True Programmed").await;
    let gateway = Envoy::start("nodes", &address, &authority).await;

    // A voluntary disruption loses nothing.
    let load = Load::start(&address);
    let through = Load::start_as(&gateway.address, "gateway");
    kubectl(&format!("drain {drained} --ignore-daemonsets --delete-emptydir-data --force --timeout=180s"));
    until("the drained pods are ready elsewhere", async || {
        let moved = |nodes: BTreeMap<String, usize>| {
            !nodes.contains_key(drained) && nodes.values().sum::<usize>() == 3
        };
        (moved(ready_pods("nodes", "app=web")) && moved(ready_pods(SYSTEM, OPERATOR))).then_some(())
    })
    .await;
    shop.wait_for("p", "Ready", "True Ready").await;
    load.expect_exactly(N).await;
    through.expect_no_loss().await;
    assert_eq!(gateway.errors().await, 0, "questions without an answer");
    kubectl(&format!("uncordon {drained}"));

    // Requests that the dying node has are lost, and those that it is sent until Kubernetes notices its death.
    let load = Load::start_as(&address, "dying");
    until("requests are admitted", async || (load.admitted() >= 100).then_some(())).await;
    let (ok, text) = run("tests/node/node.sh", &["kill", killed], "");
    assert!(ok, "{text}");
    kubectl(&format!("wait --for=condition=Ready=Unknown node/{killed} --timeout=180s"));
    until("the pods of the dead node are replaced", async || {
        let web = ready_pods("nodes", "app=web");
        (!web.contains_key(killed) && web.values().sum::<usize>() == 3).then_some(())
    })
    .await;
    shop.wait_for("p", "Ready", "True Ready").await;
    until("the Service does not lead to the dead node", async || {
        let tally = get_many(&address, 30, 6, &[("x-client", "probe")]).await;
        (tally.count(200) == 30).then_some(())
    })
    .await;
    until("the gateway does not ask the dead node", async || {
        let tally = get_many(&gateway.address, 30, 6, &[("x-client", "probe")]).await;
        (tally.count(200) == 30).then_some(())
    })
    .await;
    // Numbers alone are written at most once in 10 s.
    until("the policy counts three pods", async || {
        kubectl("-n nodes get ratelimitpolicies.sluice.dev").contains("3/3").then_some(())
    })
    .await;
    let tally = get_many(&address, N + 200, 30, &[("x-client", "after")]).await;
    println!("after the death: {tally:?}");
    // The kernel still leads a connection to the dead node if its port is that of an earlier one which was led there.
    assert_eq!((tally.count(200), tally.count(429) + tally.count(0)), (N, 200), "{tally:?}");
    assert!(tally.count(429) > 0, "{tally:?}");
    // What the dead node had counted is still counted. Each client may have lost one response to an admitted request.
    let mut all = load.stop().await;
    all.add(get_many(&address, N + 200, 30, &[("x-client", "dying")]).await);
    println!("across the death: {all:?}");
    assert!((N - Load::CLIENTS..=N).contains(&all.count(200)), "{all:?}");
}
