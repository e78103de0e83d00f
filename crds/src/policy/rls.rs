//! Conditions on the descriptors of gateways' questions.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::matches::{DescriptorMatch, EntryMatch, EntryValue};

use crate::checks::field::Field;
use crate::checks::installation::Installation;
use crate::violation::Kind;

/// A condition on a descriptor, by which gateways ask the service about a request: the protocol of Envoy's global rate limiting. A
/// descriptor matches if it has exactly these entries in this order.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RlsMatch {
    /// The domain that the gateway asks about: the name of the policy's namespace, this name and a slash with more, such as
    /// shop/checkout, or another one that the installation has granted to the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub domain: String,
    /// The entries of the descriptor.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub entries: Vec<RlsEntry>,
}

/// An entry of a descriptor: its key, and the value that it must have. Without value and prefix, any value.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.value) || !has(self.prefix)").message("at most one of value, prefix may be set"))]
pub struct RlsEntry {
    /// Key of the entry, such as remote_address.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// The value must equal this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub value: Option<String>,
    /// The value must begin with this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: Option<String>,
}

/// Lets descriptors bring along a number of requests of their own, in place of that of the first rate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AllowOverride {
    /// Largest number of requests in each unit of time that a descriptor may bring along. A larger one counts as this one.
    #[schemars(range(min = 1, max = 4_294_967_295i64))]
    pub maximum: i64,
}

impl RlsMatch {
    pub(super) fn compile(&self, at: &Field<'_>) -> DescriptorMatch {
        let entries = self.entries.iter().enumerate().map(|(n, entry)| {
            let RlsEntry { key, value, prefix } = entry;
            let at = at.at("entries").entry(n);
            if self.entries[..n].iter().any(|other| other.key == *key) {
                at.at("key").warning(format_args!(
                    "is there twice: a part of the key with the descriptorKey {key:?} is the value of the first of them"
                ));
            }
            let prefix = prefix.clone().map(EntryValue::Prefix);
            let value = match (value.clone().map(EntryValue::Exact), prefix) {
                (Some(_), Some(_)) => {
                    at.at("prefix").violation("is not allowed beside `value`: remove one of them");
                    None
                }
                (value, prefix) => value.or(prefix),
            };
            EntryMatch { key: key.clone(), value }
        });
        DescriptorMatch { domain: self.domain.clone(), entries: entries.collect() }
    }

    /// Checks that the policy's namespace may name the domain.
    pub(super) fn check_domain(&self, at: &Field<'_>, installation: &Installation, namespace: &str) {
        let domain = &self.domain;
        let is_own =
            domain.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // A domain that is granted belongs to those namespaces alone, also if one is called like it.
        let is_listed = installation.domains.contains_key(domain);
        // A manifest need not name its namespace.
        if namespace.is_empty() || is_own && !is_listed || installation.grants(domain, namespace) {
            return;
        }
        at.at("domain").violation_of(
            Kind::DomainNotGranted,
            format_args!(
                "{domain:?} is not granted to the namespace {namespace}: use {namespace} or {namespace}/NAME, or ask {} for it \
                 (the value service.domains of the chart)",
                installation.contact
            ),
        );
    }
}

/// Where a match is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In `matches` of a limit on rates.
    Limit,
    /// Elsewhere: a match for descriptors is refused.
    Other,
}
