//! Routes past the sidecars on a real node. Each test creates one, reads the condition Captured, runs the command
//! of its message as a user would type it, and reads the condition again.

use serde_json::{Value, json};
use sluice_tests::client::get_many;
use sluice_tests::node::{SYSTEM, Shop, apply, install, kubectl, run};
use sluice_tests::wait::until;

/// Opens a namespace with a policy of 5 requests an hour and client for pods with the label `app: web`.
fn open(namespace: &str) -> Shop {
    install();
    let shop = Shop::open(namespace);
    shop.limit("p", "web", 5);
    shop
}

/// Applies an object in the namespace.
fn create(shop: &Shop, mut object: Value) {
    object["metadata"]["namespace"] = json!(shop.namespace);
    apply(&object.to_string());
}

/// Returns a workload with one pod with the label `app: web`, whose name is a label too.
fn workload(kind: &str, name: &str) -> Value {
    let labels = json!({"app": "web", "workload": name});
    let container = json!({
        "name": "app",
        "image": "sluice.local/toolbox:test",
        "args": ["serve"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1},
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"workload": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]},
            },
        },
    })
}

/// Creates a workload and waits until it is ready.
fn deploy(shop: &Shop, object: Value) {
    let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
    let name = format!("{}/{name}", kind.to_lowercase());
    create(shop, object);
    kubectl(&format!("-n {} rollout status {name} --timeout=180s", shop.namespace));
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Returns the commands in a message.
fn commands(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// Runs a command as a user types it.
fn type_in(command: &str) {
    let (ok, text) = run("sh", &["-c", command], "");
    assert!(ok, "{command}: {text}");
}

/// Waits for a bypass, runs the first command of its message, and waits until the policy is ready.
async fn mend(shop: &Shop, reason: &str, start: &str) {
    let message = shop.wait_for("p", "Captured", &format!("False {reason}")).await;
    assert!(message.starts_with(start), "{message}");
    type_in(commands(&message)[0]);
    shop.wait_for("p", "Ready", "True Ready").await;
}

/// Expects that no request of a client is denied.
async fn assert_unlimited(address: &str, client: &str) {
    let tally = get_many(address, 20, 4, &[("x-client", client)]).await;
    assert_eq!(tally.count(200), 20, "{address}: {tally:?}");
}

/// Waits until requests of a client are denied.
async fn wait_until_limited(address: &str, client: &str) {
    until(&format!("{address} is limited"), async || {
        let tally = get_many(address, 20, 4, &[("x-client", client)]).await;
        (tally.count(429) > 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_services_and_endpoint_slices_that_bypass_the_sidecars_are_mended() {
    let shop = open("routes");
    deploy(&shop, workload("Deployment", "web"));
    shop.wait_for("p", "Ready", "True Ready").await;
    let pod = shop.pod_addresses("web").remove(0);

    create(
        &shop,
        service("legacy", json!({"selector": {"app": "web"}, "ports": [{"port": 81, "targetPort": 8080}]})),
    );
    shop.wait_for("p", "Ready", "False BypassedByService").await;
    until("the Service has its endpoint", async || {
        let tally = get_many(&shop.address("legacy"), 1, 1, &[]).await;
        (tally.count(200) == 1).then_some(())
    })
    .await;
    assert_unlimited(&shop.address("legacy"), "legacy").await;
    mend(&shop, "BypassedByService", "Port 81 of Service legacy targets port 8080").await;
    wait_until_limited(&shop.address("legacy"), "legacy").await;

    create(&shop, service("manual", json!({"ports": [{"port": 80}]})));
    create(
        &shop,
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "manual"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [pod]}],
            "ports": [{"port": 8080}],
        }),
    );
    mend(&shop, "BypassedByService", "EndpointSlice by-hand of Service manual lists pod web-").await;
    wait_until_limited(&shop.address("manual"), "manual").await;

    create(&shop, service("copied", json!({"ports": [{"port": 80}]})));
    create(
        &shop,
        json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "copied"},
            "subsets": [{"addresses": [{"ip": pod}], "ports": [{"port": 8080}]}],
        }),
    );
    let message = shop.wait_for("p", "Captured", "False BypassedByService").await;
    assert!(message.starts_with("Object Endpoints copied lists pod web-"), "{message}");
    type_in(&format!("KUBE_EDITOR='sed -i s/8080/8790/' {}", commands(&message)[0]));
    shop.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_stateful_set_with_its_headless_service_becomes_ready_in_three_ways() {
    let shop = open("stateful");
    let headless = |name: &str| {
        let ports = json!([{"name": "http", "port": 8080, "targetPort": "http"}]);
        service(name, json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": ports}))
    };
    create(&shop, headless("db"));
    let mut stateful_set = workload("StatefulSet", "db");
    stateful_set["spec"]["serviceName"] = json!("db");
    deploy(&shop, stateful_set);
    let message = shop.wait_for("p", "Captured", "False BypassedByService").await;
    assert!(message.starts_with("Service db is headless"), "{message}");
    let pod = shop.pod_addresses("web").remove(0);
    assert_unlimited(&format!("{pod}:8080"), "by-address").await;
    type_in(commands(&message)[0]);
    shop.wait_for("p", "Ready", "True Ready").await;
    let port = kubectl("-n stateful get service db -o jsonpath={.spec.ports[0].port}");
    wait_until_limited(&format!("{pod}:{port}"), "by-address").await;

    kubectl("-n stateful delete service db");
    create(&shop, headless("db"));
    let message = shop.wait_for("p", "Captured", "False BypassedByService").await;
    type_in(commands(&message)[1]);
    let message = shop.wait_for("p", "Ready", "True Ready").await;
    assert!(message.ends_with("because of the annotation sluice.dev/bypass: Service db."), "{message}");

    // The application moves, and the sidecar listens on the port that clients know.
    kubectl("-n stateful annotate service db sluice.dev/bypass-");
    shop.wait_for("p", "Ready", "False BypassedByService").await;
    let mut moved = workload("StatefulSet", "db");
    moved["spec"]["serviceName"] = json!("db");
    let template = &mut moved["spec"]["template"];
    template["metadata"]["annotations"] = json!({"sluice.dev/ports": "http=8080"});
    template["spec"]["containers"][0]["env"] = json!([{"name": "PORT", "value": "8081"}]);
    template["spec"]["containers"][0]["ports"] = json!([{"name": "http", "containerPort": 8081}]);
    deploy(&shop, moved);
    shop.wait_for("p", "Ready", "True Ready").await;
    let pod = shop.pod_addresses("web").remove(0);
    wait_until_limited(&format!("{pod}:8080"), "moved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_pods_without_limits_behind_the_service_of_limited_ones_are_mended() {
    let shop = open("others");
    deploy(&shop, workload("Deployment", "web"));
    create(
        &shop,
        service("web", json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]})),
    );
    shop.wait_for("p", "Ready", "True Ready").await;

    let mut out = workload("Deployment", "out");
    out["spec"]["template"]["metadata"]["labels"]["sluice.dev/inject"] = json!("false");
    deploy(&shop, out);
    mend(&shop, "BypassedByPod", "Service web also sends requests to deployment/out, which applies no").await;

    let mut host = workload("Deployment", "host");
    host["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    deploy(&shop, host);
    // Told where people look, because nobody reads the warnings that a ReplicaSet gets.
    let told = "the pod gets no sidecar: it uses the network of its host";
    until("the Deployment has the event", async || {
        let text = kubectl("-n others describe deployment host");
        text.lines().any(|line| line.contains("NotInjected") && line.ends_with(told)).then_some(())
    })
    .await;
    mend(&shop, "BypassedByPod", "Service web also sends requests to deployment/host, which applies no")
        .await;
    until("the policy counts three pods", async || {
        kubectl("-n others get ratelimitpolicies.sluice.dev").contains("3/3").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_pods_without_a_sidecar_that_the_policy_does_not_select_are_mended() {
    install();
    apply("{apiVersion: v1, kind: Namespace, metadata: {name: mixed}}");
    let shop = Shop { namespace: "mixed".into() };
    let mut web = workload("Deployment", "web");
    web["spec"]["template"]["metadata"]["labels"]["sluice.dev/inject"] = json!("true");
    deploy(&shop, web);
    deploy(&shop, workload("Deployment", "old"));
    create(
        &shop,
        service("web", json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]})),
    );
    create(
        &shop,
        json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "RateLimitPolicy",
            "metadata": {"name": "p"},
            "spec": {
                "selector": {"matchLabels": {"workload": "web"}},
                "mode": "Shadow",
                "limits": [{"name": "all", "rates": [{"requests": 5, "per": "1h"}]}],
            },
        }),
    );
    let message = shop.wait_for("p", "Captured", "False BypassedByPod").await;
    assert!(
        message.starts_with("Service web also sends requests to deployment/old, which has no"),
        "{message}"
    );
    for command in commands(&message) {
        type_in(command);
    }
    let message = shop.wait_for("p", "Ready", "True Ready").await;
    assert!(message.contains("It rejects no request, because its mode is Shadow."), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_ports_of_the_node_and_ports_that_are_not_captured_are_mended() {
    let shop = open("ports");
    let mut web = workload("Deployment", "web");
    web["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([
        {"name": "http", "containerPort": 8080, "hostPort": 18080}, {"name": "metrics", "containerPort": 9090},
    ]);
    deploy(&shop, web);
    mend(&shop, "BypassedByPod", "Port 8080 of deployment/web is also a hostPort").await;
    create(
        &shop,
        service(
            "metrics",
            json!({"selector": {"app": "web"}, "ports": [{"port": 90, "targetPort": "metrics"}]}),
        ),
    );
    mend(&shop, "BypassedByService", "Port 90 of Service metrics targets port metrics of the pods").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_network_policies_on_the_application_s_port_are_mended_and_the_chart_closes_it() {
    let shop = open("policies");
    deploy(&shop, workload("Deployment", "web"));
    shop.wait_for("p", "Ready", "True Ready").await;
    let ingress = json!([{"from": [{"podSelector": {}}], "ports": [{"port": 8080}]}]);
    create(
        &shop,
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "clients"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": ingress},
        }),
    );
    mend(&shop, "BlockedByNetworkPolicy", "NetworkPolicy clients allows clients of port 8080").await;
    kubectl("-n policies delete networkpolicy clients");

    let closed = r#"closedPorts=[{"namespace":"policies","ports":[9090,8080]}]"#;
    let (ok, manifests) = run(
        "helm",
        &[
            "template",
            "sluice",
            "charts/sluice",
            "--namespace",
            SYSTEM,
            "--kube-version",
            "1.37.0",
            "--show-only",
            "templates/closed-ports.yaml",
            "--set-json",
            closed,
        ],
        "",
    );
    assert!(ok, "{manifests}");
    apply(&manifests);
    let text = kubectl("-n policies get networkpolicy sluice-closed-ports -o json");
    let policy: Value = serde_json::from_str(&text).unwrap();
    let ports = policy["spec"]["ingress"][0]["ports"].as_array().unwrap().clone();
    let allows = |number: i64| {
        ports.iter().filter(|port| port["protocol"] == "TCP").any(|port| {
            let (first, last) = (port["port"].as_i64().unwrap(), port["endPort"].as_i64().unwrap());
            (first..=last).contains(&number)
        })
    };
    let closed: Vec<_> = (1..=65535).filter(|number| !allows(*number)).collect();
    assert_eq!(closed, [8080, 9090], "{policy}");
    shop.limit("p", "web", 6);
    shop.wait_for("p", "Ready", "True Ready").await;
}
