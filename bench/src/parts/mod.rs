//! The measurements. `run.sh` names the parts.
//!
//! - [`control_plane`]: the operator under many sidecars.
//! - [`limiter`]: the limiter's pure functions.
//! - [`memory`]: the memory of the memory store.
//! - [`redis`]: the Redis store.
//! - [`proxy`]: sidecar and operator processes.
//! - [`peers`]: the sidecar against other proxies, and against whole paths of other programs.

mod control_plane;
mod limiter;
mod memory;
mod peers;
mod proxy;
mod redis;

use std::path::Path;

use anyhow::bail;

use crate::report::plot_data::PlotData;
use crate::report::row::Row;
use crate::support::cores::Cores;

/// The result of a part.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) plot: Option<PlotData>,
}

impl From<Vec<Row>> for Measured {
    fn from(rows: Vec<Row>) -> Self {
        Self { rows, plot: None }
    }
}

impl From<(Vec<Row>, PlotData)> for Measured {
    fn from((rows, plot): (Vec<Row>, PlotData)) -> Self {
        Self { rows, plot: Some(plot) }
    }
}

/// Measures one part. Criterion writes its files to the folder.
pub(crate) fn measure(name: &str, folder: &Path) -> anyhow::Result<Measured> {
    // These run in this process alone.
    match name {
        "functions" => return Ok(limiter::functions::measure(folder)?.into()),
        "edge" => return Ok(limiter::edge::measure()?.into()),
        "memory-size" => return Ok(memory::size::measure()?.into()),
        // The API server, etcd and the operator share the cores with this process.
        "control-plane" => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            return Ok(runtime.block_on(control_plane::measure())?.into());
        }
        "faults" => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            return Ok(runtime.block_on(control_plane::measure_faults())?.into());
        }
        _ => {}
    }
    let cores = Cores::claim()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Ok(match name {
            "redis" => redis::throughput::measure(cores).await?.into(),
            "limitador" => redis::limitador::measure(cores).await?.into(),
            "callers" => (Vec::new(), redis::callers::measure(cores).await?).into(),
            "new-keys" => redis::new_keys::measure(cores).await?.into(),
            "few-callers" => redis::few_callers::measure(cores).await?.into(),
            "fcall" => redis::fcall::measure(cores).await?.into(),
            "processes" => redis::processes::measure(cores).await?.into(),
            "leases" => redis::leases::measure(cores).await?.into(),
            "redis-size" => redis::size::measure(cores).await?.into(),
            "block" => redis::longest_call::measure(cores).await?.into(),
            "outage" => redis::outage::measure(cores).await?.into(),
            "proxy" => proxy::cpu::measure(cores).await?.into(),
            "tokens" => proxy::tokens::measure(cores).await?.into(),
            "rules" => proxy::rules::measure(cores).await?.into(),
            "peers" => peers::measure(cores).await?.into(),
            "service" => peers::service::measure(cores).await?.into(),
            "checks" => proxy::checks::measure(cores).await?.into(),
            "gateways" => peers::heads::measure(cores).await?.into(),
            "resident" => proxy::memory::measure(cores).await?.into(),
            _ => bail!("there is no part {name:?}"),
        })
    })
}

/// Runs this process as a child of a part: `bare ADDRESS UPSTREAM PROTOCOL`, `caller ADDRESS NUMBER` or `fill`.
pub(crate) fn run_role(arguments: &[&str]) -> anyhow::Result<()> {
    match arguments {
        ["bare", address, upstream, protocol] => peers::bare::run(address, upstream, protocol),
        ["caller", address, number] => redis::caller::run(address, number),
        ["fill"] => memory::fill::run(),
        _ => bail!("there is no role {arguments:?}"),
    }
}
