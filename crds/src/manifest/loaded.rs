//! Policies and stores from a file.

use sluice_config::CompiledPolicy;

use super::problem::Problem;
use crate::policy::jwt::JwksSource;
use crate::policy::{EnforcedBy, OverrideSources};
use crate::store::CompiledStore;

/// A file with objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Name of the file, which stands before the line of each problem; empty if it has none.
    pub name: String,
    /// Text of the file.
    pub text: String,
}

/// A policy from a file.
#[derive(Debug, Clone)]
pub struct LoadedPolicy {
    /// Name of the file.
    pub file: String,
    /// Namespace of the policy; `default` if the file names none.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
    /// Its enforcers.
    pub enforced_by: EnforcedBy,
    /// The compiled policy.
    pub compiled: CompiledPolicy,
    /// Settings that are valid but probably not intended.
    pub warnings: Vec<Problem>,
    /// The tables of overrides that the compiled policy refers to.
    pub tables: Vec<Vec<u8>>,
    /// References to content that no file has. The compiled policy is without it.
    pub missing: Vec<Problem>,
}

/// A policy whose references have not been resolved.
pub(super) struct PendingPolicy {
    pub(super) loaded: LoadedPolicy,
    pub(super) overrides: Vec<OverrideSources>,
    /// The line of each entry in `overrides`.
    pub(super) lines: Vec<u64>,
    /// The objects with public keys, each with its line.
    pub(super) jwks: Vec<(JwksSource, u64)>,
}

/// A store from a file.
#[derive(Debug, Clone)]
pub struct LoadedStore {
    /// Name of the file.
    pub file: String,
    /// Namespace of the store; `default` if the file names none.
    pub namespace: String,
    /// Name of the store.
    pub name: String,
    /// The compiled store.
    pub compiled: CompiledStore,
}
