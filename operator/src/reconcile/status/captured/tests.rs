use super::*;

fn bypass_by(target: IntOrString, has_ports_annotation: bool) -> Option<String> {
    let captured = [CapturedPort { name: "http".into(), sidecar: 8790, application: 8080 }];
    let port = ServicePort { port: 80, target };
    let service =
        Service { name: "web".into(), selector: [("app".into(), "a".into())].into(), ports: vec![] };
    bypass(&service, &port, &captured, has_ports_annotation)
}

fn name(name: &str) -> IntOrString {
    IntOrString::String(name.into())
}

#[test]
fn a_service_that_targets_the_sidecar_does_not_bypass_it() {
    assert_eq!(bypass_by(name("http"), false), None);
    assert_eq!(bypass_by(IntOrString::Int(8790), false), None);
}

#[test]
fn a_service_that_targets_the_application_bypasses_the_sidecar() {
    for has_ports_annotation in [false, true] {
        assert_eq!(
            bypass_by(IntOrString::Int(8080), has_ports_annotation).unwrap(),
            "Port 80 of Service web targets port 8080 of the pods, which bypasses the sidecars: \
             set its targetPort to \"http\""
        );
    }
}

#[test]
fn another_port_bypasses_the_sidecar_unless_the_annotation_leaves_it_out() {
    for other in [name("metrics"), IntOrString::Int(9090)] {
        let text = bypass_by(other.clone(), false).unwrap();
        assert!(text.contains("in the annotation sluice.dev/ports of the pods"), "{text}");
        assert_eq!(bypass_by(other, true), None);
    }
}
