use k8s_openapi::api::core::v1::LimitRange;
use serde_json::{Value, json};

use super::*;

const CONFIGURED: &str =
    r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"1","memory":"128Mi"}}"#;

fn configured() -> ResourceRequirements {
    serde_json::from_str(CONFIGURED).unwrap()
}

fn guaranteed() -> GuaranteedResources {
    GuaranteedResources { cpu: Amount::milli(200), memory: Amount::mebibytes(128) }
}

fn bounds(items: &Value) -> Bounds {
    let range: LimitRange =
        serde_json::from_value(json!({"metadata": {}, "spec": {"limits": items}})).unwrap();
    Bounds::of([&range])
}

/// Returns the spec of a pod whose only container has these resources.
fn pod(container: &Value, of_pod: &Value) -> PodSpec {
    let containers = json!([{"name": "app", "resources": container}]);
    serde_json::from_value(json!({"containers": containers, "resources": of_pod})).unwrap()
}

fn fitted(spec: &PodSpec, bounds: &Bounds) -> Result<Fitted, NoRoom> {
    fit(spec, bounds, &configured(), &configured(), &guaranteed())
}

/// Returns the sidecar's requests and limits as `cpu request, cpu limit, memory request, memory limit`.
fn amounts(fitted: &Fitted) -> String {
    let part = |part: &Option<std::collections::BTreeMap<String, Quantity>>, name: &str| {
        part.as_ref().and_then(|part| part.get(name)).map_or("-".to_owned(), |quantity| quantity.0.clone())
    };
    let ResourceRequirements { requests, limits, .. } = &fitted.sidecar;
    ["cpu", "memory"].map(|name| format!("{} {}", part(requests, name), part(limits, name))).join(", ")
}

fn of_container(range: &Value) -> Bounds {
    let mut item = json!({"type": "Container"});
    item.as_object_mut().unwrap().extend(range.as_object().unwrap().clone());
    bounds(&json!([item]))
}

fn of_pod(range: &Value) -> Bounds {
    let mut item = json!({"type": "Pod"});
    item.as_object_mut().unwrap().extend(range.as_object().unwrap().clone());
    bounds(&json!([item]))
}

#[test]
fn without_bounds_the_configured_quantities_stay_as_they_are_written() {
    let spec = pod(&json!({}), &json!(null));
    let fitted = fitted(&spec, &Bounds::default()).unwrap();
    assert_eq!((fitted.sidecar, fitted.pod), (configured(), None));
}

#[test]
fn the_limits_of_a_namespace_lower_the_limit_first_and_then_raise_the_request() {
    let app =
        json!({"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "256Mi"}});
    let spec = pod(&app, &json!(null));
    for (bounds, expected) in [
        (of_container(&json!({"max": {"cpu": "500m"}})), "10m 500m, 32Mi 128Mi"),
        (of_container(&json!({"max": {"cpu": "5e-1"}})), "10m 500m, 32Mi 128Mi"),
        (of_container(&json!({"min": {"cpu": "50m", "memory": "100Mi"}})), "50m 1, 100Mi 128Mi"),
        (of_container(&json!({"maxLimitRequestRatio": {"cpu": "4"}})), "50m 200m, 32Mi 128Mi"),
        (of_container(&json!({"maxLimitRequestRatio": {"cpu": "3", "memory": "2"}})), "67m 200m, 64Mi 128Mi"),
        (of_container(&json!({"maxLimitRequestRatio": {"cpu": "200"}})), "10m 1, 32Mi 128Mi"),
        (
            of_container(&json!({"max": {"cpu": "150m"}, "maxLimitRequestRatio": {"cpu": "4"}})),
            "38m 150m, 32Mi 128Mi",
        ),
        (of_container(&json!({"max": {"cpu": "100m", "memory": "64Mi"}})), "10m 100m, 32Mi 64Mi"),
        (of_container(&json!({"min": {"cpu": "2"}})), "2 2, 32Mi 128Mi"),
        (of_pod(&json!({"max": {"cpu": "500m", "memory": "320Mi"}})), "10m 300m, 32Mi 64Mi"),
        (of_pod(&json!({"maxLimitRequestRatio": {"cpu": "4"}})), "50m 200m, 32Mi 128Mi"),
        (of_pod(&json!({"maxLimitRequestRatio": {"cpu": "8"}})), "10m 280m, 32Mi 128Mi"),
    ] {
        assert_eq!(amounts(&fitted(&spec, &bounds).unwrap()), expected, "{bounds:?}");
    }
    for bounds in [
        of_container(&json!({"max": {"cpu": "99m"}})),
        of_container(&json!({"max": {"memory": "63Mi"}})),
        of_pod(&json!({"max": {"cpu": "250m"}})),
        of_pod(&json!({"max": {"memory": "300Mi"}})),
        of_container(
            &json!({"max": {"cpu": "200m"}, "min": {"cpu": "150m"}, "maxLimitRequestRatio": {"cpu": "0.5"}}),
        ),
    ] {
        assert_eq!(fitted(&spec, &bounds), Err(NoRoom), "{bounds:?}");
    }
}

#[test]
fn a_guaranteed_pod_stays_guaranteed_and_takes_no_whole_cpu() {
    let equal =
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}});
    let spec = pod(&equal, &json!(null));
    let fit_in = |bounds: &Bounds| fitted(&spec, bounds).map(|fitted| amounts(&fitted));
    assert_eq!(fit_in(&Bounds::default()), Ok("200m 200m, 128Mi 128Mi".to_owned()));
    assert_eq!(
        fit_in(&of_container(&json!({"min": {"cpu": "1"}}))),
        Ok("1001m 1001m, 128Mi 128Mi".to_owned())
    );
    assert_eq!(
        fit_in(&of_container(&json!({"max": {"cpu": "150m"}}))),
        Ok("150m 150m, 128Mi 128Mi".to_owned())
    );
    assert_eq!(fit_in(&of_container(&json!({"max": {"cpu": "50m"}}))), Err(NoRoom));
    // A limit without a request is also the request.
    let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(
        amounts(&fitted(&pod(&limits, &json!(null)), &Bounds::default()).unwrap()),
        "200m 200m, 128Mi 128Mi"
    );
    let burstable = json!({"limits": {"cpu": "1"}});
    assert_eq!(
        amounts(&fitted(&pod(&burstable, &json!(null)), &Bounds::default()).unwrap()),
        "10m 1, 32Mi 128Mi"
    );
}

