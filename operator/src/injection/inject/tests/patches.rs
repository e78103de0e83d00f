//! The patch of a pod, compared with the change of a typed pod.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use super::*;

const UNKNOWN: &str = "fieldOfTheFuture";

fn one(rng: &mut StdRng, values: &[Value]) -> Value {
    values.choose(rng).unwrap().clone()
}

fn some(rng: &mut StdRng, most: usize, mut make: impl FnMut(&mut StdRng) -> Value) -> Value {
    match rng.random_range(0..most + 3) {
        0 => Value::Null,
        number => (1..number.min(most + 1)).map(|_| make(rng)).collect(),
    }
}

fn action(rng: &mut StdRng) -> Value {
    let port = one(rng, &[json!("http"), json!("metrics"), json!("nowhere"), json!(8080)]);
    let actions = [
        json!({"httpGet": {"path": "/", "port": port, "httpHeaders": [{"name": "a", "value": "b"}]}}),
        json!({"tcpSocket": {"port": port}}),
        json!({"exec": {"command": ["true"]}}),
        json!({}),
        json!(null),
    ];
    one(rng, &actions)
}

fn container(rng: &mut StdRng, number: usize) -> Value {
    let mut container = json!({
        "name": format!("c{number}"), "image": "i", "env": [{"name": "A", "value": "b"}], "args": ["--a", "b"],
        "ports": some(rng, 3, |rng| {
            let name = one(rng, &[json!("http"), json!("metrics"), json!(null)]);
            let number = one(rng, &[json!(8080), json!(9090), json!(8790)]);
            json!({"name": name, "containerPort": number, "protocol": "TCP", "hostIP": "::1"})
        }),
        "livenessProbe": action(rng), "readinessProbe": action(rng), "startupProbe": action(rng),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": one(rng, &[json!({}), json!(null), json!({"limits": {"cpu": "1", "memory": "1Gi", "gpu": "1"}})]),
        "restartPolicy": one(rng, &[json!(null), json!("Always")]),
    });
    let lifecycle = json!({"postStart": action(rng), "preStop": action(rng)});
    let lifecycle = one(rng, &[json!(null), json!({}), lifecycle]);
    container["lifecycle"] = lifecycle;
    container
}

fn volume(rng: &mut StdRng) -> Value {
    let volumes = [
        json!({"name": "sluice-identity", "emptyDir": {}}),
        json!({"name": "sluice-state", "emptyDir": {}}),
        json!({"name": "certificate", "projected": {"sources": [{"podCertificate": {"signerName": "a/b", "keyType": "ED25519"}}]}}),
        json!({"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}),
    ];
    one(rng, &volumes)
}

/// Returns pods of all kinds.
pub(crate) fn pods() -> impl Iterator<Item = Value> {
    let mut rng = StdRng::seed_from_u64(7);
    let made = (0..3000).map(move |_| {
        let rng = &mut rng;
        let mut number = 0;
        let mut containers = |rng: &mut StdRng| {
            some(rng, 2, |rng| {
                number += 1;
                container(rng, number)
            })
        };
        let amounts = json!({"requests": {"cpu": "100m", "memory": "64Mi", "gpu": "1"}, "limits": {"cpu": "1"}, "claims": []});
        let spec = json!({
            "containers": containers(rng), "initContainers": containers(rng), "volumes": some(rng, 4, volume),
            "resources": one(rng, &[json!(null), json!({}), json!({"requests": null}), amounts]),
            "terminationGracePeriodSeconds": one(rng, &[json!(null), json!(30), json!(4), json!(1)]),
            "nodeSelector": one(rng, &[json!(null), json!({"a": "b"}), json!({"kubernetes.io/os": "linux"})]),
        });
        let annotations = one(rng, &[json!(null), json!({"other": "x", "sluice.dev/workers": "2", "sluice.dev/no": ""}), json!({"sluice.dev/ports": "http,metrics"})]);
        json!({"metadata": {"name": "p", "labels": {"a": "b"}, "annotations": annotations}, "spec": spec})
    });
    let of_meshes = meshes().map(|(_, spec)| json!({"metadata": {"name": "p"}, "spec": spec}));
    made.chain(of_meshes)
}

/// Adds an unknown field to every object but those whose fields are the user's, and the sidecar's volumes. Returns how many.
fn extend(value: &mut Value) -> usize {
    match value {
        Value::Object(fields)
            if !["sluice-identity", "sluice-state"]
                .contains(&fields.get("name").and_then(Value::as_str).unwrap_or_default()) =>
        {
            let users = ["annotations", "labels", "nodeSelector", "requests", "limits"];
            let inside: usize = fields
                .iter_mut()
                .filter(|(name, _)| !users.contains(&name.as_str()))
                .map(|(_, value)| extend(value))
                .sum();
            fields.insert(UNKNOWN.into(), json!({"a": [1]}));
            inside + 1
        }
        Value::Array(items) => items.iter_mut().map(extend).sum(),
        _ => 0,
    }
}

/// Removes the unknown fields. Returns how many there were.
fn reduce(value: &mut Value) -> usize {
    match value {
        Value::Object(fields) => {
            let own = usize::from(fields.remove(UNKNOWN).is_some());
            own + fields.values_mut().map(reduce).sum::<usize>()
        }
        Value::Array(items) => items.iter_mut().map(reduce).sum(),
        _ => 0,
    }
}

#[test]
fn the_patch_makes_the_same_pod_and_keeps_every_unknown_field() {
    let mut number = 0;
    for (pod, native) in pods().flat_map(|pod| [(pod.clone(), true), (pod, false)]) {
        let config = config(native);
        let read = |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).unwrap();
        let expected = typed::inject(read(&pod), &config);
        let found = inject(&read(&pod), &config, &Bounds::default());
        let Ok(expected) = expected else {
            assert_eq!(found.err(), expected.err(), "{pod}");
            continue;
        };
        let patch = found.unwrap().patch;
        let patched = |pod: &Value| {
            let mut pod = pod.clone();
            json_patch::patch(&mut pod, &patch).unwrap_or_else(|error| panic!("{error}: {pod}"));
            pod
        };
        let plain = patched(&pod);
        assert_eq!(read(&plain), expected, "{pod}");
        let mut extended = pod.clone();
        let unknown = extend(&mut extended);
        let mut reduced = patched(&extended);
        assert_eq!((reduce(&mut reduced), &reduced), (unknown, &plain), "{extended}");
        assert_eq!(inject(&read(&plain), &config, &Bounds::default()), Err(Skip::Present), "{pod}");
        number += 1;
    }
    assert!(number > 500, "{number} pods get a sidecar");
}
