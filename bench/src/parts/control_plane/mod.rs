//! The control plane under many sidecars: a real API server with etcd, the operator as a process, and sessions that behave as
//! sidecars do, over TCP and TLS. Each has a token and a connection of its own, and confirms only what it has received.
//!
//! - `fleet`: namespaces, policies, pods and their sessions.
//! - `sidecar`: one session.
//! - `watched`: requests to the API server, and CPU time and memory of the operator, while something happens.
//! - `edits`: sessions connect, policies are edited, the operator restarts and its leader changes.
//! - `churn`: pods come and go.
//! - `many`: a thousand policies.
//! - `webhook`: pods are created.
//! - `aims`: what the rows should be.
//! - `faults`: connections break, sidecars hang, the API server and the leader are killed, and all pods of a namespace change.

mod aims;
mod churn;
mod edits;
mod faults;
mod fleet;
mod many;
mod sidecar;
mod watched;
mod webhook;

use crate::report::row::Row;
use crate::report::sample::Sample;
use crate::report::verification::Verification;

/// Numbers of sessions that are measured. `SLUICE_BENCH_SESSIONS` names others, separated by commas.
const SESSIONS: &str = "200,1000,3000";

/// Returns a row of the table, and prints it: the part takes minutes.
fn row(what: &str, unit: &str, sample: Sample) -> Row {
    println!("{what}: {:.2} {unit} ({:.2} to {:.2})", sample.median, sample.lowest, sample.highest);
    let row = Row::sampled(what, unit, sample, &Verification::default());
    match aims::aim(what) {
        Some(aim) => row.with_aim(aim),
        None => row,
    }
}

/// Returns a row for a single value.
fn single(what: &str, unit: &str, value: f64) -> Row {
    row(what, unit, Sample::of(std::iter::once(value)))
}

/// Measures how the control plane gets over faults.
pub(crate) async fn measure_faults() -> anyhow::Result<Vec<Row>> {
    faults::measure().await
}

/// Measures the control plane.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let sessions = std::env::var("SLUICE_BENCH_SESSIONS").unwrap_or_else(|_| SESSIONS.into());
    let mut rows = Vec::new();
    for sessions in sessions.split(',') {
        rows.extend(edits::measure(sessions.trim().parse()?).await?);
    }
    rows.extend(churn::measure().await?);
    rows.extend(many::measure().await?);
    rows.extend(webhook::measure().await?);
    Ok(rows)
}
