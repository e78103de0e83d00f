//! Validation of policies. Admission, the controller and `sluice check` all call [`validate`] and nothing
//! else, so they always agree.
//!
//! - [`validator`]: collects violations; common checks.
//! - [`matches`]: the requests and clients that a limit selects.
//! - [`rates`]: rates, algorithm and enforcement of a limit.
//! - [`concurrency`]: limits on concurrent requests.
//! - [`valid_policy`]: a policy without violations.
//! - [`warnings`]: settings that are valid but probably not intended.

mod concurrency;
mod matches;
mod rates;
pub mod valid_policy;
mod validator;
mod warnings;

use ipnet::IpNet;
use serde_json::Value;

use self::concurrency::check_concurrency;
use self::matches::check_selection;
use self::rates::check_rates;
pub use self::valid_policy::ValidPolicy;
use self::validator::Validator;
use self::warnings::warnings;
use crate::policy::{RateLimitPolicy, RateLimitPolicySpec};
use crate::schema;
use crate::violation::Violation;

/// Validates an object in JSON: first against the schema, then for everything that a schema cannot express.
pub fn validate(object: &Value) -> Result<ValidPolicy, Vec<Violation>> {
    let violations = schema::violations(object);
    if !violations.is_empty() {
        return Err(violations);
    }
    let policy: RateLimitPolicy = serde_json::from_value(object.clone())
        .map_err(|error| vec![Violation::new("spec", error.to_string())])?;
    let mut validator = Validator::default();
    check_spec(&mut validator, &policy.spec);
    if validator.violations.is_empty() {
        let warnings = warnings(&policy.spec);
        Ok(ValidPolicy { policy, warnings })
    } else {
        Err(validator.violations)
    }
}

fn check_spec(validator: &mut Validator, spec: &RateLimitPolicySpec) {
    if let Some(selector) = &spec.selector
        && let Err(error) = kube::core::Selector::try_from(selector.clone())
    {
        validator.violation("spec.selector", error.to_string());
    }
    if let Some(address) = &spec.client_address {
        for (n, network) in address.trusted_proxies.iter().enumerate() {
            if network.parse::<IpNet>().is_err() {
                validator.violation(
                    format!("spec.clientAddress.trustedProxies[{n}]"),
                    format!(
                        "{network:?} is not a network: use CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32"
                    ),
                );
            }
        }
    }
    if spec.limits.is_empty() && spec.concurrency.is_empty() {
        validator.violation("spec.limits", "is required unless spec.concurrency is set");
    }
    for (n, limit) in spec.limits.iter().enumerate() {
        let path = format!("spec.limits[{n}]");
        check_selection(validator, &path, &limit.matches, limit.key.as_ref());
        check_rates(validator, &path, limit);
    }
    for (n, limit) in spec.concurrency.iter().enumerate() {
        let path = format!("spec.concurrency[{n}]");
        if let Some(other) = spec.limits.iter().position(|other| other.name == limit.name) {
            validator.violation(
                format!("{path}.name"),
                format!("{:?} is already used by spec.limits[{other}]", limit.name),
            );
        }
        check_selection(validator, &path, &limit.matches, limit.key.as_ref());
        check_concurrency(validator, &path, limit);
    }
}
