//! The sidecar against what limits rates elsewhere: nginx, HAProxy and Envoy, and Envoy with its rate limit
//! service and Redis as a whole path.
//!
//! - [`programs`]: the proxies, with the configurations in `bench/peers/`.
//! - [`bare`]: what hyper costs without Sluice.
//! - [`traffic`]: requests over HTTP/1 and HTTP/2.
//! - [`comparison`]: rounds of all contenders under the same load, and the table rows made from them.
//! - [`proxies`]: proxies that count in their own memory; [`path`]: paths that count in Redis.
//! - [`heads`]: questions of gateways that show requests, beside those of gateways that describe them.
//! - [`service`]: the service against envoyproxy/ratelimit, whose place it takes, behind the same Envoy.

pub(super) mod bare;
mod comparison;
pub(super) mod heads;
mod path;
mod programs;
mod proxies;
pub(super) mod service;
mod traffic;

use crate::report::row::Row;
use crate::support::cores::Cores;

/// Measures all of them.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut rows = proxies::measure(cores).await?;
    rows.extend(path::measure(cores).await?);
    Ok(rows)
}
