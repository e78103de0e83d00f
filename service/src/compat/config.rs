//! The rules of a domain, as ratelimit's files and resources have them.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;
use sluice_config::descriptor::RateUnit;

use crate::messages::{ConfigDescriptor, ConfigRateLimit, RateLimitConfig};

/// A domain, from one file or one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainConfig {
    /// The name of the domain.
    #[serde(default)]
    pub domain: String,
    /// The first level of its rules.
    #[serde(default, deserialize_with = "or_empty")]
    pub descriptors: Vec<DescriptorConfig>,
}

/// A level of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescriptorConfig {
    /// The key.
    #[serde(default)]
    pub key: Located,
    /// The value; empty for any. A `*` stands for any text.
    #[serde(default, deserialize_with = "or_empty")]
    pub value: String,
    /// The rule.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// The next level.
    #[serde(default, deserialize_with = "or_empty")]
    pub descriptors: Vec<DescriptorConfig>,
    /// Whether the rule denies nothing.
    #[serde(default)]
    pub shadow_mode: bool,
    /// Whether a denial is only told in the metadata of the answer.
    #[serde(default)]
    pub quota_mode: bool,
    /// Whether metrics have the values of clients. It is not supported, because clients choose how many there are.
    #[serde(default)]
    pub detailed_metric: bool,
    /// Whether metrics have the values of this level. It is not supported either.
    #[serde(default)]
    pub value_to_metric: bool,
    /// Whether all values that match the `*` share one counter.
    #[serde(default)]
    pub share_threshold: bool,
    /// Has no meaning here.
    #[serde(default)]
    metadata: Ignored,
}

/// A text, and where its file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Located {
    /// The text.
    pub text: String,
    /// The number of its line; 0 outside a file.
    pub line: u64,
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value: text, referenced, .. } = Spanned::<String>::deserialize(deserializer)?;
        Ok(Self { text, line: referenced.line() })
    }
}

/// A value of any form that is not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// A rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Number of requests.
    #[serde(default)]
    pub requests_per_unit: u32,
    /// The unit, in any case.
    #[serde(default)]
    pub unit: String,
    /// Whether everything is admitted.
    #[serde(default)]
    pub unlimited: bool,
    /// The name by which other rules may replace this one.
    #[serde(default)]
    pub name: String,
    /// The rules that this one replaces.
    #[serde(default, deserialize_with = "or_empty")]
    pub replaces: Vec<Replaces>,
}

/// A rule that is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaces {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// Reads a value, or its default in place of null.
fn or_empty<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Most values of a file.
const MAX_NODES: usize = 32 << 20;

impl DomainConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no YAML, or has a field that is not known. The reason names line and column.
    pub fn from_yaml(yaml: &str) -> Result<Self, String> {
        // As many as the largest file can have without anchors.
        let budget = serde_saphyr::budget! { max_nodes: MAX_NODES, max_events: 2 * MAX_NODES };
        let options = serde_saphyr::options! { budget: budget };
        serde_saphyr::from_str_with_options(yaml, options)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
    }
}

impl From<RateLimitConfig> for DomainConfig {
    fn from(config: RateLimitConfig) -> Self {
        let descriptors = config.descriptors.into_iter().map(Into::into).collect();
        Self { domain: config.domain, descriptors: joined(descriptors) }
    }
}

/// Joins the levels of a list that have the same key and value, unless both have a rule. Envoy Gateway lists a level once for each rule
/// that stands at it or below.
fn joined(descriptors: Vec<DescriptorConfig>) -> Vec<DescriptorConfig> {
    let mut places = HashMap::new();
    let mut joined = Vec::<DescriptorConfig>::with_capacity(descriptors.len());
    for mut descriptor in descriptors {
        let place =
            *places.entry((descriptor.key.text.clone(), descriptor.value.clone())).or_insert(joined.len());
        match joined.get_mut(place) {
            Some(known) if known.rate_limit.is_none() => {
                let mut below = std::mem::take(&mut known.descriptors);
                below.append(&mut descriptor.descriptors);
                *known = DescriptorConfig { descriptors: below, ..descriptor };
            }
            Some(known) if descriptor.rate_limit.is_none() => {
                known.descriptors.append(&mut descriptor.descriptors);
            }
            _ => joined.push(descriptor),
        }
    }
    for level in &mut joined {
        level.descriptors = self::joined(std::mem::take(&mut level.descriptors));
    }
    joined
}

impl From<ConfigDescriptor> for DescriptorConfig {
    fn from(config: ConfigDescriptor) -> Self {
        Self {
            key: Located { text: config.key, line: 0 },
            value: config.value,
            rate_limit: config.rate_limit.map(Into::into),
            descriptors: config.descriptors.into_iter().map(Into::into).collect(),
            shadow_mode: config.shadow_mode,
            quota_mode: config.quota_mode,
            detailed_metric: config.detailed_metric,
            ..Self::default()
        }
    }
}

impl From<ConfigRateLimit> for RateLimit {
    fn from(config: ConfigRateLimit) -> Self {
        Self {
            requests_per_unit: config.requests_per_unit,
            // A number that is not known has no name, which is refused later.
            unit: RateUnit::from_number(config.unit)
                .map_or_else(String::new, |unit| unit.as_str().to_owned()),
            unlimited: config.unlimited,
            name: config.name,
            replaces: config.replaces.into_iter().map(|replace| Replaces { name: replace.name }).collect(),
        }
    }
}
