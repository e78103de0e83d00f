//! Requests over a limit that are not just rejected: they wait, are marked, or block their client.

use crate::support;

mod block;
mod mark;
mod queue;

/// Returns a limit in JSON: `requests` per `period` milliseconds for each `x-api-key`. `kind` holds further members of its rates, and
/// `extra` further members of the limit; both have a leading comma.
fn limited(name: &str, requests: u64, period: u64, kind: &str, extra: &str) -> String {
    let mode = if extra.contains("\"mode\"") { "" } else { r#""mode":"Enforce","# };
    format!(
        r#"{{"name":"{name}",{mode}"onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
        "kind":{{"rates":{{"base":[{{"requests":{requests},"periodMillis":{period},"algorithm":{{"fixedWindow":"Clock"}}}}]{kind}}}}}{extra}}}"#
    )
}

/// Returns the number of decisions of a limit of the policy `checkout` with an outcome.
fn decisions(sidecar: &sluice_sidecar::Sidecar, limit: &str, outcome: &str) -> u64 {
    let name = format!(
        "sluice_decisions_total{{policy_namespace=\"shop\",policy=\"checkout\",limit=\"{limit}\",outcome=\"{outcome}\"}}"
    );
    support::metric(&sidecar.metrics(), &name)
}
