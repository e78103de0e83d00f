//! The configuration of all sidecars.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sluice_config::trace_options::{CollectorUrl, SampleRatio};
use sluice_host::logging::LogFormat;

use super::log_filter::LogFilter;
use super::quantity::Amount;
use super::resources::GuaranteedResources;
use crate::args::StartupPolicy;

/// Name of the ConfigMap in each namespace by which sidecars trust the operator.
pub const CONFIG_MAP: &str = "sluice-ca";
/// Field of the ConfigMap that holds the authorities in PEM.
pub const CONFIG_MAP_KEY: &str = "ca.crt";

/// The configuration that all sidecars share.
#[derive(Debug, Clone)]
pub struct InjectConfig {
    /// Image of the sidecar.
    pub image: String,
    /// Pull policy of the image.
    pub pull_policy: String,
    /// Resource requests and limits of the sidecar.
    pub resources: ResourceRequirements,
    /// Requests and limits of sidecars in pods whose requests equal their limits.
    pub guaranteed_resources: GuaranteedResources,
    /// Name servers of the cluster, as the operator's pod has them; empty if they are not known.
    pub cluster_dns: Vec<IpAddr>,
    /// Log filter of the sidecar.
    pub log: LogFilter,
    /// Log format of the sidecar.
    pub log_format: LogFormat,
    /// Whether the platform assigns the sidecar's user, as OpenShift does. Otherwise it is a fixed one.
    pub platform_user: bool,
    /// Treatment of requests before a sidecar has policies.
    pub startup_policy: StartupPolicy,
    /// Whether the sidecar's responses tell why the store or the application did not answer.
    pub debug_headers: bool,
    /// Collector of the sidecars' spans, if there is one, and the part of requests without a trace that begin one.
    pub tracing: Option<(CollectorUrl, SampleRatio)>,
    /// URL of the operator's control port.
    pub control_url: String,
    /// Whether the sidecar is a native one (an init container that keeps running). Services see the named
    /// ports of native sidecars from Kubernetes 1.33; before, the sidecar is an ordinary container.
    pub native: bool,
}

/// Parses the value of `--sidecar-resources`.
pub fn resources(json: &str) -> anyhow::Result<ResourceRequirements> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resources {
        #[serde(default)]
        requests: BTreeMap<String, Quantity>,
        #[serde(default)]
        limits: BTreeMap<String, Quantity>,
    }
    let Resources { requests, limits } = serde_json::from_str(json).map_err(|error| {
        anyhow::anyhow!("--sidecar-resources must be a JSON object with `requests` and `limits`: {error}")
    })?;
    Ok(ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        ..ResourceRequirements::default()
    })
}

/// Parses the value of `--sidecar-guaranteed-resources`.
pub fn guaranteed_resources(json: &str) -> anyhow::Result<GuaranteedResources> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resources {
        cpu: Quantity,
        memory: Quantity,
    }
    let Resources { cpu, memory } = serde_json::from_str(json).map_err(|error| {
        anyhow::anyhow!(
            "--sidecar-guaranteed-resources must be a JSON object with `cpu` and `memory`: {error}"
        )
    })?;
    let read = |name: &str, quantity: &Quantity| {
        Amount::parse(&quantity.0).filter(|amount| *amount > Amount::ZERO).ok_or_else(|| {
            anyhow::anyhow!("--sidecar-guaranteed-resources: {:?} is not an amount of {name}", quantity.0)
        })
    };
    let (cpu, memory) = (read("cpu", &cpu)?, read("memory", &memory)?);
    anyhow::ensure!(
        !cpu.is_whole(),
        "--sidecar-guaranteed-resources: the cpu must not be a whole number, because nodes with the static CPU policy would \
         take whole CPUs from all other pods: write for example 200m"
    );
    Ok(GuaranteedResources { cpu, memory })
}

/// Returns the name servers in the text of a `resolv.conf`.
#[must_use]
pub fn name_servers(resolv_conf: &str) -> Vec<IpAddr> {
    let lines = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    lines.filter_map(|address| address.trim().parse().ok()).collect()
}
