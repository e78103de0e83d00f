//! All sidecars connect, policies are edited, the operator restarts, and its leader changes: 10 namespaces of 10 policies.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fleet::{Fleet, policy};
use super::watched::{Requests, Watched, until_quiet};
use super::{row, single};
use crate::report::row::Row;
use crate::report::sample::Sample;

const NAMESPACES: usize = 10;
const POLICIES: usize = 10;
const EDITS: u64 = 5;
/// Time at rest that is measured: two keep-alives of each session.
const REST: Duration = Duration::from_secs(60);

/// Measures a number of sessions.
pub(crate) async fn measure(sessions: usize) -> anyhow::Result<Vec<Row>> {
    let mut fleet = Fleet::create(NAMESPACES, POLICIES).await?;
    fleet.add_pods(sessions).await?;
    let count = sessions as f64;
    let mut rows = Vec::new();
    let one =
        |what: &str, unit: &str, value: f64| single(&format!("{sessions} sidecars: {what}"), unit, value);

    let mut operator = fleet.start_operator().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (watched, requests, start) = (Watched::begin()?, Requests::read(&fleet.plane).await?, Instant::now());
    fleet.connect(&operator);
    let configured = fleet.configured(None, start).await?;
    let programmed = fleet.programmed(&fleet.namespaces, start).await?;
    let requests = until_quiet(&fleet.plane, requests).await?;
    rows.push(one("all connect: last one configured", "s", configured));
    rows.push(one("all connect: all policies programmed", "s", programmed));
    rows.push(one("all connect: attempts refused", "attempts", fleet.refused()));
    rows.push(one("all connect: CPU time of the operator for each", "ms", watched.cpu_ms()? / count));
    rows.push(one(
        "all connect: anonymous memory of the operator for each",
        "KB",
        watched.growth()? / 1e3 / count,
    ));
    rows.push(one("all connect: GETs of pods", "requests", requests.pods));
    rows.push(one("all connect: writes of status until quiet", "requests", requests.written));
    rows.push(one("all connect: conflicts of these", "requests", requests.conflicts));

    let watched = Watched::begin()?;
    tokio::time::sleep(REST).await;
    rows.push(one(
        "at rest: CPU time of the operator",
        "% of a core",
        watched.cpu_ms()? / REST.as_secs_f64() / 10.0,
    ));

    let (mut of_one, mut of_all) = (Vec::new(), Vec::new());
    for edit in 0..EDITS {
        of_one.push(edit_policies(&fleet, 1, 2_000 + edit).await?);
        of_all.push(edit_policies(&fleet, POLICIES, 3_000 + edit).await?);
    }
    for (name, edits) in
        [("one policy is edited", of_one), ("all policies of a namespace are edited", of_all)]
    {
        let sample = |value: fn(&(f64, f64)) -> f64| Sample::of(edits.iter().map(|edit| value(edit) * 1e3));
        for (what, sample) in
            [("last one configured", sample(|edit| edit.0)), ("programmed", sample(|edit| edit.1))]
        {
            let what = format!("{sessions} sidecars: {name}: {what}");
            rows.push(row(&what, "ms", sample));
        }
    }
    fleet.seen.refused.store(0, Ordering::Relaxed);
    let (requests, start) = (Requests::read(&fleet.plane).await?, Instant::now());
    operator.process.stop();
    let stopped = start.elapsed().as_secs_f64();
    let mut operator = fleet.start_operator().await;
    rows.push(one("restart: last one back", "s", fleet.configured(None, start).await?));
    let requests = until_quiet(&fleet.plane, requests).await?;
    rows.push(one("restart: time to stop", "s", stopped));
    rows.push(one("restart: GETs of pods", "requests", requests.pods));
    rows.push(one("restart: writes of status until quiet", "requests", requests.written));
    rows.push(one("restart: conflicts of these", "requests", requests.conflicts));

    // Sidecars wait as real ones do, because what counts is how long each is without a leader.
    fleet.seen.waits.store(true, Ordering::Relaxed);
    fleet.seen.longest_gap.store(0, Ordering::Relaxed);
    // The replica that waits for the lease listens when it leads.
    let start = Instant::now();
    let next = fleet.start_replica(&["--pod-name=next"]);
    let stop = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        operator.process.signal();
        Instant::now()
    };
    let (next, signalled) = tokio::join!(next, stop);
    rows.push(one(
        "the leader changes: the next one listens after",
        "s",
        start.elapsed().as_secs_f64() - (signalled - start).as_secs_f64(),
    ));
    rows.push(one("the leader changes: last one moved", "s", fleet.configured(None, signalled).await?));
    let longest = fleet.seen.longest_gap.load(Ordering::Relaxed) as f64 / 1e6;
    rows.push(one("the leader changes: longest time without a leader", "s", longest));
    drop(next);
    Ok(rows)
}

/// Edits policies of a namespace at once. Returns the seconds until its last sidecar has them, and until they are programmed.
async fn edit_policies(fleet: &Fleet, count: usize, requests: u64) -> anyhow::Result<(f64, f64)> {
    let namespace = &fleet.namespaces[0];
    let start = Instant::now();
    for number in 0..count {
        namespace.apply(&format!("p{number}"), policy("a", requests)).await?;
    }
    let edited = Instant::now();
    let programmed = fleet.programmed(std::slice::from_ref(namespace), edited).await?;
    // All have confirmed the edits, so what each received last were these.
    let configured = fleet.configured(Some(&namespace.name), start).await? - (edited - start).as_secs_f64();
    // Minor changes of status must not meet the next edit.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok((configured, programmed))
}
