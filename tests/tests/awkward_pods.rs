//! A sidecar never makes a pod worse: each of a table of awkward pods is created on a real API server with and without
//! injection. What is accepted without is accepted with; what the user wrote is still there; and every named port leads
//! through the sidecar, or to the very container as before.

mod table;

use std::panic::AssertUnwindSafe;

use base64::Engine as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use sluice_tests::client::get;
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::ControlPlane;
use sluice_tests::wait::until;
use table::{Case, Expected, cases};

pub(crate) const SIDECAR: &str = "sluice-sidecar";

/// Creates the two namespaces of a case: one without injection, and one with.
async fn namespaces(client: &kube::Client, number: usize, limits: &Value) -> [String; 2] {
    let api: Api<Namespace> = Api::all(client.clone());
    let names = [format!("plain-{number}"), format!("injected-{number}")];
    for (name, injection) in names.iter().zip(["disabled", "enabled"]) {
        let object = json!({"metadata": {"name": name, "labels": {"sluice.dev/injection": injection}}});
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        if !limits.is_null() {
            let range = json!({"metadata": {"name": "bounds"}, "spec": {"limits": limits}});
            let api: Api<LimitRange> = Api::namespaced(client.clone(), name);
            api.create(&PostParams::default(), &serde_json::from_value(range).unwrap()).await.unwrap();
        }
    }
    names
}

