use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::cluster::routes::{EndpointSlice, NetworkPolicy, Service, Trimmed};
use crate::events::pods::{Unlimited, UnlimitedPod};
use crate::injection::inject::tests::config;
use crate::injection::resources::Bounds;
use crate::reconcile::facts::{NamespaceInjection, Outcome, StoreFact};
use crate::reconcile::status::fixtures::{observed, pod as applied};

mod network_policies;
mod other_pods;
mod services;

/// Objects of the namespace `shop`, as the API server has them.
#[derive(Default)]
struct Shop {
    pods: Vec<CountedPod>,
    services: Vec<Value>,
    endpoint_slices: Vec<Value>,
    network_policies: Vec<Value>,
    unlimited: Vec<UnlimitedPod>,
    is_unlabelled: bool,
}

impl Shop {
    /// Returns a namespace with a pod of `deployment/web` that has a sidecar.
    fn with_sidecar() -> Self {
        Self { pods: vec![counted(&pod("a"))], ..Self::default() }
    }

    fn service(mut self, service: Value) -> Self {
        self.services.push(service);
        self
    }

    fn network_policy(mut self, ingress: &Value) -> Self {
        let name = format!("np-{}", self.network_policies.len());
        let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": ingress});
        self.network_policies.push(json!({"metadata": {"name": name}, "spec": spec}));
        self
    }

    /// Returns the reason and the message of the condition.
    fn captured(&self) -> (&'static str, String) {
        let facts = Facts {
            service: Vec::new(),
            pods: self.pods.clone(),
            unlimited: self.unlimited.clone(),
            services: read::<Service>(&self.services),
            endpoint_slices: read::<EndpointSlice>(&self.endpoint_slices),
            network_policies: read::<NetworkPolicy>(&self.network_policies),
            absent: None,
            injection: NamespaceInjection {
                is_labelled: !self.is_unlabelled,
                ..NamespaceInjection::default()
            },
            idle: None,
            store: StoreFact::Default,
        };
        let outcome = Outcome::Invalid(Vec::new());
        let finding = super::captured(&observed(&outcome, &facts));
        assert_eq!(finding.status == "True", finding.reason == reasons::ALL_TRAFFIC, "{finding:?}");
        (finding.reason, finding.message)
    }
}

fn read<T: Trimmed>(objects: &[Value]) -> Vec<Arc<T>> {
    let read = |object: &Value| T::read(serde_json::from_value(object.clone()).unwrap()).map(Arc::new);
    objects.iter().filter_map(read).collect()
}

/// Returns a pod of `deployment/web` whose sidecar captures the port `http`.
fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web", "pod": name}},
        "spec": {
            "containers": [{"name": "app", "ports": [{"containerPort": 8080}]}],
            "initContainers": [{
                "name": "sluice-sidecar",
                "restartPolicy": "Always",
                "args": ["--proxy=[::]:8790=127.0.0.1:8080"],
                "volumeMounts": [{"name": "sluice-identity", "mountPath": "/identity"}],
                "ports": [{"name": "http", "containerPort": 8790}],
            }],
        },
    })
}

fn metadata(pod: &Value, owner: Option<&str>) -> Arc<Pod> {
    Arc::new(Pod {
        uid: pod["metadata"]["name"].as_str().unwrap().into(),
        namespace: "shop".into(),
        name: pod["metadata"]["name"].as_str().unwrap().into(),
        labels: serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap(),
        ends: None,
        created: None,
        owner: owner.map(Into::into),
        controller: None,
    })
}

fn counted(pod: &Value) -> CountedPod {
    CountedPod {
        pod: metadata(pod, Some("deployment/web")),
        facts: Arc::new(PodFacts::read(
            &serde_json::from_value(pod.clone()).unwrap(),
            &config(true),
            &Bounds::default(),
        )),
        addresses: Arc::new(["10.0.0.7".parse().unwrap()]),
        ..applied("")
    }
}

fn service(name: &str, spec: &Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"selector": {"app": "web"}}});
    json_patch::merge(&mut service["spec"], spec);
    service
}

/// Returns the commands in a message.
fn commands(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// Applies the JSON patch of a command to the object, as kubectl does.
fn run(command: &str, object: &mut Value) {
    let (command, patch) = command.split_once(" --type=json -p '").unwrap();
    let name = object["metadata"]["name"].as_str().unwrap();
    assert!(command.starts_with("kubectl -n shop patch ") && command.ends_with(name), "{command}");
    let patch: json_patch::Patch = serde_json::from_str(patch.strip_suffix('\'').unwrap()).unwrap();
    json_patch::patch(object, &patch).unwrap();
}

/// Runs the first command of the condition on the object that `find` returns, and expects that nothing else
/// bypasses the sidecars.
fn mend(mut shop: Shop, find: fn(&mut Shop) -> &mut Value) {
    let message = shop.captured().1;
    run(commands(&message)[0], find(&mut shop));
    assert_eq!(shop.captured(), (reasons::ALL_TRAFFIC, "No known route bypasses the sidecars.".into()));
}

#[test]
fn pods_that_no_selector_distinguishes_are_examined_once() {
    let mut shop = Shop::with_sidecar();
    shop.services = vec![service("web", &json!({"ports": [{"port": 80, "targetPort": "http"}]}))];
    shop.pods.extend((0..9).map(|n| counted(&pod(&n.to_string()))));
    let kinds = |shop: &Shop| {
        let (pods, services) = (shop.pods.clone(), read(&shop.services));
        kinds_of_pods(&Facts { pods, services, ..Facts::default() }).len()
    };
    assert_eq!(kinds(&shop), 1);
    shop.services.push(service("one", &json!({"selector": {"pod": "1"}})));
    assert_eq!(kinds(&shop), 10);
}

#[test]
fn a_message_names_three_bypasses_and_cuts_no_command_off() {
    let mut shop = Shop::with_sidecar();
    for name in ["a", "b", "c", "d", "e"] {
        shop.services.push(service(name, &json!({"ports": [{"port": 80, "targetPort": 8080}]})));
    }
    let message = shop.captured().1;
    assert!(commands(&message).len() == 3 && message.ends_with(". There are 2 more."), "{message}");
    for service in &mut shop.services {
        service["metadata"]["name"] = json!("n".repeat(900));
    }
    shop.services[0]["metadata"]["name"] = json!("a");
    let message = shop.captured().1;
    assert!(commands(&message).len() == 1 && message.ends_with(". There is 1 more."), "{message}");
}
