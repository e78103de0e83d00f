//! Pods that others change before and after Sluice's webhook, on a real API server. What leads through the sidecar still does, what
//! would refuse the pod is mended, and what does not lead through the sidecar any more is told.

mod changer;

use std::panic::AssertUnwindSafe;

use changer::{Changer, create_policy, register_webhooks};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

use crate::awkward_pods::{SIDECAR, behind_sidecar, enable_injection, list, reached, running, thousandths};

/// The outcome that is expected of a changed pod.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// Its port leads through its sidecar.
    Captured,
    /// The name of its port leads past the sidecar, which the log and the condition Captured tell.
    Taken(&'static str),
    /// It has lost its sidecar, and its port has its name.
    Removed,
}

use Expected::{Captured, Removed, Taken};

/// A change of a pod with a sidecar.
struct Case {
    name: &'static str,
    pod: Value,
    patch: Value,
    expected: Expected,
}

const AFTER: [Changer; 2] = [Changer::WebhookAfter, Changer::Policy("IfNeeded")];
const ALL: [Changer; 4] =
    [Changer::WebhookBefore, Changer::WebhookAfter, Changer::Policy("Never"), Changer::Policy("IfNeeded")];

/// Condition of CEL: the pod has its sidecar.
const HAS_SIDECAR: &str =
    "has(object.spec.initContainers) && object.spec.initContainers.exists(c, c.name == 'sluice-sidecar')";

