//! The configuration of all sidecars.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sluice_config::trace_options::{CollectorUrl, SampleRatio};

use crate::admission::log_filter::LogFilter;
use crate::args::{LogFormat, StartupPolicy};

/// The configuration that all sidecars share.
#[derive(Debug, Clone)]
pub struct InjectConfig {
    /// Image of the sidecar.
    pub image: String,
    /// Pull policy of the image.
    pub pull_policy: String,
    /// Resource requests and limits of the sidecar.
    pub resources: ResourceRequirements,
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
    /// ports of native sidecars from Kubernetes 1.32; before, the sidecar is an ordinary container.
    pub native: bool,
    /// Whether the API server supports `preStop.sleep` (from Kubernetes 1.30).
    pub pre_stop_sleep: bool,
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
