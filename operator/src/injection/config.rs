//! The configuration of all sidecars, and what the annotations of a pod change of it. An annotation that cannot be used is
//! left out with a warning: the pod still gets its sidecar, and its limits.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::net::IpAddr;
use std::str::FromStr;

use clap::ValueEnum;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sluice_config::trace_options::{CollectorUrl, SampleRatio};
use sluice_crds::{GROUP, INJECTED_ANNOTATION, PORTS_ANNOTATION};
use sluice_host::logging::LogFormat;

use crate::injection::quantity::Amount;
use crate::injection::resources::GuaranteedResources;

#[cfg(test)]
mod pod_settings_tests;

#[cfg(test)]
mod log_filter_tests;

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

/// Treatment of requests before a sidecar has policies.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartupPolicy {
    /// It forwards requests without limits.
    Forward,
    /// It rejects requests with the status 503.
    Deny,
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
    struct Guaranteed {
        cpu: Quantity,
        memory: Quantity,
    }
    let Guaranteed { cpu, memory } = serde_json::from_str(json).map_err(|error| {
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
pub fn name_servers(resolv_conf: &str) -> Vec<IpAddr> {
    let lines = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    lines.filter_map(|address| address.trim().parse().ok()).collect()
}

const LOG_LEVEL: &str = "sluice.dev/log-level";
const LOG_FORMAT: &str = "sluice.dev/log-format";
const WORKERS: &str = "sluice.dev/workers";
/// The annotations of resources: the resource, the annotation of its request and of its limit, and the least amount. A
/// sidecar uses about ten MiB, and with less than twice that it would be killed under load.
const RESOURCE_ANNOTATIONS: [(&str, &str, &str, Amount); 2] = [
    ("cpu", "sluice.dev/cpu-request", "sluice.dev/cpu-limit", Amount::milli(1)),
    ("memory", "sluice.dev/memory-request", "sluice.dev/memory-limit", Amount::mebibytes(16)),
];
/// Maximum number of workers that a sidecar accepts.
const MAX_WORKERS: u16 = 256;
/// Maximum number of warnings about one pod, which are logged too.
const MAX_WARNINGS: usize = 8;
/// Maximum length of a value in a warning, in characters. The API server cuts long warnings off.
const MAX_SHOWN: usize = 40;

/// The settings of one sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSettings {
    /// Log filter.
    pub log: LogFilter,
    /// Log format.
    pub log_format: LogFormat,
    /// Number of workers. `None`: it follows from the CPU limit.
    pub workers: Option<u16>,
    /// Requests and limits.
    pub resources: ResourceRequirements,
}

type Annotations = BTreeMap<String, String>;

impl PodSettings {
    /// Returns the settings of a pod with these annotations, and a warning for each that has no effect.
    pub fn new(config: &InjectConfig, annotations: &Annotations) -> (Self, Vec<String>) {
        let mut settings = Self {
            log: config.log.clone(),
            log_format: config.log_format,
            workers: None,
            resources: config.resources.clone(),
        };
        let mut warnings = Vec::new();
        for (name, value) in annotations {
            let problem = match name.as_str() {
                LOG_LEVEL => value.parse().map(|log| settings.log = log).err().map(|error| error.to_string()),
                LOG_FORMAT => match value.as_str() {
                    "text" => set(&mut settings.log_format, LogFormat::Text),
                    "json" => set(&mut settings.log_format, LogFormat::Json),
                    _ => Some(format!("{:?} is not a log format: write text or json", shown(value))),
                },
                WORKERS => match value.parse() {
                    Ok(workers @ 1..=MAX_WORKERS) => set(&mut settings.workers, Some(workers)),
                    _ => {
                        Some(format!("{:?} is not a number of workers from 1 to {MAX_WORKERS}", shown(value)))
                    }
                },
                _ => unknown(name),
            };
            warnings.extend(problem.map(|problem| format!("the annotation {name} has no effect: {problem}")));
        }
        for (resource, request, limit, least) in RESOURCE_ANNOTATIONS {
            set_resource(
                &mut settings.resources,
                annotations,
                &mut warnings,
                resource,
                [request, limit],
                least,
            );
        }
        warnings.truncate(MAX_WARNINGS);
        (settings, warnings)
    }
}

/// Returns a value, cut off if it is long.
fn shown(value: &str) -> String {
    value.chars().take(MAX_SHOWN).collect()
}

fn set<T>(field: &mut T, value: T) -> Option<String> {
    *field = value;
    None
}

/// Returns the warning about an annotation with Sluice's prefix that Sluice does not have.
fn unknown(name: &str) -> Option<String> {
    let own = name.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with('/'));
    let is_resource =
        RESOURCE_ANNOTATIONS.iter().any(|(_, request, limit, _)| [*request, *limit].contains(&name));
    let is_known = [PORTS_ANNOTATION, INJECTED_ANNOTATION].contains(&name) || is_resource;
    (own && !is_known).then(|| "Sluice has no such annotation for pods".to_owned())
}

