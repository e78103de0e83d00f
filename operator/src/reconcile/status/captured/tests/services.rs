//! Services and EndpointSlices.

use super::*;

fn with_port(port: &Value) -> Shop {
    Shop::with_sidecar().service(service("web", &json!({"ports": [port]})))
}

fn headless(port: &Value) -> Shop {
    Shop::with_sidecar().service(service("db", &json!({"clusterIP": "None", "ports": [port]})))
}

fn first_service(shop: &mut Shop) -> &mut Value {
    &mut shop.services[0]
}

fn slice(service: &str, managed_by: Option<&str>, port: &Value) -> Value {
    let mut labels = json!({"kubernetes.io/service-name": service});
    if let Some(controller) = managed_by {
        labels["endpointslice.kubernetes.io/managed-by"] = json!(controller);
    }
    json!({
        "metadata": {"name": "by-hand", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["10.0.0.7"]}],
        "ports": [{"name": "metrics", "port": 8791}, port],
    })
}

fn with_slice(managed_by: Option<&str>, port: &Value) -> Shop {
    let service = json!({"metadata": {"name": "manual"}, "spec": {"ports": [{"port": 80}]}});
    let endpoint_slices = vec![slice("manual", managed_by, port)];
    Shop { endpoint_slices, ..Shop::with_sidecar() }.service(service)
}

#[test]
fn a_service_that_targets_the_sidecar_does_not_bypass_it() {
    for target in [json!("http"), json!(8790), json!("sluice-admin"), json!(8791)] {
        let shop = with_port(&json!({"port": 80, "targetPort": target}));
        assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC, "{target}");
    }
    let dns = with_port(&json!({"port": 53, "targetPort": 53, "protocol": "UDP"}));
    assert_eq!(dns.captured().0, reasons::ALL_TRAFFIC);
}

#[test]
fn a_service_by_name_leads_to_the_first_container_that_has_the_name() {
    let captured = |headless: bool, change: fn(&mut Value)| {
        let mut pod = pod("a");
        change(&mut pod["spec"]);
        let ports = json!([{"port": 8790, "targetPort": "http"}]);
        let address = if headless { json!("None") } else { json!(null) };
        let service = service("web", &json!({"clusterIP": address, "ports": ports}));
        Shop { pods: vec![counted(&pod)], ..Shop::default() }.service(service).captured()
    };
    for headless in [true, false] {
        let (reason, message) =
            captured(headless, |spec| spec["containers"][0]["ports"][0]["name"] = json!("http"));
        assert_eq!(reason, reasons::BYPASSED_BY_SERVICE);
        let told = "Port 8790 of Service web targets port http of the pods, which Kubernetes finds at container app of pod a";
        assert!(message.starts_with(told), "{message}");
        let behind = captured(headless, |spec| {
            let native = json!({"name": "n", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 1}]});
            spec["initContainers"].as_array_mut().unwrap().push(native);
        });
        assert_eq!(behind.0, reasons::ALL_TRAFFIC, "{}", behind.1);
    }
}

#[test]
fn a_service_that_targets_the_application_is_mended_by_the_command() {
    let shop = || {
        let ports = json!([{"port": 81, "protocol": "UDP"}, {"port": 80, "targetPort": 8080}]);
        Shop::with_sidecar().service(service("web", &json!({"ports": ports})))
    };
    let message = "Port 80 of Service web targets port 8080 of the pods, which bypasses the sidecars. Run \
         `kubectl -n shop patch service web --type=json -p \
         '[{\"op\":\"replace\",\"path\":\"/spec/ports/1/targetPort\",\"value\":\"http\"}]'`.";
    assert_eq!(shop().captured(), (reasons::BYPASSED_BY_SERVICE, message.into()));
    mend(shop(), first_service);
}

#[test]
fn another_port_bypasses_the_sidecar_unless_the_annotation_leaves_it_out() {
    for other in [json!("metrics"), json!(9090)] {
        let mut shop = with_port(&json!({"port": 80, "targetPort": other}));
        let (reason, message) = shop.captured();
        assert_eq!(reason, reasons::BYPASSED_BY_SERVICE);
        let command = "kubectl -n shop patch deployment/web -p \
             '{\"spec\":{\"template\":{\"metadata\":{\"annotations\":{\"sluice.dev/ports\":\"http\"}}}}}'";
        assert_eq!(commands(&message), [command], "{message}");
        let mut annotated = pod("a");
        annotated["metadata"]["annotations"] = json!({"sluice.dev/ports": "http"});
        shop.pods = vec![counted(&annotated)];
        assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
    }
}

#[test]
fn clients_of_a_headless_service_bypass_the_sidecar_unless_its_port_is_the_sidecars() {
    for port in [
        json!({"port": 8080, "targetPort": "http"}),
        json!({"port": 8080, "targetPort": 8080}),
        json!({"port": 80, "targetPort": "http"}),
        json!({"port": 8790, "targetPort": 8080}),
    ] {
        let (reason, message) = headless(&port).captured();
        assert_eq!(reason, reasons::BYPASSED_BY_SERVICE, "{port}");
        assert!(
            message.contains("Let the clients connect to port 8790, the sidecars', and run"),
            "{message}"
        );
        mend(headless(&port), first_service);
    }
    for target in [json!("http"), json!(8790)] {
        let shop = headless(&json!({"port": 8790, "targetPort": target}));
        assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
    }
}

