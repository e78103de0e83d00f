//! The sidecar as it is added to a pod: its container and its volumes.

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    ExecAction, HTTPGetAction, KeyToPath, Lifecycle, LifecycleHandler, ObjectFieldSelector, Probe,
    ProjectedVolumeSource, SeccompProfile, SecurityContext, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_config::{DEBUG_PORT, TOKEN_AUDIENCE};
use sluice_crds::SIDECAR_CONTAINER;
use sluice_host::logging::LogFormat;

use crate::injection::capture::{
    ADMIN_ARGUMENT, DEBUG_ARGUMENT, IDENTITY_VOLUME, PROXY_ARGUMENT, Ports, STATE_VOLUME, TOKEN_ARGUMENT,
};
use crate::injection::config::{CONFIG_MAP, CONFIG_MAP_KEY, InjectConfig, PodSettings, StartupPolicy};

/// Time that a captured container keeps running after the deletion of its pod began, in seconds, so that no
/// request meets a closed port while the change of endpoints propagates.
pub(super) const PRE_STOP_SECONDS: i64 = 5;
const IDENTITY_PATH: &str = "/var/run/sluice/identity";
const STATE_PATH: &str = "/var/run/sluice/state";
/// Path of the program in the sidecar's image.
const BINARY: &str = "/sluice-sidecar";
/// User and group of the sidecar.
const NON_ROOT_USER: i64 = 65532;

/// Reports whether a volume has a name that the sidecar's volumes use.
pub(super) fn is_sidecar_volume(volume: &Volume) -> bool {
    [IDENTITY_VOLUME, STATE_VOLUME].contains(&volume.name.as_str())
}

/// Returns the sidecar's container.
pub(super) fn container(ports: &Ports, config: &InjectConfig, settings: &PodSettings) -> Container {
    let probe = |path, period_seconds, failures| probe(ports.admin, path, period_seconds, failures);
    Container {
        name: SIDECAR_CONTAINER.into(),
        image: Some(config.image.clone()),
        image_pull_policy: Some(config.pull_policy.clone()),
        restart_policy: config.native.then(|| "Always".into()),
        args: Some(args(ports, config, settings)),
        env: Some(environment(config)),
        ports: Some(container_ports(ports)),
        resources: Some(settings.resources.clone()),
        // Runs when the deletion of the pod begins: connections are closed while the application still
        // listens.
        lifecycle: config.native.then(|| Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction {
                    command: Some(vec![BINARY.into(), "drain".into(), format!("--state-dir={STATE_PATH}")]),
                }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        // Succeeds after the first snapshot, so that the application is not reachable without its limits.
        startup_probe: Some(probe("/startupz", 1, 120)),
        readiness_probe: Some(probe("/readyz", 2, 1)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        security_context: Some(security_context(config.platform_user)),
        volume_mounts: Some(mounts().into()),
        ..Container::default()
    }
}

fn args(ports: &Ports, config: &InjectConfig, settings: &PodSettings) -> Vec<String> {
    let captured = ports.captured.iter();
    let mut args: Vec<String> =
        captured.map(|c| format!("{PROXY_ARGUMENT}[::]:{}=127.0.0.1:{}", c.sidecar, c.application)).collect();
    args.extend([
        format!("{ADMIN_ARGUMENT}[::]:{}", ports.admin),
        // Only who can forward a port of the pod reaches it.
        format!("{DEBUG_ARGUMENT}127.0.0.1:{DEBUG_PORT}"),
        format!("--operator={}", config.control_url),
        format!("--ca-file={IDENTITY_PATH}/{CONFIG_MAP_KEY}"),
        format!("{TOKEN_ARGUMENT}{IDENTITY_PATH}/token"),
        format!("--state-dir={STATE_PATH}"),
        // A native sidecar is stopped after the application, when the change of endpoints has propagated. An
        // ordinary container is stopped together with the application.
        format!("--drain-delay={}s", if config.native { 0 } else { 2 * PRE_STOP_SECONDS }),
        "--drain-timeout=15s".to_owned(),
        format!("--log={}", settings.log),
    ]);
    match settings.log_format {
        LogFormat::Text => {}
        LogFormat::Json => args.push("--log-format=json".to_owned()),
    }
    args.extend(settings.workers.map(|workers| format!("--workers={workers}")));
    match config.startup_policy {
        StartupPolicy::Forward => {}
        StartupPolicy::Deny => args.push("--startup-policy=deny".to_owned()),
    }
    if config.debug_headers {
        args.push("--debug-headers".to_owned());
    }
    if let Some((collector, ratio)) = &config.tracing {
        args.extend([format!("--trace-collector={collector}"), format!("--trace-ratio={ratio}")]);
    }
    args
}

/// Returns the addresses of the pod, at which its application may listen, and with tracing what describes it in its spans.
fn environment(config: &InjectConfig) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.into(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let mut environment = vec![field("SLUICE_POD_ADDRESSES", "status.podIPs")];
    if config.tracing.is_some() {
        let attributes = "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME)";
        environment.extend([
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            EnvVar {
                name: "OTEL_RESOURCE_ATTRIBUTES".into(),
                value: Some(attributes.into()),
                ..EnvVar::default()
            },
        ]);
    }
    environment
}

fn container_ports(ports: &Ports) -> Vec<ContainerPort> {
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    let captured = ports.captured.iter().map(|c| port(&c.name, c.sidecar));
    captured.chain([port("sluice-admin", ports.admin)]).collect()
}

fn probe(port: u16, path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(i32::from(port)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(2),
        failure_threshold: Some(failure_threshold),
        ..Probe::default()
    }
}

fn security_context(platform_user: bool) -> SecurityContext {
    let user = (!platform_user).then_some(NON_ROOT_USER);
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
        privileged: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: user,
        run_as_group: user,
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
        ..SecurityContext::default()
    }
}

/// Returns what the sidecar mounts.
pub(super) fn mounts() -> [VolumeMount; 3] {
    [
        mount(IDENTITY_VOLUME, IDENTITY_PATH, true),
        mount(STATE_VOLUME, STATE_PATH, false),
        // Hides the application's token for the API server, which the sidecar does not need.
        mount(IDENTITY_VOLUME, "/var/run/secrets/kubernetes.io/serviceaccount", true),
    ]
}

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.into(),
        mount_path: path.into(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}

/// Returns the sidecar's volumes.
pub(super) fn volumes() -> [Volume; 2] {
    let token = ServiceAccountTokenProjection {
        audience: Some(TOKEN_AUDIENCE.into()),
        expiration_seconds: Some(3600),
        path: "token".into(),
    };
    // Optional, so that a pod also starts before its namespace has the ConfigMap. The sidecar reads the file
    // again at every connection attempt.
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
    // In memory, because the last good snapshot contains the store's password.
    let state =
        EmptyDirVolumeSource { medium: Some("Memory".into()), size_limit: Some(Quantity("64Mi".into())) };
    [
        Volume { name: IDENTITY_VOLUME.into(), projected: Some(identity), ..Volume::default() },
        Volume { name: STATE_VOLUME.into(), empty_dir: Some(state), ..Volume::default() },
    ]
}
