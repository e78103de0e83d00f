//! Pods come and go among those of one namespace, each with a session.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fleet::Fleet;
use super::single;
use super::watched::{Requests, Watched, metric, until_quiet};
use crate::report::row::Row;

/// Pods that stay.
const PODS: usize = 1_000;
const POLICIES: usize = 10;
/// Pods that are created, one every [`EVERY`], and deleted again.
const CREATED: usize = 100;
const EVERY: Duration = Duration::from_millis(50);
/// Events of a pod that is created, runs and is deleted: it appears, its status is set, its sidecar connects and confirms, and
/// it is deleted.
const EVENTS: f64 = 5.0;

/// Measures the rows of this part.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let mut fleet = Fleet::create(1, POLICIES).await?;
    fleet.add_pods(PODS).await?;
    let operator = fleet.start_operator().await;
    let connected = Instant::now();
    fleet.connect(&operator);
    fleet.configured(None, connected).await?;
    fleet.programmed(&fleet.namespaces, connected).await?;
    until_quiet(&fleet.plane, Requests::default()).await?;

    let namespace = fleet.namespaces[0].clone();
    let before = Requests::read(&fleet.plane).await?;
    let reconciles = metric(&operator, "sluice_operator_reconciles_total").await?;
    fleet.seen.live.store(0, Ordering::Relaxed);
    let (watched, start) = (Watched::begin()?, Instant::now());
    let mut ticks = tokio::time::interval(EVERY);
    for number in 0..CREATED {
        ticks.tick().await;
        fleet.create_one(&operator, &format!("new-{number}")).await;
    }
    fleet.configured(None, connected).await?;
    fleet.sidecars.truncate(PODS);
    for number in 0..CREATED {
        ticks.tick().await;
        namespace.delete_pod(&format!("new-{number}")).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let requests = until_quiet(&fleet.plane, before).await?;
    let events = CREATED as f64 * EVENTS;
    let cpu = watched.cpu_ms()?;
    let live = fleet.seen.live.load(Ordering::Relaxed) as f64;
    let reconciles = metric(&operator, "sluice_operator_reconciles_total").await? - reconciles;
    let rows = [
        ("CPU time of the operator for an event", "ms", cpu / events),
        ("messages with replicas for each sidecar and second", "messages", live / PODS as f64 / seconds),
        ("reconciles for an event", "reconciles", reconciles / events),
        (
            "writes of status for each policy and second",
            "requests",
            requests.written / POLICIES as f64 / seconds,
        ),
        ("conflicts of all writes", "requests", requests.conflicts),
        ("GETs of pods for each pod", "requests", requests.pods / CREATED as f64),
    ];
    let row = |(what, unit, value): (&str, &str, f64)| {
        let what = format!("100 pods come and go among 1,000 with 10 policies, 20 a second: {what}");
        single(&what, unit, value)
    };
    Ok(rows.map(row).into())
}
