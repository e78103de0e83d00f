//! The pod with its sidecar. Pure and idempotent: a pod that has one stays as it is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EmptyDirVolumeSource, ExecAction,
    HTTPGetAction, KeyToPath, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecurityContext, ServiceAccountTokenProjection, SleepAction,
    Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_config::{ADMIN_PORT, TOKEN_AUDIENCE};
use sluice_crds::{INJECT_LABEL, SIDECAR_CONTAINER};

use crate::admission::capture::{self, CaptureError, CapturedPort};
use crate::trust::{CONFIG_MAP, CONFIG_MAP_KEY};

/// How long a captured container lives on after its pod's deletion began, so that no request meets a closed port
/// while endpoints spread.
const PRE_STOP_SECONDS: i64 = 5;
const IDENTITY_VOLUME: &str = "sluice-identity";
const STATE_VOLUME: &str = "sluice-state";
const IDENTITY: &str = "/var/run/sluice/identity";
const BINARY: &str = "/sluice-sidecar";
const STATE: &str = "/var/run/sluice/state";

/// What every sidecar is made of.
#[derive(Debug, Clone)]
pub struct InjectConfig {
    /// Its image.
    pub image: String,
    /// The image's pull policy.
    pub pull_policy: String,
    /// Its resources.
    pub resources: ResourceRequirements,
    /// Where it finds the operator.
    pub control_url: String,
    /// Whether Services of this API server see the named ports of native sidecars (Kubernetes 1.32); without, the
    /// sidecar is an ordinary container.
    pub native: bool,
    /// Whether the API server knows `preStop.sleep` (Kubernetes 1.30).
    pub pre_stop_sleep: bool,
}

/// Why a pod gets no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// It has one.
    Present,
    /// It does not want one.
    OptedOut,
    /// It is on the host's network.
    HostNetwork,
    /// It is for Windows.
    Windows,
    /// It is a Job's, and an ordinary container would keep it from ever completing.
    Job,
    /// There is nothing to capture.
    Capture(CaptureError),
}

impl Skip {
    /// A word for metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::OptedOut => "opted-out",
            Self::HostNetwork => "host-network",
            Self::Windows => "windows",
            Self::Job => "job",
            Self::Capture(_) => "nothing-to-capture",
        }
    }
}

/// The pod with its sidecar, or why it gets none.
pub fn inject(pod: &Pod, config: &InjectConfig) -> Result<Pod, Skip> {
    let spec = pod.spec.clone().unwrap_or_default();
    let label =
        |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    if capture::sidecar(&spec).is_some() {
        return Err(Skip::Present);
    }
    if label(INJECT_LABEL) == Some("false") {
        return Err(Skip::OptedOut);
    }
    if spec.host_network == Some(true) {
        return Err(Skip::HostNetwork);
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Err(Skip::Windows);
    }
    if !config.native && pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Job") {
        return Err(Skip::Job);
    }
    let captured = capture::plan(pod).map_err(Skip::Capture)?;
    let mut pod = pod.clone();
    pod.spec = Some(with_sidecar(spec, &captured, config));
    Ok(pod)
}

fn with_sidecar(mut spec: PodSpec, captured: &[CapturedPort], config: &InjectConfig) -> PodSpec {
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    for container in &mut spec.containers {
        give_ports_away(container, captured, if config.pre_stop_sleep { grace } else { 0 });
    }
    let sidecar = sidecar(captured, config);
    if config.native {
        // Last: initialization of the application stays as it is, and the sidecar is ready before the application.
        spec.init_containers.get_or_insert_default().push(sidecar);
    } else {
        spec.containers.push(sidecar);
    }
    // A manifest taken from a running pod may bring volumes of these names without the sidecar.
    let all = spec.volumes.get_or_insert_default();
    all.retain(|volume| ![IDENTITY_VOLUME, STATE_VOLUME].contains(&volume.name.as_str()));
    all.extend(volumes());
    spec
}

/// The captured ports lose their names; what referred to a name refers to the number, so that probes do not count.
fn give_ports_away(container: &mut Container, captured: &[CapturedPort], grace: i64) {
    let mut owns_one = false;
    for port in container.ports.iter_mut().flatten() {
        if captured
            .iter()
            .any(|c| port.name.as_deref() == Some(&c.name) && port.container_port == i32::from(c.application))
        {
            port.name = None;
            owns_one = true;
        }
    }
    let number = |port: &mut IntOrString| {
        if let IntOrString::String(name) = port
            && let Some(found) = captured.iter().find(|c| c.name == *name)
        {
            *port = IntOrString::Int(i32::from(found.application));
        }
    };
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
    {
        let Some(probe) = probe else { continue };
        probe.http_get.iter_mut().for_each(|get| number(&mut get.port));
        probe.tcp_socket.iter_mut().for_each(|socket| number(&mut socket.port));
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            handler.http_get.iter_mut().for_each(|get| number(&mut get.port));
            handler.tcp_socket.iter_mut().for_each(|socket| number(&mut socket.port));
        }
    }
    let seconds = PRE_STOP_SECONDS.min(grace / 2);
    let lifecycle = container.lifecycle.get_or_insert_default();
    if owns_one && lifecycle.pre_stop.is_none() && seconds > 0 {
        lifecycle.pre_stop =
            Some(LifecycleHandler { sleep: Some(SleepAction { seconds }), ..LifecycleHandler::default() });
    } else if *lifecycle == Lifecycle::default() {
        container.lifecycle = None;
    }
}

