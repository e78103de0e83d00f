use serde_json::{Value, json};

use super::*;

fn pod(ports: &Value, annotation: Option<&str>) -> Pod {
    let annotations = annotation.map(|names| json!({PORTS_ANNOTATION: names}));
    serde_json::from_value(json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "app", "ports": ports}]},
    }))
    .unwrap()
}

/// Plans the capture and returns the name of each port with the port on which the sidecar listens.
fn planned(ports: &Value, annotation: Option<&str>) -> Result<Vec<(String, u16)>, CaptureError> {
    Ok(plan(&pod(ports, annotation))?.captured.into_iter().map(|port| (port.name, port.sidecar)).collect())
}

#[test]
fn the_port_named_http_is_captured_unless_the_annotation_names_others() {
    let two = json!([{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}]);
    assert_eq!(planned(&two, None), Ok(vec![("http".into(), 8790)]));
    let both = Ok(vec![("metrics".into(), 8790), ("http".into(), 8794)]);
    assert_eq!(planned(&two, Some("metrics, http")), both);
    assert_eq!(planned(&two, Some("web")), Err(CaptureError::UnknownName("web".into())));
    let redis = json!([{"name": "redis", "containerPort": 6379}]);
    assert_eq!(planned(&redis, Some("redis")), Ok(vec![("redis".into(), 8790)]));
}

#[test]
fn a_single_named_port_is_captured_only_if_its_name_indicates_http() {
    let redis = json!([{"name": "redis", "containerPort": 6379}]);
    assert_eq!(planned(&redis, None), Err(CaptureError::NotHttp("redis".into())));
    for (name, http) in [
        ("http-alt", true),
        ("web", true),
        ("grpc", true),
        ("http2", true),
        ("h2c", true),
        ("https", false),
        ("webhook", false),
    ] {
        assert_eq!(planned(&json!([{"name": name, "containerPort": 1}]), None).is_ok(), http, "{name}");
    }
}

#[test]
fn ports_without_a_clear_choice_are_not_captured() {
    let unnamed = json!([{"containerPort": 8080}]);
    assert_eq!(planned(&unnamed, None), Err(CaptureError::NoNamedPort));
    let http = json!([{"name": "http", "containerPort": 8080}]);
    assert_eq!(planned(&http, Some(" , ")), Err(CaptureError::EmptyAnnotation));
    let udp = json!([{"name": "dns", "containerPort": 53, "protocol": "UDP"}]);
    assert_eq!(planned(&udp, None), Err(CaptureError::NoNamedPort));
    let unclear = json!([{"name": "a", "containerPort": 1}, {"name": "b", "containerPort": 2}]);
    assert_eq!(planned(&unclear, None), Err(CaptureError::Ambiguous("a, b".into())));
    let twice = json!([{"name": "http", "containerPort": 8080}, {"name": "http", "containerPort": 8081}]);
    let app = || "app".to_owned();
    let duplicate = CaptureError::DuplicateName { name: "http".into(), first: app(), second: app() };
    assert_eq!(planned(&twice, None), Err(duplicate));
}

#[test]
fn the_sidecar_avoids_ports_of_the_application_but_needs_its_debug_port() {
    let proxy = json!([{"name": "http", "containerPort": 8790}]);
    assert_eq!(planned(&proxy, None), Ok(vec![("http".into(), 8794)]));
    let admin = |port: u16| {
        plan(&pod(&json!([{"name": "http", "containerPort": port}]), None)).map(|ports| ports.admin)
    };
    assert_eq!((admin(8080), admin(8791), admin(8792)), (Ok(8791), Ok(8794), Ok(8791)));
    let both =
        json!([{"name": "http", "containerPort": 8790}, {"containerPort": 8791}, {"containerPort": 8794}]);
    let ports = plan(&pod(&both, None)).unwrap();
    assert_eq!((ports.captured[0].sidecar, ports.admin), (8796, 8795));
    let debug = json!([{"name": "http", "containerPort": 8793}]);
    assert_eq!(planned(&debug, None), Err(CaptureError::PortInUse(8793)));
}

