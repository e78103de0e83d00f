//! Checks the conditions on the descriptors of gateways' questions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::matches::{DescriptorMatch, EntryMatch};

use crate::checks::field::Field;
use crate::checks::installation::Installation;
use crate::violation::Kind;

/// Lets descriptors bring along a number of requests of their own, in place of that of the first rate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AllowOverride {
    /// Largest number of requests in each unit of time that a descriptor may bring along. A larger one counts as this one.
    #[schemars(range(min = 1, max = 4_294_967_295i64))]
    pub maximum: i64,
}

/// Checks a condition on descriptors.
pub(super) fn check(at: &Field<'_>, DescriptorMatch { domain: _, entries }: &DescriptorMatch) {
    for (n, EntryMatch { key, value, prefix }) in entries.iter().enumerate() {
        let at = at.at("entries").entry(n);
        if entries[..n].iter().any(|other| other.key == *key) {
            at.at("key").warning(format_args!(
                "is there twice: a part of the key with the descriptorKey {key:?} is the value of the first of them"
            ));
        }
        if value.is_some() && prefix.is_some() {
            at.at("prefix").violation("is not allowed beside `value`: remove one of them");
        }
    }
}

/// Checks that the policy's namespace may name the domain.
pub(super) fn check_domain(at: &Field<'_>, domain: &str, installation: &Installation, namespace: &str) {
    let is_own = domain.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
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

/// Where a match is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In `matches` of a limit on rates.
    Limit,
    /// Elsewhere: a match for descriptors is refused.
    Other,
}