fn sidecar(captured: &[CapturedPort], config: &InjectConfig) -> Container {
    let mut args: Vec<String> =
        captured.iter().map(|c| format!("--proxy=[::]:{}=127.0.0.1:{}", c.sidecar, c.application)).collect();
    args.extend([
        format!("--admin=[::]:{ADMIN_PORT}"),
        format!("--operator={}", config.control_url),
        format!("--ca-file={IDENTITY}/{CONFIG_MAP_KEY}"),
        format!("--token-file={IDENTITY}/token"),
        format!("--state-dir={STATE}"),
        // A native sidecar is ended after the application, when endpoints have long spread; an ordinary one with it.
        format!("--drain-delay={}s", if config.native { 0 } else { 2 * PRE_STOP_SECONDS }),
        "--drain-timeout=15s".to_owned(),
    ]);
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    let mut ports: Vec<_> = captured.iter().map(|c| port(&c.name, c.sidecar)).collect();
    ports.push(port("sluice-admin", ADMIN_PORT));
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    Container {
        name: SIDECAR_CONTAINER.into(),
        image: Some(config.image.clone()),
        image_pull_policy: Some(config.pull_policy.clone()),
        restart_policy: config.native.then(|| "Always".into()),
        args: Some(args),
        ports: Some(ports),
        resources: Some(config.resources.clone()),
        // At the beginning of a pod's end: connections are closed while the application still listens.
        lifecycle: config.native.then(|| Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction {
                    command: Some(vec![BINARY.into(), "drain".into(), format!("--state-dir={STATE}")]),
                }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        // Waits for the first snapshot, so that the application is never reached without its limits.
        startup_probe: Some(probe("/startupz", 1, 120)),
        readiness_probe: Some(probe("/readyz", 2, 1)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(65532),
            run_as_group: Some(65532),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount(IDENTITY_VOLUME, IDENTITY, true),
            mount(STATE_VOLUME, STATE, false),
            // Where the application's token for the API server would be mounted: the sidecar needs none.
            mount(IDENTITY_VOLUME, "/var/run/secrets/kubernetes.io/serviceaccount", true),
        ]),
        ..Container::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(i32::from(ADMIN_PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(2),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn volumes() -> [Volume; 2] {
    let token = ServiceAccountTokenProjection {
        audience: Some(TOKEN_AUDIENCE.into()),
        expiration_seconds: Some(3600),
        path: "token".into(),
    };
    // Optional: a pod starts also before the operator has told its namespace; the sidecar reads it at every connect.
    let authority = ConfigMapProjection {
        name: CONFIG_MAP.into(),
        items: Some(vec![KeyToPath { key: CONFIG_MAP_KEY.into(), path: CONFIG_MAP_KEY.into(), mode: None }]),
        optional: Some(true),
    };
    let identity = ProjectedVolumeSource {
        sources: Some(vec![
            VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
            VolumeProjection { config_map: Some(authority), ..VolumeProjection::default() },
        ]),
        ..ProjectedVolumeSource::default()
    };
    // In memory: the last good snapshot holds the store's password.
    let state =
        EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: Some(Quantity("64Mi".into())) };
    [
        Volume { name: IDENTITY_VOLUME.into(), projected: Some(identity), ..Volume::default() },
        Volume { name: STATE_VOLUME.into(), empty_dir: Some(state), ..Volume::default() },
    ]
}

/// The sidecar's resources from JSON.
pub fn resources(json: &str) -> anyhow::Result<ResourceRequirements> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resources {
        #[serde(default)]
        requests: BTreeMap<String, Quantity>,
        #[serde(default)]
        limits: BTreeMap<String, Quantity>,
    }
    let Resources { requests, limits } =
        serde_json::from_str(json).map_err(|error| anyhow::anyhow!("--sidecar-resources: {error}"))?;
    Ok(ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        ..ResourceRequirements::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(native: bool) -> InjectConfig {
        InjectConfig {
            image: "sidecar:1".into(),
            pull_policy: "IfNotPresent".into(),
            resources: resources(r#"{"requests":{"cpu":"10m"}}"#).unwrap(),
            control_url: "https://sluice-control.sluice-system.svc:8443".into(),
            native,
            pre_stop_sleep: true,
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn pod(ports: serde_json::Value, extra: serde_json::Value) -> Pod {
        let mut pod =
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app", "ports": ports}]}});
        json_patch::merge(&mut pod, &extra);
        serde_json::from_value(pod).unwrap()
    }

    fn http() -> serde_json::Value {
        json!([{"name": "http", "containerPort": 8080}])
    }

    #[test]
    fn the_port_s_name_moves_to_the_sidecar_and_probes_follow_the_application() {
        let mut before = pod(http(), json!({}));
        let spec = before.spec.as_mut().unwrap();
        spec.containers[0].readiness_probe =
            serde_json::from_value(json!({"httpGet": {"path": "/", "port": "http"}})).unwrap();
        let after = inject(&before, &config(true)).unwrap();
        let spec = after.spec.clone().unwrap();
        let app = &spec.containers[0];
        assert_eq!(app.ports.as_ref().unwrap()[0].name, None);
        assert_eq!(
            app.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap().port,
            IntOrString::Int(8080)
        );
        assert_eq!(
            app.lifecycle.as_ref().unwrap().pre_stop.as_ref().unwrap().sleep.as_ref().unwrap().seconds,
            5
        );
        let sidecar = &spec.init_containers.as_ref().unwrap()[0];
        assert_eq!(sidecar.restart_policy.as_deref(), Some("Always"));
        assert_eq!(sidecar.ports.as_ref().unwrap()[0].name.as_deref(), Some("http"));
        let captured = CapturedPort { name: "http".into(), sidecar: 8790, application: 8080 };
        assert_eq!(capture::of_sidecar(&spec), Some(vec![captured]));
        assert_eq!(inject(&after, &config(true)), Err(Skip::Present));
    }

    #[test]
    fn an_old_server_gets_an_ordinary_container() {
        let spec = inject(&pod(http(), json!({})), &config(false)).unwrap().spec.unwrap();
        assert_eq!(spec.containers.len(), 2);
        assert!(spec.init_containers.is_none() && spec.containers[1].restart_policy.is_none());
    }

    #[test]
    fn what_is_captured_is_said_or_plain() {
        let two =
            json!([{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}]);
        let plan = |pod: &Pod| {
            capture::plan(pod).map(|ports| ports.into_iter().map(|p| (p.name, p.sidecar)).collect::<Vec<_>>())
        };
        assert_eq!(plan(&pod(two.clone(), json!({}))), Ok(vec![("http".into(), 8790)]));
        let annotated =
            |names: &str| pod(two.clone(), json!({"metadata": {"annotations": {"sluice.dev/ports": names}}}));
        assert_eq!(
            plan(&annotated("metrics, http")),
            Ok(vec![("metrics".into(), 8790), ("http".into(), 8794)])
        );
        assert_eq!(plan(&annotated("web")), Err(CaptureError::Unknown("web".into())));
        assert_eq!(plan(&pod(json!([{"containerPort": 8080}]), json!({}))), Err(CaptureError::NoNamedPort));
        let redis = json!([{"name": "redis", "containerPort": 6379}]);
        assert_eq!(plan(&pod(redis.clone(), json!({}))), Err(CaptureError::NotHttp("redis".into())));
        let named = json!({"metadata": {"annotations": {"sluice.dev/ports": "redis"}}});
        assert_eq!(plan(&pod(redis, named)), Ok(vec![("redis".into(), 8790)]));
        for (name, http) in [
            ("http-alt", true),
            ("web", true),
            ("grpc", true),
            ("http2", true),
            ("h2c", true),
            ("https", false),
            ("webhook", false),
        ] {
            assert_eq!(
                plan(&pod(json!([{"name": name, "containerPort": 1}]), json!({}))).is_ok(),
                http,
                "{name}"
            );
        }
        let admin = json!([{"name": "http", "containerPort": 8080}, {"containerPort": 8791}]);
        assert_eq!(plan(&pod(admin, json!({}))), Err(CaptureError::Taken(8791)));
        let twice = json!([{"name": "http", "containerPort": 8080}, {"name": "http", "containerPort": 8081}]);
        assert_eq!(plan(&pod(twice, json!({}))), Err(CaptureError::Twice("http".into())));
        let udp = json!([{"name": "dns", "containerPort": 53, "protocol": "UDP"}]);
        assert_eq!(plan(&pod(udp, json!({}))), Err(CaptureError::NoNamedPort));
        let unclear = json!([{"name": "a", "containerPort": 1}, {"name": "b", "containerPort": 2}]);
        assert_eq!(plan(&pod(unclear, json!({}))), Err(CaptureError::Ambiguous("a, b".into())));
        let taken = json!([{"name": "http", "containerPort": 8790}]);
        assert_eq!(plan(&pod(taken, json!({}))), Ok(vec![("http".into(), 8794)]));
    }

    #[test]
    fn pods_that_are_none_of_ours_stay_as_they_are() {
        let out = pod(http(), json!({"metadata": {"labels": {"sluice.dev/inject": "false"}}}));
        assert_eq!(inject(&out, &config(true)), Err(Skip::OptedOut));
        assert_eq!(
            inject(&pod(http(), json!({"spec": {"hostNetwork": true}})), &config(true)),
            Err(Skip::HostNetwork)
        );
        assert!(matches!(inject(&Pod::default(), &config(true)), Err(Skip::Capture(_))));
    }
}