#[test]
fn a_sidecar_on_the_port_that_clients_know_is_not_bypassed_by_a_headless_service() {
    let mut moved = pod("a");
    moved["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8081}]);
    moved["spec"]["initContainers"][0]["args"] = json!(["--proxy=[::]:8080=127.0.0.1:8081"]);
    moved["spec"]["initContainers"][0]["ports"] = json!([{"name": "http", "containerPort": 8080}]);
    let mut shop = headless(&json!({"port": 8080, "targetPort": "http"}));
    shop.pods = vec![counted(&moved)];
    assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
    shop.services[0]["spec"]["ports"][0]["port"] = json!(8081);
    assert_eq!(shop.captured().0, reasons::BYPASSED_BY_SERVICE);
}

#[test]
fn a_second_headless_port_of_the_application_is_removed() {
    let ports = json!([
        {"name": "a", "port": 8080, "targetPort": "http"}, {"name": "b", "port": 8790, "targetPort": "http"},
    ]);
    let shop = Shop::with_sidecar().service(service("db", &json!({"clusterIP": "None", "ports": ports})));
    let message = shop.captured().1;
    assert!(commands(&message)[0].contains(r#"[{"op":"remove","path":"/spec/ports/0"}]"#), "{message}");
    mend(shop, first_service);
}

#[test]
fn a_headless_service_without_ports_leaves_the_port_to_its_clients() {
    let shop = || Shop::with_sidecar().service(service("db", &json!({"clusterIP": "None"})));
    assert_eq!(shop().captured().0, reasons::BYPASSED_BY_SERVICE);
    mend(shop(), first_service);
    let udp = headless(&json!({"port": 53, "targetPort": 53, "protocol": "UDP"}));
    assert_eq!(udp.captured().0, reasons::ALL_TRAFFIC);
}

#[test]
fn a_true_condition_names_the_services_that_an_annotation_leaves_out() {
    let mut shop = headless(&json!({"port": 8080, "targetPort": "http"}));
    let message = shop.captured().1;
    let annotate = "kubectl -n shop annotate --overwrite service db sluice.dev/bypass=Ignore";
    assert_eq!(commands(&message)[1], annotate);
    shop.services[0]["metadata"]["annotations"] = json!({"sluice.dev/bypass": "ignore"});
    assert_eq!(shop.captured().0, reasons::BYPASSED_BY_SERVICE, "the value is not known");
    shop.services[0]["metadata"]["annotations"] = json!({"sluice.dev/bypass": "Ignore"});
    let text = "No known route bypasses the sidecars. Not examined, because of the annotation \
         sluice.dev/bypass: Service db.";
    assert_eq!(shop.captured(), (reasons::ALL_TRAFFIC, text.into()));
    shop.services[0]["spec"]["selector"] = json!({"app": "other"});
    assert_eq!(shop.captured().1, "No known route bypasses the sidecars.");
}

#[test]
fn a_service_that_leads_to_no_pod_does_not_bypass_them() {
    let port = json!([{"port": 80, "targetPort": 8080}]);
    for spec in [
        json!({"selector": null, "ports": port}),
        json!({"selector": {"app": "other"}, "ports": port}),
        json!({"type": "ExternalName", "ports": port}),
    ] {
        let shop = Shop::with_sidecar().service(service("web", &spec));
        assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC, "{spec}");
    }
}

#[test]
fn an_endpoint_slice_that_lists_the_application_is_mended_by_the_command() {
    for port in [json!({"port": 8080}), json!({"name": "all"})] {
        let (reason, message) = with_slice(None, &port).captured();
        assert_eq!(reason, reasons::BYPASSED_BY_SERVICE);
        let start = "EndpointSlice by-hand of Service manual lists pod a (10.0.0.7) with";
        assert!(message.starts_with(start), "{message}");
        mend(with_slice(None, &port), |shop| &mut shop.endpoint_slices[0]);
    }
    let sidecar = with_slice(None, &json!({"port": 8790}));
    assert_eq!(sidecar.captured().0, reasons::ALL_TRAFFIC);
    let other_address = {
        let mut shop = with_slice(None, &json!({"port": 8080}));
        shop.endpoint_slices[0]["endpoints"].as_array_mut().unwrap().pop();
        shop
    };
    assert_eq!(other_address.captured().0, reasons::ALL_TRAFFIC);
}

#[test]
fn endpoints_are_to_be_changed_instead_of_their_copy() {
    let mirrored = with_slice(Some("endpointslicemirroring-controller.k8s.io"), &json!({"port": 8080}));
    let message = mirrored.captured().1;
    assert!(
        message.starts_with("Object Endpoints manual lists pod a (10.0.0.7) with port 8080"),
        "{message}"
    );
    assert_eq!(commands(&message), ["kubectl -n shop edit endpoints manual"]);
}

#[test]
fn an_endpoint_slice_of_an_ignored_or_missing_service_leads_nowhere() {
    let mut shop = with_slice(None, &json!({"port": 8080}));
    shop.services[0]["metadata"]["annotations"] = json!({"sluice.dev/bypass": "Ignore"});
    assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
    shop.services.clear();
    assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
}

#[test]
fn the_ports_of_a_headless_service_count_if_an_endpoint_slice_lists_the_pod() {
    let mut shop = with_slice(None, &json!({"port": 8790}));
    shop.services[0]["spec"] = json!({"clusterIP": "None", "ports": [{"port": 8080, "targetPort": "http"}]});
    assert_eq!(shop.captured().0, reasons::BYPASSED_BY_SERVICE);
}
