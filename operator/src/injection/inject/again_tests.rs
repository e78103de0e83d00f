use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{inject, *};
use crate::cluster::pods::pod::PodFacts;
use crate::injection::capture::TakenName;
use crate::injection::inject::tests::config;
use crate::injection::resources::Bounds;

fn read(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

/// Returns a pod after the webhook, and what it warns of.
fn asked(pod: &Value) -> (Value, Vec<String>) {
    let injected = inject(&read(pod), &config(true), &Bounds::default()).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &injected.patch).unwrap();
    (pod, injected.warnings)
}

/// Returns a pod that has its sidecar and was then changed.
fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let port = json!({"name": "http", "containerPort": 8080});
    let amounts = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}});
    let mut pod = asked(&json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app", "ports": [port]}], "resources": amounts}})).0;
    change(&mut pod);
    pod
}

fn facts(pod: &Value) -> PodFacts {
    PodFacts::read(&read(pod), &config(true), &Bounds::default())
}

#[test]
fn a_third_look_adds_nothing() {
    for change in [
        |pod: &mut Value| pod["spec"]["containers"][0]["ports"][0]["name"] = json!("http"),
        |pod: &mut Value| {
            pod["spec"]["resources"] = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}});
        },
        |pod: &mut Value| pod["spec"]["resources"] = json!({"limits": {"cpu": "1"}}),
        |pod: &mut Value| pod["spec"]["volumes"] = json!(null),
        |pod: &mut Value| pod["spec"]["initContainers"][0]["volumeMounts"] = json!([]),
        |pod: &mut Value| pod["spec"]["initContainers"][0]["restartPolicy"] = json!(null),
        |pod: &mut Value| pod["metadata"]["annotations"] = json!(null),
        |pod: &mut Value| {
            pod["spec"]["containers"][0]["ports"][0] =
                json!({"name": "http", "containerPort": 8080, "protocol": "TCP"});
        },
        |pod: &mut Value| {
            pod["spec"]["initContainers"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": "x", "ports": [{"containerPort": 8790}, {"containerPort": 8793}]}));
        },
    ] {
        let pod = changed(change);
        let (completed, warnings) = asked(&pod);
        assert!(pod != completed && warnings.is_empty(), "{warnings:?} {pod}");
        let again = inject(&read(&completed), &config(true), &Bounds::default());
        assert_eq!(again, Err(Skip::Present), "{completed}");
    }
}

#[test]
fn the_share_of_the_sidecar_is_added_once_to_what_is_set_again() {
    let cpu = |pod: &Value| ["requests", "limits"].map(|part| pod["spec"]["resources"][part]["cpu"].clone());
    assert_eq!(cpu(&changed(|_| {})), ["510m", "1010m"]);
    let set = changed(|pod| {
        pod["spec"]["resources"] = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}});
    });
    // A larger amount has the share: another container was added to it.
    assert_eq!(cpu(&asked(&set).0), ["510m", "2"]);
}

#[test]
fn a_name_at_another_container_is_told_as_kubernetes_finds_it() {
    let name = |pod: &mut Value, list: &str, container: &str| {
        let containers = pod["spec"][list].as_array_mut().unwrap();
        let container = json!({"name": container, "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 9000}]});
        if list == "containers" { containers.push(container) } else { containers.insert(0, container) }
    };
    for (list, container) in [("containers", "extra"), ("initContainers", "native")] {
        let pod = changed(|pod| name(pod, list, container));
        let warnings = inject(&read(&pod), &config(true), &Bounds::default()).unwrap().warnings;
        assert!(warnings[0].contains(container) && warnings[0].contains("\"http\""), "{warnings:?}");
        let taken = TakenName { name: "http".into(), container: container.into() };
        assert_eq!(facts(&pod).taken_names, [taken]);
    }
    let behind = changed(|pod| {
        let init = pod["spec"]["initContainers"].as_array_mut().unwrap();
        init.push(json!({"name": "x", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 9000}]}));
    });
    assert_eq!(inject(&read(&behind), &config(true), &Bounds::default()), Err(Skip::Present));
    assert_eq!(facts(&behind).taken_names, []);
    let put_back = changed(|pod| pod["spec"]["containers"][0]["ports"][0]["name"] = json!("http"));
    assert_eq!(facts(&put_back).taken_names, [TakenName { name: "http".into(), container: "app".into() }]);
    assert_eq!(facts(&asked(&put_back).0).taken_names, []);
}

#[test]
fn without_its_sidecar_a_pod_gets_the_name_back_and_says_so() {
    let removed = changed(|pod| pod["spec"]["initContainers"] = json!([]));
    let (given_back, warnings) = asked(&removed);
    assert_eq!(given_back["spec"]["containers"][0]["ports"][0]["name"], "http");
    assert!(warnings[0].contains("mutatingwebhookconfigurations,mutatingadmissionpolicies"), "{warnings:?}");
    for pod in [&removed, &given_back] {
        let facts = facts(pod);
        assert!(!facts.injected && facts.captured == Err(Skip::Removed), "{facts:?}");
    }
    // A copy of such a pod is a new pod.
    let spec = &asked(&given_back).0["spec"];
    assert_eq!(spec["initContainers"][0]["name"], "sluice-sidecar");
    // A name that something else has is not given twice.
    let named = changed(|pod| {
        pod["spec"]["initContainers"] = json!([]);
        pod["spec"]["containers"][0]["ports"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "http", "containerPort": 9000}));
    });
    assert!(asked(&named).0["spec"]["initContainers"][0]["name"] == "sluice-sidecar");
}