#[test]
fn resources_of_the_pod_itself_are_raised_by_the_sidecar_s() {
    let app = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    let raised = |of_pod: Value| {
        let fitted = fitted(&pod(&app, &of_pod), &Bounds::default()).unwrap();
        (amounts(&fitted), serde_json::to_value(fitted.pod).unwrap())
    };
    let (sidecar, of_pod) = raised(
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "1e9"}}),
    );
    assert_eq!(sidecar, "10m 1, 32Mi 128Mi");
    assert_eq!(
        of_pod,
        json!({"requests": {"cpu": "110m", "memory": "96Mi"}, "limits": {"cpu": "1500m", "memory": "1134217728"}})
    );
    // Where both were equal they stay so.
    let (sidecar, of_pod) = raised(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "0.5"}}));
    assert_eq!(sidecar, "200m 200m, 32Mi 128Mi");
    assert_eq!(of_pod, json!({"requests": {"cpu": "700m"}, "limits": {"cpu": "700m"}}));
}

#[test]
fn annotations_that_do_not_fit_are_ignored_by_name() {
    let annotated = |text: &str| -> ResourceRequirements { serde_json::from_str(text).unwrap() };
    let spec = pod(&json!({}), &json!(null));
    let with = |spec: &PodSpec, bounds: &Bounds, text: &str| {
        let fitted = fit(spec, bounds, &configured(), &annotated(text), &guaranteed()).unwrap();
        (amounts(&fitted), fitted.ignored)
    };
    let large = r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"2","memory":"128Mi"}}"#;
    assert_eq!(with(&spec, &Bounds::default(), large), ("10m 2, 32Mi 128Mi".into(), vec![]));
    let max = of_container(&json!({"max": {"cpu": "500m"}}));
    assert_eq!(with(&spec, &max, large), ("10m 500m, 32Mi 128Mi".into(), vec!["cpu"]));
    let equal = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let spec = pod(&equal, &json!(null));
    let chosen = r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"300m","memory":"128Mi"}}"#;
    assert_eq!(with(&spec, &Bounds::default(), chosen), ("300m 300m, 128Mi 128Mi".into(), vec![]));
    // It would take whole CPUs from all others.
    assert_eq!(with(&spec, &Bounds::default(), large), ("200m 200m, 128Mi 128Mi".into(), vec!["cpu"]));
    let apart = r#"{"requests":{"cpu":"100m","memory":"32Mi"},"limits":{"cpu":"300m","memory":"128Mi"}}"#;
    assert_eq!(with(&spec, &Bounds::default(), apart), ("200m 200m, 128Mi 128Mi".into(), vec!["cpu"]));
}

