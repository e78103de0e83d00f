use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::*;
use crate::injection::capture::{self, CaptureError, CapturedPort};
use crate::injection::config::StartupPolicy;
use crate::injection::config::{guaranteed_resources, resources};
use sluice_host::logging::LogFormat;

pub(crate) mod patches;
mod typed;

pub(crate) fn config(native: bool) -> InjectConfig {
    InjectConfig {
        image: "sidecar:1".into(),
        pull_policy: "IfNotPresent".into(),
        resources: resources(r#"{"requests":{"cpu":"10m"}}"#).unwrap(),
        guaranteed_resources: guaranteed_resources(r#"{"cpu":"200m","memory":"128Mi"}"#).unwrap(),
        cluster_dns: Vec::new(),
        log: "info".parse().unwrap(),
        log_format: LogFormat::Text,
        platform_user: false,
        startup_policy: StartupPolicy::Forward,
        debug_headers: false,
        tracing: None,
        control_url: "https://sluice-control.sluice-system.svc:8443".into(),
        native,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
fn pod(ports: serde_json::Value, extra: serde_json::Value) -> Pod {
    let mut pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app", "ports": ports}]}});
    json_patch::merge(&mut pod, &extra);
    serde_json::from_value(pod).unwrap()
}

/// Returns a pod with its patch applied.
fn injected(pod: &Pod, config: &InjectConfig) -> Result<Pod, Skip> {
    let patch = inject(pod, config, &Bounds::default())?.patch;
    let mut pod = serde_json::to_value(pod).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    Ok(serde_json::from_value(pod).unwrap())
}

fn http() -> serde_json::Value {
    json!([{"name": "http", "containerPort": 8080}])
}

#[test]
fn only_with_a_collector_a_sidecar_sends_spans_which_name_its_pod() {
    let sidecar = |tracing| {
        let config = InjectConfig { tracing, ..config(true) };
        injected(&pod(http(), json!({})), &config).unwrap().spec.unwrap().init_containers.unwrap().remove(0)
    };
    let has_arg = |sidecar: &Container, arg: &str| sidecar.args.iter().flatten().any(|found| found == arg);
    let without = sidecar(None);
    assert!(
        without.env.as_ref().is_some_and(|env| env.len() == 1)
            && !without.args.iter().flatten().any(|arg| arg.contains("trace"))
    );
    let collector = "http://otel.observability:4318".parse().unwrap();
    let with = sidecar(Some((collector, "0.05".parse().unwrap())));
    assert!(has_arg(&with, "--trace-collector=http://otel.observability:4318/v1/traces"), "{:?}", with.args);
    assert!(has_arg(&with, "--trace-ratio=0.05"), "{:?}", with.args);
    let env = with.env.unwrap();
    let names: Vec<_> = env.iter().map(|variable| variable.name.as_str()).collect();
    // A variable can name only those before it.
    assert_eq!(names, ["SLUICE_POD_ADDRESSES", "POD_NAMESPACE", "POD_NAME", "OTEL_RESOURCE_ATTRIBUTES"]);
    let attributes = "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME)";
    assert_eq!(env[3].value.as_deref(), Some(attributes));
}

#[test]
fn the_port_name_moves_to_the_sidecar_and_probes_keep_reaching_the_application() {
    let mut before = pod(http(), json!({}));
    let spec = before.spec.as_mut().unwrap();
    spec.containers[0].readiness_probe =
        serde_json::from_value(json!({"httpGet": {"path": "/", "port": "http"}})).unwrap();
    let after = injected(&before, &config(true)).unwrap();
    let spec = after.spec.clone().unwrap();
    let app = &spec.containers[0];
    assert_eq!(app.ports.as_ref().unwrap()[0].name, None);
    assert_eq!(app.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap().port, IntOrString::Int(8080));
    assert_eq!(app.lifecycle.as_ref().unwrap().pre_stop.as_ref().unwrap().sleep.as_ref().unwrap().seconds, 5);
    let sidecar = &spec.init_containers.as_ref().unwrap()[0];
    assert_eq!(sidecar.restart_policy.as_deref(), Some("Always"));
    assert_eq!(sidecar.ports.as_ref().unwrap()[0].name.as_deref(), Some("http"));
    let captured = CapturedPort { name: "http".into(), sidecar: 8790, application: 8080 };
    assert_eq!(capture::of_sidecar(&spec).map(|ports| ports.captured), Some(vec![captured]));
    assert_eq!(injected(&after, &config(true)), Err(Skip::Present));
}

#[test]
fn an_older_kubernetes_gets_an_ordinary_container() {
    let spec = injected(&pod(http(), json!({})), &config(false)).unwrap().spec.unwrap();
    assert_eq!(spec.containers.len(), 2);
    assert!(spec.init_containers.is_none() && spec.containers[1].restart_policy.is_none());
}

#[test]
fn pods_that_opt_out_or_cannot_be_captured_are_left_unchanged() {
    let out = pod(http(), json!({"metadata": {"labels": {"sluice.dev/inject": "false"}}}));
    assert_eq!(injected(&out, &config(true)), Err(Skip::OptedOut));
    assert_eq!(
        injected(&pod(http(), json!({"spec": {"hostNetwork": true}})), &config(true)),
        Err(Skip::HostNetwork)
    );
    assert!(matches!(injected(&Pod::default(), &config(true)), Err(Skip::Capture(_))));
}

#[test]
fn the_list_of_limited_clients_is_served_inside_the_pod_only() {
    let sidecar = injected(&pod(http(), json!({})), &config(true)).unwrap();
    let args = sidecar.spec.unwrap().init_containers.unwrap().remove(0).args.unwrap();
    assert!(args.contains(&"--debug=127.0.0.1:8793".to_owned()), "{args:?}");
    let error = inject(
        &pod(json!([{"name": "http", "containerPort": 8793}]), json!({})),
        &config(true),
        &Bounds::default(),
    )
    .unwrap_err();
    assert!(matches!(error, Skip::Capture(_)), "{error:?}");
}

#[test]
fn the_posture_is_passed_to_the_sidecar() {
    let args = |startup_policy, debug_headers| {
        let config = InjectConfig { startup_policy, debug_headers, ..config(true) };
        let after = injected(&pod(http(), json!({})), &config).unwrap();
        let args = after.spec.unwrap().init_containers.unwrap().remove(0).args.unwrap();
        args.into_iter()
            .filter(|arg| arg.contains("policy") || arg.contains("debug-headers"))
            .collect::<Vec<_>>()
    };
    assert_eq!(args(StartupPolicy::Deny, true), ["--startup-policy=deny", "--debug-headers"]);
    assert_eq!(args(StartupPolicy::Forward, false), Vec::<String>::new());
}

#[test]
fn settings_of_the_pod_are_passed_to_the_sidecar() {
    let annotations =
        json!({"sluice.dev/log-level": "debug", "sluice.dev/log-format": "json", "sluice.dev/workers": "2"});
    let annotations = json!({"metadata": {"annotations": annotations}});
    let args = |pod: &Pod| {
        let spec = injected(pod, &config(true)).unwrap().spec.unwrap();
        spec.init_containers.unwrap().remove(0).args.unwrap()
    };
    let changed = args(&pod(http(), annotations));
    for arg in ["--log=debug", "--log-format=json", "--workers=2"] {
        assert!(changed.iter().any(|found| found == arg), "{changed:?}");
    }
    let unchanged = args(&pod(http(), json!({})));
    assert!(unchanged.contains(&"--log=info,h2=error".to_owned()), "{unchanged:?}");
    assert!(!unchanged.iter().any(|arg| arg.starts_with("--workers")), "{unchanged:?}");
}

#[test]
fn the_platform_may_assign_the_user() {
    let user = |platform_user| {
        let config = InjectConfig { platform_user, ..config(true) };
        let spec = injected(&pod(http(), json!({})), &config).unwrap().spec.unwrap();
        let context = spec.init_containers.unwrap().remove(0).security_context.unwrap();
        assert_eq!(context.run_as_non_root, Some(true));
        (context.run_as_user, context.run_as_group)
    };
    assert_eq!(user(false), (Some(65532), Some(65532)));
    assert_eq!(user(true), (None, None));
}

/// Returns what the injectors of Istio and Linkerd add to a pod, with the mesh's proxy as an ordinary container and as a
/// native sidecar.
fn meshes() -> [(&'static str, serde_json::Value); 4] {
    let istio = json!({
        "name": "istio-proxy", "args": ["proxy", "sidecar"], "securityContext": {"runAsUser": 1337},
        "ports": [{"containerPort": 15090, "name": "http-envoy-prom", "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}},
    });
    let istio_init =
        json!({"name": "istio-init", "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337"]});
    let linkerd = json!({
        "name": "linkerd-proxy", "securityContext": {"runAsUser": 2102},
        "ports": [{"containerPort": 4143, "name": "linkerd-proxy"}, {"containerPort": 4191, "name": "linkerd-admin"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 4191}},
        "lifecycle": {"postStart": {"exec": {"command": ["/usr/lib/linkerd/linkerd-await"]}}},
    });
    let linkerd_init =
        json!({"name": "linkerd-init", "args": ["--incoming-proxy-port", "4143", "--proxy-uid", "2102"]});
    let app = json!({"name": "app", "ports": [{"name": "web", "containerPort": 8080}]});
    let native = |mut proxy: serde_json::Value| {
        proxy["restartPolicy"] = json!("Always");
        proxy
    };
    [
        ("Istio", json!({"initContainers": [istio_init], "containers": [istio, app]})),
        (
            "Istio, native",
            json!({"initContainers": [istio_init, native(istio.clone())], "containers": [app]}),
        ),
        ("Linkerd", json!({"initContainers": [linkerd_init], "containers": [linkerd, app]})),
        (
            "Linkerd, native",
            json!({"initContainers": [linkerd_init, native(linkerd.clone())], "containers": [app]}),
        ),
    ]
}

#[test]
fn beside_a_service_mesh_the_application_s_port_is_captured_and_the_mesh_stays_as_it_is() {
    for (mesh, spec) in meshes() {
        let before: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let spec =
            injected(&before, &config(true)).unwrap_or_else(|skip| panic!("{mesh}: {skip:?}")).spec.unwrap();
        let captured = CapturedPort { name: "web".into(), sidecar: 8790, application: 8080 };
        assert_eq!(capture::of_sidecar(&spec).map(|ports| ports.captured), Some(vec![captured]), "{mesh}");
        // The sidecar starts behind the mesh's containers, which set up the pod's network.
        let init = spec.init_containers.unwrap();
        assert_eq!(init.last().unwrap().name, "sluice-sidecar", "{mesh}");
        let before = before.spec.unwrap();
        assert_eq!(init[..init.len() - 1], before.init_containers.unwrap()[..], "{mesh}");
        let is_mesh = |container: &&Container| container.name != "app";
        let proxies =
            |containers: &[Container]| containers.iter().filter(is_mesh).cloned().collect::<Vec<_>>();
        assert_eq!(proxies(&spec.containers), proxies(&before.containers), "{mesh}");
        assert_eq!(spec.containers.last().unwrap().ports.as_ref().unwrap()[0].name, None, "{mesh}");
    }
}

#[test]
fn pods_that_a_sidecar_would_break_are_skipped_with_the_reason() {
    let skip = |extra: serde_json::Value| {
        inject(&pod(http(), extra), &config(true), &Bounds::default()).unwrap_err()
    };
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}}});
    assert_eq!(skip(mirror), Skip::Mirror);
    assert_eq!(skip(json!({"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}})), Skip::Windows);
    let own = |container: serde_json::Value| {
        let app = json!({"name": "app", "ports": http()});
        json!({"spec": {"containers": [app, container]}})
    };
    assert_eq!(skip(own(json!({"name": "sluice-sidecar", "image": "mine"}))), Skip::NameTaken);
    // The arguments alone do not make it ours, nor the volume alone.
    let arguments = json!({"name": "sluice-sidecar", "args": ["--proxy=[::]:1=127.0.0.1:2"]});
    assert_eq!(skip(own(arguments)), Skip::NameTaken);
    let mount = json!([{"name": "sluice-state", "mountPath": "/data"}]);
    assert_eq!(
        skip(own(json!({"name": "other", "volumeMounts": mount}))),
        Skip::VolumeTaken("sluice-state".into())
    );
    for skip in [Skip::Mirror, Skip::NameTaken, Skip::NoRoom, Skip::Capture(CaptureError::NoNamedPort)] {
        assert!(!skip.to_string().is_empty() && !skip.is_wanted(), "{skip:?}");
    }
}

#[test]
fn the_port_of_a_native_sidecar_moves_like_any_other() {
    let helper = json!({
        "name": "helper", "restartPolicy": "Always", "ports": http(),
        "startupProbe": {"tcpSocket": {"port": "http"}},
    });
    let before: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"}, "spec": {"containers": [{"name": "app"}], "initContainers": [helper]},
    }))
    .unwrap();
    let spec = injected(&before, &config(true)).unwrap().spec.unwrap();
    let init = spec.init_containers.as_ref().unwrap();
    assert_eq!(init[0].ports.as_ref().unwrap()[0].name, None);
    let probe = init[0].startup_probe.as_ref().unwrap();
    assert_eq!(probe.tcp_socket.as_ref().unwrap().port, IntOrString::Int(8080));
    assert_eq!(capture::of_sidecar(&spec).unwrap().captured[0].name, "http");
}

#[test]
fn an_admin_port_that_is_taken_moves() {
    let ports = json!([{"name": "http", "containerPort": 8080}, {"containerPort": 8791}]);
    let spec = injected(&pod(ports, json!({})), &config(true)).unwrap().spec.unwrap();
    let sidecar = spec.init_containers.as_ref().unwrap().last().unwrap();
    assert!(
        sidecar.args.iter().flatten().any(|argument| argument == "--admin=[::]:8794"),
        "{:?}",
        sidecar.args
    );
    let probe = sidecar.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap();
    assert_eq!(probe.port, IntOrString::Int(8794));
    assert_eq!(capture::of_sidecar(&spec).unwrap().admin, 8794);
}