/// Lets the API server ask an operator about the pods of namespaces with injection. `canary` is one of them.
pub(crate) async fn enable_injection(client: &kube::Client, operator: &Operator, canary: &str) {
    let ca = base64::engine::general_purpose::STANDARD.encode(std::fs::read(operator.ca_file()).unwrap());
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "awkward"},
        "webhooks": [{
            "name": "inject.sluice.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "clientConfig": {"url": format!("{}/inject", operator.webhook_url), "caBundle": ca},
            "namespaceSelector": {"matchLabels": {"sluice.dev/injection": "enabled"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(configuration).unwrap()).await.unwrap();
    until("the API server calls the webhook", async || {
        let pod = json!({"metadata": {"name": "canary"}, "spec": {"serviceAccountName": "default", "containers": [{"name": "a", "image": "a", "ports": [{"name": "http", "containerPort": 1}]}]}});
        let api: Api<Pod> = Api::namespaced(client.clone(), canary);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = api.create(&params, &serde_json::from_value(pod).unwrap()).await;
        let created = created.inspect_err(|error| eprintln!("not yet: {error}")).ok()?;
        created.spec?.init_containers.is_some_and(|init| !init.is_empty()).then_some(())
    })
    .await;
}

/// Creates the pod of a case. Pods are raw JSON, so that no type drops a field.
async fn create(client: &kube::Client, namespace: &str, number: usize, case: &Case) -> Result<Value, String> {
    let mut metadata = case.metadata.clone();
    metadata["name"] = json!(format!("pod-{number}"));
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": case.spec});
    // As the admission plugin of service accounts does, which the control plane of the tests lacks.
    pod["spec"]["serviceAccountName"] = json!("default");
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
    let created = api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
    created.map(|pod| serde_json::to_value(pod).unwrap()).map_err(|error| error.to_string())
}

pub(crate) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Iterates over the containers that keep running, as Kubernetes does when it looks for a named port.
pub(crate) fn running(spec: &Value) -> impl Iterator<Item = &Value> {
    let native = list(spec, "initContainers").iter().filter(|init| init["restartPolicy"] == "Always");
    list(spec, "containers").iter().chain(native)
}

/// Returns the container and the number that a Service with this target port reaches.
pub(crate) fn reached<'a>(spec: &'a Value, name: &str) -> Option<(&'a str, i64)> {
    running(spec).find_map(|container| {
        let is_named = |port: &&Value| port["name"] == name && port["protocol"] == "TCP";
        let port = list(container, "ports").iter().find(is_named)?;
        Some((container["name"].as_str()?, port["containerPort"].as_i64()?))
    })
}

/// Returns the port of the application to which the sidecar forwards what it receives on a port.
pub(crate) fn behind_sidecar(spec: &Value, number: i64) -> Option<i64> {
    let sidecar = running(spec).find(|container| container["name"] == SIDECAR)?;
    list(sidecar, "args").iter().find_map(|argument| {
        let (listen, upstream) = argument.as_str()?.strip_prefix("--proxy=")?.split_once('=')?;
        let port = |address: &str| address.rsplit(':').next()?.parse::<i64>().ok();
        (port(listen)? == number).then(|| port(upstream))?
    })
}

/// Returns the names of all ports.
fn names(spec: &Value) -> Vec<&str> {
    running(spec)
        .flat_map(|container| list(container, "ports"))
        .filter_map(|port| port["name"].as_str())
        .collect()
}

/// Returns the spec without what a sidecar adds, and without what it may change: the names of its ports, references to
/// them, a delay before the stop, and the resources of the pod itself.
fn of_user(spec: &Value, captured: &[(String, i64)]) -> Value {
    let mut spec = spec.clone();
    let object = spec.as_object_mut().unwrap();
    object.remove("resources");
    for kind in ["containers", "initContainers", "volumes"] {
        let Some(items) = object.get_mut(kind).and_then(Value::as_array_mut) else { continue };
        let added = ["sluice-identity", "sluice-state"];
        items.retain(|item| {
            let is_sidecar = item["name"] == SIDECAR && !list(item, "volumeMounts").is_empty();
            let is_added = kind == "volumes" && added.iter().any(|name| item["name"] == *name);
            !is_sidecar && !is_added
        });
        items.iter_mut().for_each(|item| release(item, captured));
        if items.is_empty() {
            object.remove(kind);
        }
    }
    spec
}

fn release(container: &mut Value, captured: &[(String, i64)]) {
    for port in container["ports"].as_array_mut().into_iter().flatten() {
        let number = port["containerPort"].as_i64();
        let is_captured = captured.iter().any(|(name, own)| {
            Some(*own) == number && (port["name"].is_null() || port["name"] == name.as_str())
        });
        if is_captured {
            port.as_object_mut().unwrap().remove("name");
        }
    }
    let Some(container) = container.as_object_mut() else { return };
    if let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) {
        if lifecycle.get("preStop").is_some_and(|handler| handler["sleep"].is_object()) {
            lifecycle.remove("preStop");
        }
        if lifecycle.is_empty() {
            container.remove("lifecycle");
        }
    }
    let probes = ["readinessProbe", "livenessProbe", "startupProbe"].map(|probe| format!("/{probe}"));
    let handlers = ["preStop", "postStart"].map(|handler| format!("/lifecycle/{handler}"));
    let mut value = Value::Object(std::mem::take(container));
    for place in probes.iter().chain(&handlers) {
        for kind in ["httpGet", "tcpSocket"] {
            let Some(port) = value.pointer_mut(&format!("{place}/{kind}/port")) else { continue };
            if let Some((_, number)) = captured.iter().find(|(name, _)| port.as_str() == Some(name.as_str()))
            {
                *port = json!(number);
            }
        }
    }
    if let Value::Object(object) = value {
        *container = object;
    }
}

/// Checks a pod with its sidecar against the same pod without.
fn check_injected(name: &str, plain: &Value, injected: &Value) {
    let (before, after) = (&plain["spec"], &injected["spec"]);
    assert!(running(after).any(|container| container["name"] == SIDECAR), "{name}: no sidecar: {after:#}");
    let mut captured = Vec::new();
    for port in names(before) {
        let (was, now) = (reached(before, port), reached(after, port).unwrap());
        match behind_sidecar(after, now.1).filter(|_| now.0 == SIDECAR) {
            Some(application) => {
                assert_eq!(
                    was.map(|(_, number)| number),
                    Some(application),
                    "{name}: {port} leads elsewhere"
                );
                captured.push((port.to_owned(), application));
            }
            None => assert_eq!(was, Some(now), "{name}: {port} leads to another container"),
        }
    }
    assert!(!captured.is_empty(), "{name}: no port leads through the sidecar");
    assert_eq!(
        of_user(before, &captured),
        of_user(after, &captured),
        "{name}: something of the user is lost"
    );
    check_resources(name, before, after);
    if plain["status"]["qosClass"] == "Guaranteed" {
        assert_eq!(injected["status"]["qosClass"], "Guaranteed", "{name}: {after:#}");
        let sidecar = running(after).find(|container| container["name"] == SIDECAR).unwrap();
        let cpu = sidecar["resources"]["limits"]["cpu"].as_str().unwrap();
        assert!(cpu.ends_with('m'), "{name}: {cpu} is a whole CPU");
    }
}

