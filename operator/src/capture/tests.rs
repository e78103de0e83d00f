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
    Ok(plan(&pod(ports, annotation))?.into_iter().map(|port| (port.name, port.sidecar)).collect())
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
    assert_eq!(planned(&twice, None), Err(CaptureError::DuplicateName("http".into())));
}

#[test]
fn the_sidecar_avoids_ports_of_the_application_but_needs_its_admin_port() {
    let proxy = json!([{"name": "http", "containerPort": 8790}]);
    assert_eq!(planned(&proxy, None), Ok(vec![("http".into(), 8794)]));
    let admin = json!([{"name": "http", "containerPort": 8080}, {"containerPort": 8791}]);
    assert_eq!(planned(&admin, None), Err(CaptureError::PortInUse(8791)));
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
