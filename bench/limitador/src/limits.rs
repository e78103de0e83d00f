//! Limits of the crate, and what it needs to check a client.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use anyhow::Context as _;
use limitador::counter::Counter;
use limitador::limit::{Context, Limit};

/// The period of all limits in seconds, like Sluice's in the benchmark.
const PERIOD: u64 = 86_400;
pub(crate) const NAMESPACE: &str = "bench";

/// Converts an error of the crate, which cannot move between threads, to one that can.
pub(crate) fn to_anyhow(error: impl Display) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

/// Returns a limit of each client.
pub(crate) fn limit(requests: u64) -> anyhow::Result<Limit> {
    let variable = "client".try_into().map_err(to_anyhow)?;
    Ok(Limit::new(NAMESPACE, requests, PERIOD, [], [variable]))
}

/// Returns the context of a client's request.
pub(crate) fn context(client: u64) -> Context<'static> {
    HashMap::from([("client".to_owned(), format!("{client:x}"))]).into()
}

/// Returns the counters of a client's request.
pub(crate) fn counters(limit: &Arc<Limit>, client: u64) -> anyhow::Result<Vec<Counter>> {
    let counter = Counter::new(limit.clone(), &context(client)).map_err(to_anyhow)?;
    let counter = counter.context("the limit does not apply to the client")?;
    Ok(vec![counter])
}
