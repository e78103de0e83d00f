//! Pods come and go among those of one namespace, each with a session.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_tests::components::Operator;

use super::fleet::Fleet;
use super::single;
use super::watched::{Requests, Watched, metric, until_quiet};
use crate::report::row::Row;

const POLICIES: usize = 10;
/// Events of a pod that is created, runs and is deleted: it appears, its status is set, its sidecar connects and confirms, and
/// it is deleted.
const EVENTS: f64 = 5.0;

/// Pods that are created one after the other, and deleted again.
struct Churn {
    what: &'static str,
    created: usize,
    every: Duration,
}

/// Measures the rows of this part.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let rollout = Churn {
        what: "100 pods come and go among 1,000 with 10 policies, 20 a second",
        created: 100,
        every: Duration::from_millis(50),
    };
    let repairs = Churn {
        what: "20 pods come and go among 1,000 with 10 policies, one a second",
        created: 20,
        every: Duration::from_secs(1),
    };
    let autoscaler = Churn {
        what: "10 pods with 10 policies become 500 and 10 again, 20 a second",
        created: 490,
        every: Duration::from_millis(50),
    };
    let mut rows = among(1_000, &[rollout, repairs]).await?;
    rows.extend(among(10, &[autoscaler]).await?);
    Ok(rows)
}

/// Measures what happens while pods come and go among those that stay.
async fn among(pods: usize, churns: &[Churn]) -> anyhow::Result<Vec<Row>> {
    let mut fleet = Fleet::create(1, POLICIES).await?;
    fleet.add_pods(pods).await?;
    let operator = fleet.start_operator().await;
    let connected = Instant::now();
    fleet.connect(&operator);
    fleet.configured(None, connected).await?;
    fleet.programmed(&fleet.namespaces, connected).await?;
    let mut rows = Vec::new();
    for churn in churns {
        until_quiet(&fleet.plane, Requests::default()).await?;
        rows.extend(churn.measure(&mut fleet, &operator, connected).await?);
    }
    Ok(rows)
}

impl Churn {
    /// Measures the rows of these pods. The other ones have been connected since an instant.
    async fn measure(
        &self,
        fleet: &mut Fleet,
        operator: &Operator,
        connected: Instant,
    ) -> anyhow::Result<Vec<Row>> {
        let (namespace, stay) = (fleet.namespaces[0].clone(), fleet.sidecars.len());
        let before = Requests::read(&fleet.plane).await?;
        let reconciles = metric(operator, "sluice_operator_reconciles_total").await?;
        fleet.seen.live.store(0, Ordering::Relaxed);
        let (watched, start) = (Watched::begin()?, Instant::now());
        let mut ticks = tokio::time::interval(self.every);
        for number in 0..self.created {
            ticks.tick().await;
            fleet.create_one(operator, &format!("new-{number}")).await;
        }
        fleet.configured(None, connected).await?;
        fleet.sidecars.truncate(stay);
        for number in 0..self.created {
            ticks.tick().await;
            namespace.delete_pod(&format!("new-{number}")).await;
        }
        let seconds = start.elapsed().as_secs_f64();
        let requests = until_quiet(&fleet.plane, before).await?;
        let events = self.created as f64 * EVENTS;
        let cpu = watched.cpu_ms()?;
        let live = fleet.seen.live.load(Ordering::Relaxed) as f64;
        // Half of the time the created ones become more, from none on, and the other half none of them has a session.
        let sidecars = stay as f64 + self.created as f64 / 4.0;
        let reconciles = metric(operator, "sluice_operator_reconciles_total").await? - reconciles;
        let rows = [
            ("CPU time of the operator for an event", "ms", cpu / events),
            ("messages with replicas for each sidecar and second", "messages", live / sidecars / seconds),
            ("reconciles for an event", "reconciles", reconciles / events),
            (
                "writes of status for each policy and second",
                "requests",
                requests.written / POLICIES as f64 / seconds,
            ),
            ("conflicts of all writes", "requests", requests.conflicts),
            ("GETs of pods for each pod", "requests", requests.pods / self.created as f64),
        ];
        Ok(rows.map(|(what, unit, value)| single(&format!("{}: {what}", self.what), unit, value)).into())
    }
}
