//! Validates and compiles a policy. Pure.

use kube::api::DynamicObject;
use sluice_crds::{Installation, Violation, compile as compile_policy};

use crate::reconcile::facts::Compiled;

#[cfg(test)]
thread_local! {
    /// Number of compilations in the current test, which runs in a thread of its own.
    pub(super) static COMPILATIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Compiles a policy for an installation, or returns all its violations.
pub fn compile(object: &DynamicObject, installation: &Installation) -> Result<Compiled, Vec<Violation>> {
    #[cfg(test)]
    COMPILATIONS.set(COMPILATIONS.get() + 1);
    let unreadable = |error: serde_json::Error| vec![Violation::new("spec", error.to_string())];
    let compiled = compile_policy(&serde_json::to_value(object).map_err(unreadable)?, installation)?;
    let sluice_crds::Compiled { policy, pods, overrides, warnings: _ } = compiled;
    Ok(Compiled { policy, pods, overrides })
}
