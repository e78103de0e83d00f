//! The default and the strict posture, with the operator dead, hanging, and absent at install. It runs alone, because
//! it stops the operator and installs it again.

use std::process::Command;

use serde_json::{Value, json};
use sluice_tests::client::get;
use sluice_tests::node::{SYSTEM, Shop, install, kubectl, run, try_apply, upgrade};
use sluice_tests::wait::until;

/// The chart's values for a missing operator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Posture {
    Default,
    Strict,
}

impl Posture {
    fn values(self) -> [&'static str; 4] {
        match self {
            Self::Default => {
                ["--set", "webhook.failurePolicy=Ignore", "--set", "sidecar.startupPolicy=Forward"]
            }
            Self::Strict => ["--set", "webhook.failurePolicy=Fail", "--set", "sidecar.startupPolicy=Deny"],
        }
    }
}

fn upgrade_and_wait(posture: Posture) {
    upgrade(&[&posture.values()[..], &["--wait", "--timeout", "5m"]].concat());
}

/// Waits until the API server reports no pod of the operator.
async fn operator_is_gone() {
    until("no operator runs", async || {
        let query = format!("-n {SYSTEM} get pods -l app.kubernetes.io/component=operator -o name");
        kubectl(&query).trim().is_empty().then_some(())
    })
    .await;
}

/// Sends a signal to the processes of the operator on the node.
fn signal_operators(signal: &str) {
    let mut found = false;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if command.split(|&byte| byte == 0).next() == Some(b"/sluice-operator") {
            let pid = process.file_name().into_string().unwrap();
            found |= Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success();
        }
    }
    assert!(found, "no operator runs on the node");
}

/// Creates a pod that should get a sidecar. Returns whether it was created, and the names of the containers that were
/// added, or the reason.
fn create_pod(namespace: &str, name: &str) -> (bool, String) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "app", "image": "sluice.local/toolbox:test", "args": ["serve"],
            "ports": [{"name": "http", "containerPort": 8080}],
        }]},
    });
    let (ok, text) = try_apply(&pod.to_string());
    if !ok {
        return (false, text);
    }
    let query = format!(
        "-n {namespace} get pod {name} -o jsonpath={{.spec.containers[*].name}},{{.spec.initContainers[*].name}}"
    );
    let names = kubectl(&query);
    let added: Vec<_> = names.split([' ', ',']).filter(|name| !name.is_empty() && *name != "app").collect();
    (true, added.join(" "))
}

/// Checks new pods and policies while no operator answers.
fn check_admission(posture: Posture, shop: &Shop, name: &str) {
    let (created, text) = create_pod(&shop.namespace, name);
    let policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"name": name, "namespace": shop.namespace},
        "spec": {"selector": {"matchLabels": {"app": "nobody"}}, "limits": [{"name": "l", "rates": [{"requests": 1, "per": "1m"}]}]},
    });
    let (accepted, refusal) = try_apply(&policy.to_string());
    match posture {
        Posture::Default => {
            assert_eq!((created, text.as_str(), accepted), (true, "", true), "{name}: {refusal}");
        }
        Posture::Strict => {
            assert!(!created && text.contains("namespace.inject.sluice.dev"), "{name}: {text}");
            assert!(!accepted && refusal.contains("validate.sluice.dev"), "{name}: {refusal}");
        }
    }
    // Nothing else is blocked: neither other namespaces nor the operator's own.
    for namespace in ["default", SYSTEM, "kube-system"] {
        assert_eq!(create_pod(namespace, name), (true, String::new()), "{namespace}");
        kubectl(&format!("-n {namespace} delete pod {name} --wait=false"));
    }
}

/// Checks a sidecar that finds no operator when its pod starts: a copy of an injected pod, in a namespace without
/// injection.
async fn check_startup(posture: Posture, injected: &str) {
    let mut pod: Value = serde_json::from_str(injected).unwrap();
    let name = format!("startup-{posture:?}").to_lowercase();
    pod["metadata"] = json!({"name": name, "namespace": "default"});
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    // The projected token of another namespace's pod; the API server adds one for this pod.
    let is_api_token =
        |value: &Value| value["name"].as_str().unwrap_or_default().starts_with("kube-api-access");
    pod["spec"]["volumes"].as_array_mut().unwrap().retain(|volume| !is_api_token(volume));
    for containers in ["containers", "initContainers"] {
        for container in pod["spec"][containers].as_array_mut().into_iter().flatten() {
            container["volumeMounts"].as_array_mut().unwrap().retain(|mount| !is_api_token(mount));
        }
    }
    let (ok, text) = try_apply(&pod.to_string());
    assert!(ok, "{text}");
    let expected = match posture {
        Posture::Default => 200,
        Posture::Strict => 503,
    };
    until(&format!("{name} responds with {expected}"), async || {
        let address = kubectl(&format!("-n default get pod {name} -o jsonpath={{.status.podIP}}"));
        if address.is_empty() {
            return None;
        }
        let response = get(&format!("{address}:8790"), "/", &[]).await;
        assert!([expected, 0, 502].contains(&response.status), "{response:?}");
        (response.status == expected).then_some(())
    })
    .await;
    let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let expected = if posture == Posture::Strict { "False" } else { "True" };
    until(&format!("Ready of {name} is {expected}"), async || {
        (run("kubectl", &["-n", "default", "get", "pod", &name, "-o", ready], "").1 == expected).then_some(())
    })
    .await;
    kubectl(&format!("-n default delete pod {name} --wait=false"));
}

async fn check_enforcement(address: &str, client: &str) {
    let headers = [("x-client", client)];
    for n in 0..4 {
        let status = get(address, "/", &headers).await.status;
        assert_eq!(status, if n < 3 { 200 } else { 429 }, "request {n} of {client}");
    }
}

#[tokio::test]
async fn e2e_both_postures_do_what_they_say_while_the_operator_is_dead_hangs_or_was_never_there() {
    install();
    let shop = Shop::open("posture");
    for posture in [Posture::Default, Posture::Strict] {
        upgrade_and_wait(posture);
        // Its sidecar has the values of this posture.
        let web = format!("web-{posture:?}").to_lowercase();
        shop.deploy(&web, 1);
        shop.limit(&web, &web, 3);
        shop.wait_for(&web, "Ready", "True Ready").await;
        let address = shop.address(&web);
        let name = |part: &str| format!("{part}-{posture:?}").to_lowercase();
        let query = format!("-n posture get pods -l app={web} -o jsonpath={{.items[0]}}");
        let injected = kubectl(&query);

        signal_operators("STOP");
        check_admission(posture, &shop, &name("hanging"));
        check_enforcement(&address, "hanging").await;
        signal_operators("CONT");

        kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=0"));
        operator_is_gone().await;
        check_admission(posture, &shop, &name("dead"));
        check_enforcement(&address, "dead").await;
        check_startup(posture, &injected).await;
    }
    for posture in [Posture::Default, Posture::Strict] {
        assert!(run("helm", &["uninstall", "sluice", "--namespace", SYSTEM, "--wait"], "").0);
        let absent = ["--set", "operator.image.tag=absent"];
        upgrade(&[&posture.values()[..], &absent].concat());
        check_admission(posture, &shop, &format!("absent-{posture:?}").to_lowercase());
    }
    // The strict installation recovers without help.
    upgrade_and_wait(Posture::Strict);
    until("new pods get a sidecar", async || {
        let (created, containers) = create_pod(&shop.namespace, "recovered");
        (created && containers == "sluice-sidecar").then_some(())
    })
    .await;
    upgrade_and_wait(Posture::Default);
    kubectl("delete namespace posture --wait=false");
}
