//! Checks of a limit on concurrent requests.

use super::validator::Validator;
use crate::compile::concurrency::{MAX_TIMEOUT_MILLIS, compile_adaptive};
use crate::policy::{Adaptive, Aimd, Concurrency};

/// Checks one entry of `spec.concurrency`, except for its matches and its key.
pub(super) fn check_concurrency(validator: &mut Validator, path: &str, limit: &Concurrency) {
    let Concurrency { max, adaptive, key, .. } = limit;
    validator.exactly_one(path, &[("max", max.is_some()), ("adaptive", adaptive.is_some())]);
    let Some(adaptive) = adaptive else { return };
    if key.is_some() {
        validator.violation(
            format!("{path}.key"),
            "is not allowed with adaptive, which limits all clients of a pod together: remove it",
        );
    }
    check_adaptive(validator, &format!("{path}.adaptive"), adaptive);
}

fn check_adaptive(validator: &mut Validator, path: &str, adaptive: &Adaptive) {
    let Adaptive { aimd, vegas, gradient2 } = adaptive;
    let members = [("aimd", aimd.is_some()), ("vegas", vegas.is_some()), ("gradient2", gradient2.is_some())];
    let before = validator.violations.len();
    validator.exactly_one(path, &members);
    if let Some(Aimd { timeout: Some(timeout), .. }) = aimd {
        validator.duration(&format!("{path}.aimd.timeout"), timeout, Some(MAX_TIMEOUT_MILLIS));
    }
    if validator.violations.len() > before {
        return;
    }
    // Sidecars call the same function and would nack the policy for the same reason.
    if let (Some(compiled), Some((member, _))) =
        (compile_adaptive(adaptive), members.iter().find(|(_, set)| *set))
        && let Err(bad) = compiled.adaptive()
    {
        let field = match bad.name {
            "minimum" | "maximum" | "initial" => format!("{path}.{member}.{}", bad.name),
            _ => format!("{path}.{member}"),
        };
        validator.violation(
            field,
            format!("{} is out of range: {} to {} are allowed here", bad.value, bad.min, bad.max),
        );
    }
}