fn app(extra: Value) -> Value {
    let mut app = json!({"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 8080}]});
    json_patch::merge(&mut app, &extra);
    json!({"containers": [app]})
}

fn add(path: &str, value: Value) -> Value {
    json!({"op": "add", "path": path, "value": value})
}

fn remove(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

fn container(ports: Value) -> Value {
    json!({"name": "extra", "image": "extra", "ports": ports})
}

fn native(ports: Value) -> Value {
    json!({"name": "extra", "image": "extra", "restartPolicy": "Always", "ports": ports})
}

fn case(name: &'static str, patch: Value, expected: Expected) -> Case {
    Case { name, pod: app(json!({})), patch, expected }
}

fn cases() -> Vec<Case> {
    let http = json!([{"name": "http", "containerPort": 9000, "protocol": "TCP"}]);
    let taken = "the containers extra and sluice-sidecar both have a port named \"http\"";
    let amounts =
        json!({"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    vec![
        case(
            "the name is put back",
            json!([add("/spec/containers/0/ports/0/name", json!("http"))]),
            Captured,
        ),
        case(
            "a container has the name",
            json!([add("/spec/containers/-", container(http.clone()))]),
            Taken(taken),
        ),
        case(
            "a native sidecar behind has the name",
            json!([add("/spec/initContainers/-", native(http.clone()))]),
            Captured,
        ),
        case(
            "a native sidecar in front has the name",
            json!([add("/spec/initContainers/0", native(http))]),
            Taken(taken),
        ),
        case(
            "a container with another port comes first",
            json!([add(
                "/spec/containers/0",
                container(json!([{"name": "metrics", "containerPort": 9000}]))
            )]),
            Captured,
        ),
        probe_by_name(),
        Case {
            name: "resources of the pod are set again",
            pod: json!({"containers": app(json!({"resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}}))["containers"], "resources": amounts}),
            patch: json!([add("/spec/resources", amounts.clone())]),
            expected: Captured,
        },
        Case {
            name: "resources of the pod are set for the first time",
            pod: app(json!({"resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}})),
            patch: json!([add("/spec/resources", amounts)]),
            expected: Captured,
        },
        case(
            "a container on 8790, 8791 and 8793",
            json!([add(
                "/spec/containers/-",
                container(
                    json!([{"containerPort": 8790, "protocol": "TCP"}, {"containerPort": 8791, "protocol": "TCP"}, {"containerPort": 8793, "protocol": "TCP"}])
                )
            )]),
            Captured,
        ),
        case("the sidecar is removed", json!([remove("/spec/initContainers/0")]), Removed),
        case(
            "the sidecar's restart policy",
            json!([remove("/spec/initContainers/0/restartPolicy")]),
            Captured,
        ),
        case("the sidecar's mounts", json!([remove("/spec/initContainers/0/volumeMounts")]), Captured),
        case("the volumes", json!([remove("/spec/volumes")]), Captured),
        case("the annotations", json!([remove("/metadata/annotations/sluice.dev~1injected")]), Captured),
    ]
}

/// A probe that names the port.
fn probe_by_name() -> Case {
    let probe = json!({"httpGet": {"path": "/", "port": "http"}});
    case("a probe by name", json!([add("/spec/containers/0/readinessProbe", probe)]), Captured)
}

/// Changes that are made before the sidecar is there.
fn cases_without_sidecar() -> Vec<Case> {
    let nameless = app(json!({"ports": [{"containerPort": 8080}]}));
    let name = json!([add("/spec/containers/0/ports/0/name", json!("http"))]);
    vec![
        Case { name: "a port without a name gets one", pod: nameless, patch: name, expected: Captured },
        probe_by_name(),
    ]
}

/// Creates a pod, as its only change adds a label.
async fn create(
    namespace: &TestNamespace,
    case: &Case,
    changer: Changer,
    dry_run: bool,
) -> kube::Result<Value> {
    let mut metadata = json!({"name": "pod", "labels": {"app": "a"}, "annotations": {"other": "b"}});
    let annotation = match changer {
        Changer::WebhookBefore => Some("test/before"),
        Changer::WebhookAfter => Some("test/after"),
        Changer::Policy(_) => None,
    };
    if let Some(annotation) = annotation {
        metadata["annotations"][annotation] = json!(with_label(&case.patch).to_string());
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": case.pod});
    pod["spec"]["serviceAccountName"] = json!("default");
    pod["spec"]["nodeName"] = json!("nowhere");
    let resource = ApiResource::erase::<Pod>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
    let params = PostParams { dry_run, ..PostParams::default() };
    let created = api.create(&params, &serde_json::from_value(pod).unwrap()).await?;
    Ok(serde_json::to_value(created).unwrap())
}

/// Returns a patch that also adds a label, by which the test sees that it was applied.
fn with_label(patch: &Value) -> Value {
    let label = add("/metadata/labels/changed", json!("yes"));
    patch.as_array().unwrap().iter().cloned().chain([label]).collect()
}

/// Checks what has become of a pod.
fn check(case: &Case, pod: &Value) {
    let spec = &pod["spec"];
    assert_eq!(pod["metadata"]["labels"]["changed"], "yes", "the change was made");
    assert!(
        pod["metadata"]["annotations"]["sluice.dev/injected"].is_string(),
        "it is noted what was changed"
    );
    if matches!(case.expected, Removed) {
        assert!(running(spec).all(|container| container["name"] != SIDECAR), "{spec:#}");
        assert_eq!(reached(spec, "http"), Some(("app", 8080)), "{spec:#}");
        return;
    }
    let sidecar = running(spec).find(|container| container["name"] == SIDECAR).expect("a sidecar that runs");
    match (case.expected, reached(spec, "http")) {
        (Captured, Some((SIDECAR, number))) => {
            assert_eq!(behind_sidecar(spec, number), Some(8080), "{spec:#}")
        }
        (Taken(_), Some(("extra", 9000))) => {}
        (expected, found) => panic!("{expected:?}, but found {found:?}: {spec:#}"),
    }
    let app = list(spec, "containers").iter().find(|container| container["name"] == "app").unwrap();
    assert!(app["ports"][0]["name"].is_null(), "{app:#}");
    for probe in [&app["readinessProbe"], &app["livenessProbe"]].into_iter().filter(|probe| !probe.is_null())
    {
        assert_eq!(probe["httpGet"]["port"], 8080, "{app:#}");
    }
    let mounts: Vec<_> = list(sidecar, "volumeMounts").iter().map(|mount| &mount["mountPath"]).collect();
    for path in ["/var/run/sluice/identity", "/var/run/sluice/state"] {
        assert!(mounts.contains(&&json!(path)), "{mounts:?}");
    }
    for volume in ["sluice-identity", "sluice-state"] {
        assert!(list(spec, "volumes").iter().any(|found| found["name"] == volume), "{spec:#}");
    }
    // No two containers listen on the same port, and probes and arguments of the sidecar follow its ports.
    let numbers: Vec<_> = running(spec)
        .flat_map(|container| list(container, "ports"))
        .map(|port| port["containerPort"].to_string())
        .collect();
    assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), numbers.len(), "{spec:#}");
    let admin = list(sidecar, "ports").iter().find(|port| port["name"] == "sluice-admin").unwrap();
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["port"], admin["containerPort"], "{sidecar:#}");
    let args: Vec<_> = list(sidecar, "args").iter().filter_map(Value::as_str).collect();
    assert!(args.contains(&format!("--admin=[::]:{}", admin["containerPort"]).as_str()), "{args:?}");
    let is_debug_taken = numbers.contains(&"8793".to_owned());
    assert_eq!(args.iter().any(|arg| arg.starts_with("--debug=")), !is_debug_taken, "{args:?}");
    let set = case.patch[0]["value"].get("requests").is_some().then(|| &case.patch[0]["value"]);
    for (part, other) in set.iter().flat_map(|_| [("requests", "limits"), ("limits", "requests")]) {
        for resource in ["cpu", "memory"] {
            let own = &sidecar["resources"];
            let share = own[part].get(resource).unwrap_or(&own[other][resource]);
            let share = if share.is_null() { 0 } else { thousandths(share) };
            let expected = thousandths(&set.unwrap()[part][resource]) + share;
            assert_eq!(
                thousandths(&spec["resources"][part][resource]),
                expected,
                "{part} of {resource}: {spec:#}"
            );
        }
    }
}

/// Checks what the status of a policy says of a pod that runs.
async fn check_status(namespace: &TestNamespace, expected: Expected) {
    namespace.service("web", json!({"app": "a"}), json!("http")).await;
    let limit =
        json!({"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": 5, "per": "1m"}]});
    namespace
        .apply("p", json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [limit]}))
        .await
        .unwrap();
    let running = json!({"status": {"phase": "Running", "podIP": "127.0.0.1"}});
    let patched =
        namespace.api::<Pod>().patch_status("pod", &PatchParams::default(), &Patch::Merge(&running)).await;
    patched.unwrap();
    let message = match expected {
        Captured => return drop(namespace.wait_for("p", "Captured", "True AllTraffic").await),
        Taken(_) => namespace.wait_for("p", "Captured", "False BypassedByService").await,
        Removed => {
            namespace.wait_for("p", "Programmed", "False SidecarRemoved").await;
            namespace.wait_for("p", "Captured", "False SidecarRemoved").await
        }
    };
    assert!(message.contains("mutatingwebhookconfigurations,mutatingadmissionpolicies"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_of_a_pod_is_completed_or_told() {
    // Others are asked about all its pods.
    let plane = &ControlPlane::start().await;
    let client = plane.client().await;
    let canary = TestNamespace::create(client.clone(), "canary").await;
    let operator = Operator::start(plane, "changed-system", "redis://127.0.0.1:1").await;
    enable_injection(&client, &operator, &canary.name).await;
    register_webhooks(&client).await;
    let mut failures = Vec::new();
    // Without a sidecar, whoever changes the pod does it again when it is asked again.
    for (cases, changers, condition) in
        [(cases(), AFTER.as_slice(), HAS_SIDECAR), (cases_without_sidecar(), &ALL, "true")]
    {
        for (case, &changer) in
            cases.iter().flat_map(|case| changers.iter().map(move |changer| (case, changer)))
        {
            let name = format!("{}: {changer:?}", case.name);
            let namespace = TestNamespace::create(client.clone(), "changed").await;
            if let Changer::Policy(reinvocation) = changer {
                create_policy(&client, &namespace.name, reinvocation, condition, &with_label(&case.patch))
                    .await;
            }
            until(&format!("the API server knows who changes pods: {name}"), async || {
                let created = create(&namespace, case, changer, true).await;
                created.map_or(Some(()), |pod| (pod["metadata"]["labels"]["changed"] == "yes").then_some(()))
            })
            .await;
            let pod = create(&namespace, case, changer, false).await;
            let checked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                check(case, &pod.unwrap_or_else(|error| panic!("{name}: refused: {error}")));
            }));
            if checked.is_err() {
                failures.push(name);
                continue;
            }
            check_status(&namespace, case.expected).await;
            if let Taken(text) = case.expected {
                let log = operator.process.output();
                assert!(
                    log.lines().any(|line| line.contains(&namespace.name) && line.contains(text)),
                    "{name}: {log}"
                );
            }
            println!("ok      {name}");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
