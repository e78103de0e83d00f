//! Pods as people write them, on a real node: where their applications listen, what they request, and who owns the names of
//! their ports.

use serde_json::{Value, json};
use sluice_tests::client::get;
use sluice_tests::node::{Shop, apply, has_native_sidecars, install, kubectl};
use sluice_tests::wait::until;

/// Lets the application listen on this address, in which `$(POD_IP)` stands for that of its pod.
fn listen(pods: &mut Value, address: &str) {
    pods["containers"][0]["env"] = json!([
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LISTEN", "value": address},
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_an_application_that_listens_on_the_address_of_its_pod_is_reached_and_limited() {
    install();
    let shop = Shop::open("awkward-address");
    shop.deploy_with("web", 1, |pods| listen(pods, "$(POD_IP):8080"));
    shop.limit("p", "web", 2);
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    for expected in [200, 200, 429] {
        assert_eq!(get(&address, "/", &[("x-client", "alice")]).await.status, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_an_application_that_does_not_answer_is_told_by_an_event_and_in_ready() {
    install();
    let shop = Shop::open("awkward-silent");
    shop.deploy_with("web", 1, |pods| {
        // No address of the pod is an IPv6 one, so a connection to ::1 would come from ::1, which applications trust.
        listen(pods, "[::1]:8080");
        pods["containers"][0].as_object_mut().unwrap().remove("readinessProbe");
    });
    shop.limit("p", "web", 1000);
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    until("an event tells of it", async || {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(get(&address, "/", &[("x-client", "alice")]).await.status, 502);
        let query = "-n awkward-silent get events --field-selector reason=ApplicationUnreachable,involvedObject.kind=Pod -o name";
        (!kubectl(query).is_empty()).then_some(())
    })
    .await;
    let message = kubectl(
        "-n awkward-silent get ratelimitpolicies.sluice.dev p -o jsonpath={.status.conditions[?(@.type=='Ready')].message}",
    );
    assert!(message.contains("has accepted no connection on port 8080"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_name_that_a_native_sidecar_has_too_leads_where_it_did_before() {
    install();
    if !has_native_sidecars() {
        return;
    }
    let shop = Shop::open("awkward-names");
    shop.deploy_with("web", 1, |pods| {
        pods["initContainers"] = json!([{
            "name": "helper", "image": "sluice.local/toolbox:test", "args": ["serve"], "restartPolicy": "Always",
            "env": [{"name": "PORT", "value": "9000"}], "ports": [{"name": "http", "containerPort": 9000}],
        }]);
    });
    shop.limit("p", "web", 5);
    let captured = "-n awkward-names get ratelimitpolicies.sluice.dev p -o jsonpath={.status.conditions[?(@.type=='Captured')].message}";
    let message = until("Captured names both", async || {
        let message = kubectl(captured);
        message.contains("containers app and helper both have a port named").then_some(message)
    })
    .await;
    assert!(message.contains("cannot get a sidecar"), "{message}");
    // The application has answered, and not the other container.
    assert_eq!(get(&shop.address("web"), "/", &[]).await.status, 200);
    let pod = shop.pod_addresses("web").remove(0);
    let served = async |port: u16| get(&format!("{pod}:{port}"), "/count", &[]).await.body.trim().to_owned();
    assert_eq!((served(8080).await.as_str(), served(9000).await.as_str()), ("1", "0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_pods_with_resources_of_their_own_and_under_a_limit_range_run_and_are_limited() {
    install();
    let shop = Shop::open("awkward-resources");
    let limits = json!([{"type": "Container", "max": {"cpu": "500m"}, "maxLimitRequestRatio": {"cpu": "10"}, "min": {"cpu": "20m"}}]);
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "bounds", "namespace": "awkward-resources"},
        "spec": {"limits": limits},
    });
    apply(&range.to_string());
    let small =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}});
    shop.deploy_with("bounded", 1, |pods| pods["containers"][0]["resources"] = small.clone());
    let equal =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}});
    shop.deploy_with("guaranteed", 1, |pods| pods["containers"][0]["resources"] = equal.clone());
    let class =
        kubectl("-n awkward-resources get pods -l app=guaranteed -o jsonpath={.items[0].status.qosClass}");
    assert_eq!(class, "Guaranteed");
    for app in ["bounded", "guaranteed"] {
        shop.limit(app, app, 1);
        shop.wait_for(app, "Ready", "True Ready").await;
        let address = shop.address(app);
        for expected in [200, 429] {
            assert_eq!(get(&address, "/", &[("x-client", "alice")]).await.status, expected, "{app}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_pod_with_limits_of_its_own_starts_with_its_sidecar() {
    install();
    // Where sidecars are not native, the server may not know the field yet.
    if !has_native_sidecars() {
        return;
    }
    let shop = Shop::open("awkward-pod-level");
    shop.deploy_with("web", 1, |pods| {
        pods["resources"] = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}});
    });
    shop.limit("p", "web", 1);
    shop.wait_for("p", "Ready", "True Ready").await;
    let restarts = kubectl(
        "-n awkward-pod-level get pods -o jsonpath={.items[*].status.initContainerStatuses[*].restartCount}",
    );
    assert!(restarts.split_whitespace().all(|count| count == "0"), "{restarts}");
    let address = shop.address("web");
    for expected in [200, 429] {
        assert_eq!(get(&address, "/", &[("x-client", "alice")]).await.status, expected);
    }
}