#[test]
fn the_annotation_may_choose_the_number_that_clients_know() {
    let moved = json!([{"name": "http", "containerPort": 8081}, {"name": "grpc", "containerPort": 9091}]);
    let chosen = Ok(vec![("http".into(), 8080), ("grpc".into(), 8790)]);
    assert_eq!(planned(&moved, Some("http=8080, grpc")), chosen);
    let first_default = Ok(vec![("http".into(), 8794), ("grpc".into(), 8790)]);
    assert_eq!(planned(&moved, Some("http, grpc = 8790")), first_default);
    for used in ["http=8081", "http=9091", "http=8080,grpc=8080"] {
        let error = planned(&moved, Some(used)).unwrap_err();
        assert!(matches!(error, CaptureError::PortInUse(_)), "{used}: {error}");
    }
    for bad in ["http=80", "http=", "http=x", "http=70000", "http=8791", "http=8793", "http=8080=1"] {
        let invalid = Err(CaptureError::InvalidPort(bad.into()));
        assert_eq!(planned(&moved, Some(bad)), invalid);
    }
}

/// Returns a pod with an application, a native sidecar and an ordinary init container, with these ports.
fn pod_with_helpers(app: &Value, native: &Value, init: &Value) -> Pod {
    serde_json::from_value(json!({"spec": {
        "containers": [{"name": "app", "ports": app}],
        "initContainers": [
            {"name": "helper", "restartPolicy": "Always", "ports": native}, {"name": "setup", "ports": init},
        ],
    }}))
    .unwrap()
}

fn annotated(mut pod: Pod, annotation: &str) -> Pod {
    pod.metadata.annotations = Some([(PORTS_ANNOTATION.to_owned(), annotation.to_owned())].into());
    pod
}

#[test]
fn a_name_that_a_native_sidecar_has_too_is_not_captured() {
    let port = |name: &str, number: u16| json!([{"name": name, "containerPort": number}]);
    let both = pod_with_helpers(&port("http", 8080), &port("http", 9000), &json!([]));
    let error = plan(&both).unwrap_err();
    assert!(
        error.to_string().contains("containers app and helper both have a port named \"http\""),
        "{error}"
    );
    assert_eq!(plan(&annotated(both, "http")), Err(error));
    // An init container that ends owns no name.
    let ended = pod_with_helpers(&port("http", 8080), &json!([]), &port("http", 9000));
    assert_eq!(plan(&ended).unwrap().captured[0].application, 8080);
}

#[test]
fn the_ports_of_native_sidecars_are_chosen_only_where_no_other_container_has_one() {
    let port = |name: &str, number: u16| json!([{"name": name, "containerPort": number}]);
    let alone = pod_with_helpers(&json!([{"containerPort": 8080}]), &port("http", 9000), &json!([]));
    assert_eq!(plan(&alone).unwrap().captured[0].application, 9000);
    // As before: two candidates would be ambiguous.
    let beside = pod_with_helpers(&port("web", 8080), &port("http", 9000), &json!([]));
    assert_eq!(plan(&beside).unwrap().captured[0].name, "web");
    assert_eq!(plan(&annotated(beside, "http")).unwrap().captured[0].application, 9000);
    let metrics = pod_with_helpers(&json!([]), &port("metrics", 9000), &json!([]));
    assert_eq!(plan(&metrics), Err(CaptureError::NotHttp("metrics".into())));
    let used = pod_with_helpers(
        &port("http", 8080),
        &json!([{"containerPort": 8790}]),
        &json!([{"containerPort": 8794}]),
    );
    assert_eq!(plan(&used).unwrap().captured[0].sidecar, 8795);
}

#[test]
fn the_name_of_a_mesh_s_port_is_not_captured_for_another_container() {
    let spec = |name: &str| {
        let mesh = json!({"name": "istio-proxy", "restartPolicy": "Always", "ports": [{"name": name, "containerPort": 15090}]});
        let app = json!({"name": "app", "ports": [{"name": "http", "containerPort": 8080}]});
        serde_json::from_value::<Pod>(json!({"spec": {"containers": [app], "initContainers": [mesh]}}))
            .unwrap()
    };
    assert_eq!(plan(&spec("http-envoy-prom")).unwrap().captured[0].application, 8080);
    assert!(matches!(plan(&spec("http")), Err(CaptureError::DuplicateName { .. })));
    assert_eq!(plan(&annotated(spec("mesh"), "mesh")), Err(CaptureError::UnknownName("mesh".into())));
}

#[test]
fn a_port_that_the_annotation_names_twice_is_captured_once() {
    let http = json!([{"name": "http", "containerPort": 8081}]);
    assert_eq!(planned(&http, Some("http, http")), Ok(vec![("http".into(), 8790)]));
    let two = Err(CaptureError::InvalidPort("http=8082".into()));
    assert_eq!(planned(&http, Some("http=8080, http=8082")), two);
}
