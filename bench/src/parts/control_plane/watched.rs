//! Requests to the API server, and CPU time and memory of the operator, while something happens.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::ControlPlane;

use crate::support::procfs::{CpuTimes, Processes};

/// Requests to the API server since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Requests {
    /// GETs of single pods.
    pub(crate) pods: f64,
    /// Writes of policies' status, without those that conflict.
    pub(crate) written: f64,
    /// Writes of policies' status that conflict.
    pub(crate) conflicts: f64,
    /// All requests but those of the generator.
    pub(crate) all: f64,
}

impl Requests {
    /// Reads the API server's metrics.
    pub(crate) async fn read(plane: &ControlPlane) -> anyhow::Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let page = plane.client().await.request_text(request).await?;
        let sum = |texts: &[&str]| {
            let lines = page.lines().filter(|line| line.starts_with("apiserver_request_total{"));
            let lines = lines.filter(|line| texts.iter().all(|text| line.contains(text)));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let of_status = ["resource=\"ratelimitpolicies\"", "subresource=\"status\""];
        let others = [
            &["resource=\"ratelimitpolicies\"", "verb=\"LIST\"", "scope=\"namespace\""][..],
            &["resource=\"ratelimitpolicies\"", "subresource=\"\"", "scope=\"resource\""],
            &["resource=\"pods\"", "verb=\"PATCH\""],
            &["resource=\"pods\"", "verb=\"DELETE\""],
            &["resource=\"pods\"", "verb=\"POST\""],
            &["resource=\"serviceaccounts\""],
            &["resource=\"\""],
        ];
        let is_others = |line: &str| others.iter().any(|texts| texts.iter().all(|text| line.contains(text)));
        let all = page.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let all = all.filter(|line| !is_others(line));
        Ok(Self {
            all: all.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum(),
            pods: sum(&["resource=\"pods\"", "verb=\"GET\""]),
            written: sum(&[&of_status[..], &["code=\"200\""]].concat()),
            conflicts: sum(&[&of_status[..], &["code=\"409\""]].concat()),
        })
    }

    /// Returns how many were sent since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            pods: self.pods - before.pods,
            written: self.written - before.written,
            conflicts: self.conflicts - before.conflicts,
            all: self.all - before.all,
        }
    }
}

/// The operator's process.
#[derive(Debug)]
pub(crate) struct Watched {
    processes: Processes,
    before: CpuTimes,
    memory: u64,
}

impl Watched {
    /// Begins to watch an operator.
    pub(crate) fn begin() -> anyhow::Result<Self> {
        let processes = Processes::started("sluice-operator")?;
        Ok(Self { before: processes.cpu()?, memory: processes.memory()?.private, processes })
    }

    /// Returns the CPU time since then, in milliseconds. Threads that wait for files or names may have ended.
    pub(crate) fn cpu_ms(&self) -> anyhow::Result<f64> {
        Ok(self.processes.cpu_of_remaining(&self.before)?.as_secs_f64() * 1e3)
    }

    /// Returns the anonymous memory in use, in bytes.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        Ok(self.processes.memory()?.private as f64)
    }

    /// Returns the growth of the anonymous memory since then, in bytes.
    pub(crate) fn growth(&self) -> anyhow::Result<f64> {
        Ok(self.memory()? - self.memory as f64)
    }
}

/// Returns a metric of the operator.
pub(crate) async fn metric(operator: &Operator, name: &str) -> anyhow::Result<f64> {
    let address = operator.admin_url.trim_start_matches("http://");
    let page = sluice_tests::client::get(address, "/metrics", &[]).await.body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)).context("the metric is missing")?;
    Ok(line.trim().parse()?)
}

/// Waits until the status of no policy was written for 3 s, and returns the requests until then.
pub(crate) async fn until_quiet(plane: &ControlPlane, before: Requests) -> anyhow::Result<Requests> {
    let (mut last, mut since) = (Requests::read(plane).await?, Instant::now());
    while since.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = Requests::read(plane).await?;
        if now.written + now.conflicts > last.written + last.conflicts {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last.since(before))
}