/// Applies the annotations of one resource. The API server refuses a request above its limit, so the one without an
/// annotation follows the other.
fn set_resource(
    resources: &mut ResourceRequirements,
    annotations: &Annotations,
    warnings: &mut Vec<String>,
    resource: &str,
    names: [&str; 2],
    least: Amount,
) {
    let mut read = |name: &str| {
        let value = annotations.get(name)?;
        let found = Amount::parse(value).filter(|amount| *amount >= least);
        if found.is_none() {
            let example = if resource == "cpu" { "500m or 2, at least 1m" } else { "256Mi, at least 16Mi" };
            warnings.push(format!(
                "the annotation {name} has no effect: {:?} is not an amount of {resource}: write for example {example}",
                shown(value)
            ));
        }
        Some((value.clone(), found?))
    };
    let [request, limit] = names.map(&mut read);
    if let (Some((_, request)), Some((_, limit))) = (&request, &limit)
        && request > limit
    {
        let [request, limit] = names;
        warnings.push(format!(
            "the annotations {request} and {limit} have no effect: the request is above the limit"
        ));
        return;
    }
    let (requests, limits) =
        (resources.requests.get_or_insert_default(), resources.limits.get_or_insert_default());
    let present =
        |all: &BTreeMap<String, Quantity>| all.get(resource).and_then(|quantity| Amount::parse(&quantity.0));
    if let Some((text, value)) = request {
        if limit.is_none() && present(limits).is_some_and(|limit| value > limit) {
            limits.insert(resource.to_owned(), Quantity(text.clone()));
        }
        requests.insert(resource.to_owned(), Quantity(text));
    }
    if let Some((text, value)) = limit {
        if present(requests).is_some_and(|request| request > value) {
            requests.insert(resource.to_owned(), Quantity(text.clone()));
        }
        limits.insert(resource.to_owned(), Quantity(text));
    }
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Maximum length of a filter, in bytes.
const MAX_FILTER: usize = 200;
/// Maximum length of a filter in an error, in characters.
const MAX_SHOWN_FILTER: usize = 40;
/// Part that is added to a level alone: these warnings are about what clients send, and any client can cause them.
const QUIET: &str = "h2=error";

/// A filter that a sidecar accepts: a level, or levels by module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

/// A text that is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a log filter: write off, error, warn, info, debug or trace, or levels by module such as \
     info,sluice_store=debug"
)]
pub struct InvalidLogFilter(String);

impl FromStr for LogFilter {
    type Err = InvalidLogFilter;

    // Stricter than the filter of `tracing`, which takes a mistyped level for the name of a module.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_module = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            !name.is_empty() && name.chars().all(allowed)
        };
        let is_directive = |item: &str| match item.split_once('=') {
            Some((module, level)) => is_module(module) && LEVELS.contains(&level),
            None => LEVELS.contains(&item),
        };
        if text.len() > MAX_FILTER || !text.split(',').all(is_directive) {
            return Err(InvalidLogFilter(text.chars().take(MAX_SHOWN_FILTER).collect()));
        }
        let quiet = ["warn", "info"].contains(&text);
        Ok(Self(if quiet { format!("{text},{QUIET}") } else { text.to_owned() }))
    }
}

impl Display for LogFilter {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}
