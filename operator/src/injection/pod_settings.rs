//! Settings of the sidecar of one pod, which the annotations of the pod change. An annotation that cannot be used is
//! left out with a warning: the pod still gets its sidecar, and its limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sluice_crds::{GROUP, INJECTED_ANNOTATION, PORTS_ANNOTATION};
use sluice_host::logging::LogFormat;

use super::config::InjectConfig;
use super::log_filter::LogFilter;
use super::quantity::Amount;

#[cfg(test)]
mod tests;

const LOG_LEVEL: &str = "sluice.dev/log-level";
const LOG_FORMAT: &str = "sluice.dev/log-format";
const WORKERS: &str = "sluice.dev/workers";
/// The annotations of resources: the resource, the annotation of its request and of its limit, and the least amount. A
/// sidecar uses about ten MiB, and with less than twice that it would be killed under load.
const RESOURCES: [(&str, &str, &str, Amount); 2] = [
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
        for (resource, request, limit, least) in RESOURCES {
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
    let is_resource = RESOURCES.iter().any(|(_, request, limit, _)| [*request, *limit].contains(&name));
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
