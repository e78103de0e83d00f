//! `helm install` on a real node, as the README describes.

use serde_json::{Value, json};
use sluice_tests::node::{SYSTEM, install, kubectl, run};
use sluice_tests::wait::until;

/// A change of a webhook configuration.
type Change = fn(&mut Value);

/// Sends a request as the operator.
fn as_operator(arguments: &[&str], input: &str) -> (bool, String) {
    let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-operator");
    run("kubectl", &[arguments, &[&account]].concat(), input)
}

#[test]
fn e2e_helm_install_becomes_ready() {
    install();
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    assert!(kubectl("get crd ratelimitpolicies.sluice.dev -o name").contains("ratelimitpolicies.sluice.dev"));
    let pods = kubectl(&format!("-n {SYSTEM} get pods"));
    assert!(pods.contains("sluice-operator") && pods.contains("sluice-redis"), "{pods}");
}

#[test]
fn e2e_helm_test_succeeds() {
    install();
    let (ok, text) = run("helm", &["test", "sluice", "--namespace", SYSTEM, "--timeout", "3m"], "");
    assert!(ok, "{text}");
}

#[test]
fn e2e_the_operator_has_the_rights_that_it_needs_and_no_others() {
    install();
    let can = |request: &str| {
        let arguments: Vec<_> = ["auth", "can-i"].into_iter().chain(request.split(' ')).collect();
        as_operator(&arguments, "").0
    };
    for request in [
        "watch pods -A",
        "get pods -A",
        "create events.events.k8s.io -A",
        "patch events.events.k8s.io -A",
        "create tokenreviews.authentication.k8s.io",
        "get /openid/v1/jwks",
        "watch ratelimitpolicies.sluice.dev -A",
        "watch endpointslices.discovery.k8s.io -A",
        "watch networkpolicies.networking.k8s.io -A",
        "watch limitranges -A",
        "watch configmaps/sluice-ca -A",
        "watch mutatingwebhookconfigurations.admissionregistration.k8s.io/sluice",
        "create ratelimitpolicies.sluice.dev -n sluice-system",
    ] {
        assert!(can(request), "{request}");
    }
    for request in [
        "get secrets -A",
        "get secrets -n default",
        "get configmaps -A",
        "create pods -A",
        "delete pods -A",
        "patch deployments.apps -A",
        "create pods/exec -A",
        "update ratelimitpolicies.sluice.dev -A",
        "create ratelimitpolicies.sluice.dev -n default",
        "watch mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "patch limitranges -A",
        "patch services -A",
        "patch endpointslices.discovery.k8s.io -A",
        "create networkpolicies.networking.k8s.io -A",
        "get nodes",
        "create clusterrolebindings.rbac.authorization.k8s.io",
        "delete mutatingwebhookconfigurations.admissionregistration.k8s.io",
    ] {
        assert!(!can(request), "{request}");
    }
}

#[test]
fn e2e_the_operator_may_change_only_the_ca_of_its_webhooks() {
    install();
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    let replace = |kind: &str, change: &dyn Fn(&mut Value)| {
        let object = kubectl(&format!("get {kind} sluice -o json"));
        let mut object: Value = serde_json::from_str(&object).unwrap();
        change(&mut object);
        as_operator(&["replace", "-f", "-"], &object.to_string())
    };
    let denied: [(&str, Change); 8] = [
        ("not where requests go", |object| {
            object["webhooks"][0]["clientConfig"]["service"]["name"] = json!("other");
        }),
        ("not where requests go", |object| {
            let ca = object["webhooks"][0]["clientConfig"]["caBundle"].clone();
            object["webhooks"][0]["clientConfig"] = json!({"url": "https://other.example", "caBundle": ca});
        }),
        ("not which requests they receive", |object| {
            object["webhooks"][0]["rules"][0]["resources"] = json!(["secrets"]);
        }),
        ("not which requests they receive", |object| {
            object["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"a": "b"}});
        }),
        ("not which requests they receive", |object| {
            object["webhooks"][0]["timeoutSeconds"] = json!(30);
        }),
        ("not which webhooks there are", |object| {
            let mut another = object["webhooks"][0].clone();
            another["name"] = json!("another.example.com");
            object["webhooks"].as_array_mut().unwrap().push(another);
        }),
        ("not which webhooks there are", |object| object["webhooks"] = json!([])),
        ("not their metadata", |object| object["metadata"]["labels"]["a"] = json!("b")),
    ];
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        for (reason, change) in denied {
            let (ok, text) = replace(kind, &change);
            assert!(!ok && text.contains(reason), "{kind}, {reason}: {text}");
        }
        let (ok, text) = replace(kind, &|_| {});
        assert!(ok, "{text}");
    }
}

#[tokio::test]
async fn e2e_a_script_without_end_restarts_the_embedded_redis() {
    install();
    let restarts = || {
        let selector = "-l app.kubernetes.io/component=redis";
        let fields = "{.items[*].status.containerStatuses[*]['restartCount','ready']}";
        let status = kubectl(&format!("-n {SYSTEM} get pods {selector} -o jsonpath={fields}"));
        let (count, ready) = status.trim().split_once(' ').unwrap_or_default();
        (count.parse::<u32>().unwrap_or(0), ready == "true")
    };
    until("Redis is ready", async || restarts().1.then_some(())).await;
    let (before, _) = restarts();
    // No sidecar has the right to run a script, so the administrator makes a user who has. It ends with the server.
    let redis = |words: &str| {
        let command = format!(
            "-n {SYSTEM} exec deployment/sluice-redis -- redis-cli --tls --cacert /etc/sluice-redis/ca.crt --no-auth-warning {words}"
        );
        command.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    kubectl(&redis("--user sluice-admin acl setuser looper on >looper +eval").join(" "));
    let endless = std::thread::spawn(move || {
        let mut arguments = redis("--user looper -a looper eval");
        arguments.extend(["while true do end".to_owned(), "0".to_owned()]);
        run("kubectl", &arguments.iter().map(String::as_str).collect::<Vec<_>>(), "")
    });
    until("Redis is not ready", async || (!restarts().1).then_some(())).await;
    until("Redis is restarted", async || (restarts().0 > before && restarts().1).then_some(())).await;
    endless.join().unwrap();
}
