//! hostPorts, and pods without limits behind a Service.

use super::*;
use crate::injection::capture::CaptureError;
use crate::injection::decide::Skip;

fn unlimited(reason: Unlimited, owner: Option<&str>) -> Shop {
    let pod = metadata(&pod("b"), owner);
    let unlimited = vec![UnlimitedPod { pod, reason, services: vec!["Service web".into()] }];
    Shop { unlimited, ..Shop::with_sidecar() }
}

#[test]
fn a_host_port_of_the_application_is_removed_by_the_command() {
    let mut exposed = pod("a");
    exposed["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 80}]);
    let mut shop = Shop { pods: vec![counted(&exposed)], ..Shop::default() };
    let message = "Port 8080 of deployment/web is also a hostPort, which bypasses the sidecars. Run \
         `kubectl -n shop patch deployment/web -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":\
         [{\"name\":\"app\",\"ports\":[{\"containerPort\":8080,\"hostPort\":null}]}]}}}}'`.";
    assert_eq!(shop.captured(), (reasons::BYPASSED_BY_POD, message.into()));
    let bare = CountedPod { pod: metadata(&exposed, None), ..counted(&exposed) };
    shop.pods = vec![bare];
    let message = shop.captured().1;
    assert!(
        message.ends_with(
            "of pod/a is also a hostPort, which bypasses the sidecars. Recreate it without the hostPort."
        ),
        "{message}"
    );
    exposed["spec"]["containers"][0]["ports"] = json!([{"containerPort": 9090, "hostPort": 80}]);
    shop.pods = vec![counted(&exposed)];
    assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
}

#[test]
fn pods_without_limits_are_named_with_their_reason_and_a_command() {
    let template = |template: &str| {
        format!("kubectl -n shop patch statefulset/old -p '{{\"spec\":{{\"template\":{template}}}}}'")
    };
    for (reason, because, command) in [
        (
            Unlimited::OptedOut,
            "applies no limits because of its label sluice.dev/inject=false",
            template(r#"{"metadata":{"labels":{"sluice.dev/inject":null}}}"#),
        ),
        (
            Unlimited::HostNetwork,
            "applies no limits because it uses the network of its host",
            template(r#"{"spec":{"hostNetwork":false}}"#),
        ),
        (Unlimited::NoSidecar, "has no sidecar", "kubectl -n shop rollout restart statefulset/old".into()),
    ] {
        let (found, message) = unlimited(reason.clone(), Some("statefulset/old")).captured();
        assert_eq!(found, reasons::BYPASSED_BY_POD);
        let start = format!("Service web also sends requests to statefulset/old, which {because}. ");
        assert!(message.starts_with(&start), "{message}");
        assert_eq!(commands(&message), [command]);
        let bare = unlimited(reason, None).captured().1;
        assert!(bare.contains("to pod/b, which") && commands(&bare).is_empty(), "{bare}");
    }
    let message =
        unlimited(Unlimited::Uncapturable(Skip::Capture(CaptureError::NoNamedPort)), None).captured().1;
    assert!(
        message.contains("cannot get a sidecar. The reason: no container has a named TCP port"),
        "{message}"
    );
}

#[test]
fn commands_for_a_namespace_without_the_label_also_add_the_sidecar() {
    let shop = |reason| Shop { is_unlabelled: true, ..unlimited(reason, Some("deployment/old")) };
    let message = shop(Unlimited::OptedOut).captured().1;
    assert!(message.contains(r#"{"sluice.dev/inject":"true"}"#), "{message}");
    let message = shop(Unlimited::NoSidecar).captured().1;
    assert_eq!(
        commands(&message)[0],
        "kubectl label --overwrite namespace shop sluice.dev/injection=enabled"
    );
}

#[test]
fn selected_pods_without_a_sidecar_are_left_to_the_condition_programmed() {
    let mut bare = pod("a");
    bare["spec"] =
        json!({"containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}]});
    let shop = Shop { pods: vec![counted(&bare)], ..Shop::default() }
        .service(service("web", &json!({"ports": [{"port": 80, "targetPort": "http"}]})))
        .network_policy(&json!([{"ports": [{"port": 8080}]}]));
    let message = "Service web sends requests to pods without a sidecar: see the condition Programmed.";
    assert_eq!(shop.captured(), (reasons::BYPASSED_BY_POD, message.into()));
}