/// Checks that the pod itself has the resources that it has without a sidecar, and the sidecar's.
fn check_resources(name: &str, before: &Value, after: &Value) {
    let own = &running(after).find(|container| container["name"] == SIDECAR).unwrap()["resources"];
    for (part, other) in [("requests", "limits"), ("limits", "requests")] {
        for (resource, amount) in before["resources"][part].as_object().into_iter().flatten() {
            let share = own[part].get(resource).unwrap_or(&own[other][resource]);
            let share = if share.is_null() { 0 } else { thousandths(share) };
            let raised = thousandths(&after["resources"][part][resource]);
            assert_eq!(raised, thousandths(amount) + share, "{name}: {part} of {resource}: {after:#}");
        }
    }
}

/// Returns an amount in thousandths.
pub(crate) fn thousandths(amount: &Value) -> i64 {
    let text = amount.as_str().unwrap_or_else(|| panic!("no amount: {amount}"));
    let units = [("m", 1.0), ("Mi", 1000.0 * 1_048_576.0), ("Gi", 1000.0 * 1_073_741_824.0), ("", 1000.0)];
    let read =
        |(unit, factor): (&str, f64)| Some((text.strip_suffix(unit)?.parse::<f64>().ok()? * factor) as i64);
    units.into_iter().find_map(read).unwrap_or_else(|| panic!("{text}"))
}

/// Checks what has become of the pod of a case, and what the operator has logged about it.
fn check(case: &Case, plain: &Value, injected: &Result<Value, String>, lines: &[&str]) {
    let injected =
        injected.as_ref().unwrap_or_else(|error| panic!("{}: refused with a sidecar: {error}", case.name));
    let is_told = |text: &str| lines.iter().any(|line| line.contains(text));
    match case.expected {
        Expected::Injected => {
            check_injected(case.name, plain, injected);
            assert!(lines.is_empty(), "{}: {lines:?}", case.name);
        }
        Expected::Warned(text) => {
            check_injected(case.name, plain, injected);
            assert!(is_told(text), "{}: {lines:?}", case.name);
        }
        Expected::Skipped(text) => {
            assert!(is_told("the pod gets no sidecar") && is_told(text), "{}: {lines:?}", case.name);
            assert_eq!(plain["spec"], injected["spec"], "{}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_accepts_without_a_sidecar_it_accepts_with_one() {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await;
    let cases = cases();
    let mut pairs = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        pairs.push(namespaces(&client, number, &case.limits).await);
    }
    // It reads the LimitRanges before it is ready.
    let operator = Operator::start(plane, "awkward-system", "redis://127.0.0.1:1").await;
    until("the operator is ready", async || {
        let ready = get(operator.admin_url.trim_start_matches("http://"), "/readyz", &[]).await;
        (ready.status == 200).then_some(())
    })
    .await;
    enable_injection(&client, &operator, "injected-0").await;
    let mut failures = Vec::new();
    for (number, (case, [without, with])) in cases.iter().zip(&pairs).enumerate() {
        let plain = create(&client, without, number, case).await;
        let plain = plain.unwrap_or_else(|error| panic!("{}: refused without a sidecar: {error}", case.name));
        let injected = create(&client, with, number, case).await;
        let about = format!("pod=\"pod-{number}\"");
        if let Expected::Warned(text) | Expected::Skipped(text) = case.expected {
            // The answer may be here before the line.
            until(&format!("the operator says of {}: {text}", case.name), async || {
                let log = operator.process.output();
                log.lines().any(|line| line.contains(&about) && line.contains(text)).then_some(())
            })
            .await;
        }
        let log = operator.process.output();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&about)).collect();
        // All cases are tried, also when one fails.
        let checked = std::panic::catch_unwind(AssertUnwindSafe(|| check(case, &plain, &injected, &lines)));
        match checked {
            Ok(()) => println!("ok      {}", case.name),
            Err(_) => failures.push(case.name),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
