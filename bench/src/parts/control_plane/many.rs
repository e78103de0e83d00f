//! A thousand policies in 10 namespaces, with 200 sidecars: all of them connect, and pods are created one by one.

use std::time::{Duration, Instant};

use super::fleet::{Fleet, WITHOUT_PODS, policy};
use super::single;
use super::watched::{Requests, Watched, metric, until_quiet};
use crate::report::row::Row;

const NAMESPACES: usize = 10;
/// Policies of a namespace: those that select its pods, and the others.
const SELECTING: usize = 2;
const OTHERS: usize = 98;
const SIDECARS: usize = 200;
/// Pods that are created one by one, and the time between two of them. Together they take as long as policies without pods wait until
/// workloads are looked for again: once in this time, and once in the same time at rest.
const CREATED: u32 = 30;
const EVERY: Duration = Duration::from_secs(1);

/// Measures the rows of this part.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let mut fleet = Fleet::create(NAMESPACES, SELECTING).await?;
    for namespace in &fleet.namespaces {
        for number in 0..OTHERS {
            let name = format!("{WITHOUT_PODS}{number}");
            namespace.apply(&name, policy(&name, 5)).await?;
        }
    }
    fleet.add_pods(SIDECARS).await?;
    // A policy that is younger is pending for want of pods first.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    let before = Requests::read(&fleet.plane).await?;
    let operator = fleet.start_operator().await;
    fleet.connect(&operator);
    let configured = fleet.configured(None, start).await?;
    let programmed = fleet.programmed(&fleet.namespaces, start).await?;
    let requests = until_quiet(&fleet.plane, before).await?;

    // Not while the CPU time counts: the page has some lines for each policy.
    let reconciles = || metric(&operator, "sluice_operator_reconciles_total");
    let before = reconciles().await?;
    let (watched, rested) = (Watched::begin()?, Instant::now());
    let memory = watched.memory()? / f64::from(1 << 20);
    tokio::time::sleep(EVERY * CREATED).await;
    let at_rest = watched.cpu_ms()? / rested.elapsed().as_secs_f64();
    let between = reconciles().await?;
    let mut ticks = tokio::time::interval(EVERY);
    for number in 0..CREATED {
        ticks.tick().await;
        fleet.create_one(&operator, &format!("new-{number}")).await;
        fleet.configured(None, start).await?;
    }
    ticks.tick().await;
    let reconciles = (reconciles().await? - between) - (between - before);
    let rows = [
        ("start: last sidecar configured", "s", configured),
        ("start: all policies that have pods programmed", "s", programmed),
        ("start: writes of status until quiet", "requests", requests.written),
        ("start: conflicts of these", "requests", requests.conflicts),
        ("anonymous memory of the operator", "MiB", memory),
        ("CPU time of the operator at rest", "ms a second", at_rest),
        (
            "a pod is created that two of 100 select: reconciles beyond those at rest",
            "reconciles",
            reconciles / f64::from(CREATED),
        ),
    ];
    let row = |(what, unit, value): (&str, &str, f64)| {
        let what = format!("1,000 policies in 10 namespaces, 200 sidecars: {what}");
        single(&what, unit, value)
    };
    Ok(rows.map(row).into())
}