#[test]
fn what_runs_while_a_pod_starts_counts_as_kubernetes_counts_it() {
    let spec: PodSpec = serde_json::from_value(json!({
        "containers": [{"name": "app", "resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [
            {"name": "first", "resources": {"limits": {"cpu": "3"}}},
            {"name": "helper", "restartPolicy": "Always", "resources": {"limits": {"cpu": "500m"}}},
            {"name": "last", "resources": {"limits": {"cpu": "2"}}},
        ],
    }))
    .unwrap();
    let limit = Totals::of(&spec, "cpu", false).limit;
    assert_eq!((limit.running, limit.starting), (Amount::milli(1500), Amount::milli(3000)));
    assert_eq!(limit.with(Amount::milli(1000)), Amount::milli(3000));
    // The sum of what runs bounds the sidecar, not what runs before it.
    let bounds = of_pod(&json!({"max": {"cpu": "3"}}));
    assert_eq!(amounts(&fitted(&spec, &bounds).unwrap()), "10m 1, 32Mi 128Mi");
}

#[test]
fn a_default_of_the_namespace_is_no_limit_below_the_request() {
    let spec = pod(&json!({}), &json!(null));
    let without_limit: ResourceRequirements = serde_json::from_value(
        json!({"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}),
    )
    .unwrap();
    let bounds = of_container(&json!({"default": {"cpu": "200m"}}));
    let fitted = fit(&spec, &bounds, &without_limit, &without_limit, &guaranteed()).unwrap();
    assert_eq!(amounts(&fitted), "250m 250m, 32Mi 128Mi");
}

#[test]
fn a_large_init_container_leaves_the_request_as_it_is() {
    let app = json!({"requests": {"memory": "128Mi"}, "limits": {"memory": "256Mi"}});
    let mut spec = pod(&app, &json!(null));
    spec.init_containers = serde_json::from_value(json!([
        {"name": "setup", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}},
    ]))
    .unwrap();
    let bounds = of_pod(&json!({"maxLimitRequestRatio": {"memory": "2"}}));
    let fitted = fit(&spec, &bounds, &configured(), &configured(), &guaranteed()).unwrap();
    assert_eq!(amounts(&fitted), "10m 1, 32Mi 128Mi");
}

#[test]
fn what_the_api_server_fills_in_is_raised_before_and_after_it_does() {
    let amounts = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let (large, small) = (amounts("4", "8Gi"), amounts("100m", "64Mi"));
    // What the pod sets, what its container sets, and the requests of the pod that the API server fills in without a sidecar.
    let variants = [
        (json!({"limits": large}), json!({}), large.clone()),
        (json!({"limits": large}), json!({"requests": small}), small.clone()),
        (json!({"limits": large}), json!({"limits": small}), small.clone()),
        (json!({"limits": small}), json!({"requests": small}), small.clone()),
        (json!({"limits": large}), json!({"requests": {"cpu": "1"}}), amounts("1", "8Gi")),
        (json!({"limits": {"memory": "8Gi"}}), json!({}), json!({"memory": "8Gi"})),
        (json!({"limits": {"memory": "8Gi"}}), json!({"requests": small}), small.clone()),
        (json!({"limits": large, "requests": large}), json!({}), large.clone()),
        (json!({"limits": large, "requests": small}), json!({}), small.clone()),
        (json!({"limits": large, "requests": {"cpu": "1"}}), json!({}), amounts("1", "8Gi")),
        (json!({"requests": large}), json!({}), large.clone()),
        (json!({"requests": large}), json!({"limits": large}), large.clone()),
        (json!({"requests": large}), json!({"limits": large, "requests": small}), large.clone()),
    ];
    for (of_pod, container, filled) in variants {
        let mut before = of_pod.clone();
        before["requests"] = filled.clone();
        // From 1.37 on the webhook is asked first, until 1.36 it gets what was filled in.
        for of_pod in [of_pod, before.clone()] {
            let fitted = fitted(&pod(&container, &of_pod), &Bounds::default()).unwrap();
            let raised = fitted.pod.unwrap();
            for resource in RESOURCES {
                let set: ResourceRequirements = serde_json::from_value(of_pod.clone()).unwrap();
                let plain: ResourceRequirements = serde_json::from_value(before.clone()).unwrap();
                let [set, plain, raised, own] =
                    [&set, &plain, &raised, &fitted.sidecar].map(|resources| share(resources, resource));
                if set == Share::default() {
                    continue;
                }
                let name = resource.name;
                let request = plain.request.unwrap().plus(own.request.unwrap());
                assert_eq!(raised.request, Some(request), "{name}: {of_pod} {container}");
                let limit = plain.limit.map(|limit| limit.plus(own.limit.unwrap()));
                assert_eq!(raised.limit, limit, "{name}: {of_pod} {container}");
                if plain.request == plain.limit {
                    assert_eq!(raised.request, raised.limit, "{name}: {of_pod} {container}");
                }
            }
        }
    }
}
