//! Faults under many sessions, in 10 namespaces of 10 policies: all connections break, a tenth of the sidecars read nothing, the API
//! server is killed and started again, all pods of a namespace are relabelled, a namespace loses its pods and policies, and the leader
//! is killed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_crds::RateLimitPolicy;
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::TestNamespace;

use super::fleet::{CONCURRENT, Fleet, is_programmed, policy};
use super::single;
use super::watched::{Requests, until_quiet};
use crate::report::row::Row;

const NAMESPACES: usize = 10;
const POLICIES: usize = 10;
/// Sessions, if `SLUICE_BENCH_SESSIONS` does not name a number of them.
const SESSIONS: usize = 3_000;
/// Time for which sidecars read nothing.
const HANG: Duration = Duration::from_secs(5);

/// Collects rows.
struct Table {
    sessions: usize,
    rows: Vec<Row>,
}

impl Table {
    fn add(&mut self, what: &str, unit: &str, value: f64) {
        self.rows.push(single(&format!("{} sidecars: {what}", self.sessions), unit, value));
    }
}

/// Measures the rows of this part.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let sessions = match std::env::var("SLUICE_BENCH_SESSIONS") {
        // The last of several numbers.
        Ok(text) => {
            let number = text.rsplit(',').next().unwrap_or_default().trim();
            number.parse::<usize>().context("SLUICE_BENCH_SESSIONS is no number of sessions")?
        }
        Err(_) => SESSIONS,
    };
    let mut table = Table { sessions, rows: Vec::new() };
    let mut fleet = Fleet::create(NAMESPACES, POLICIES).await?;
    fleet.add_pods(sessions).await?;
    let operator = fleet.start_operator().await;
    let start = Instant::now();
    fleet.connect(&operator);
    fleet.configured(None, start).await?;
    fleet.programmed(&fleet.namespaces, start).await?;
    until_quiet(&fleet.plane, Requests::default()).await?;

    break_all(&fleet, &mut table).await?;
    hang_some(&fleet, &mut table).await?;
    restart_api_server(&mut fleet, &mut table).await?;
    relabel(&fleet, &mut table).await?;
    empty_a_namespace(&mut fleet, &mut table).await?;
    kill_the_leader(&fleet, operator, &mut table).await?;
    Ok(table.rows)
}

/// Every connection breaks at once.
async fn break_all(fleet: &Fleet, table: &mut Table) -> anyhow::Result<()> {
    fleet.seen.refused.store(0, Ordering::Relaxed);
    let (before, start) = (Requests::read(&fleet.plane).await?, Instant::now());
    fleet.seen.storm.send_modify(|number| *number += 1);
    table.add("all connections break: last one back", "s", fleet.configured(None, start).await?);
    table.add("all connections break: attempts refused", "attempts", fleet.refused());
    table.requests("all connections break", fleet, before, start).await
}

/// A tenth of the sidecars read nothing while a policy of theirs is edited.
async fn hang_some(fleet: &Fleet, table: &mut Table) -> anyhow::Result<()> {
    let namespace = &fleet.namespaces[0];
    let members = || fleet.sidecars.iter().filter(|member| member.namespace == namespace.name);
    let hang =
        |hangs| members().step_by(10).for_each(|member| member.sidecar.hangs.send_modify(|now| *now = hangs));
    hang(true);
    let start = Instant::now();
    namespace.apply("p0", policy("a", 4_000)).await?;
    let others = members().enumerate().filter(|(number, _)| number % 10 != 0).map(|(_, member)| member);
    let configured = fleet.configured_of(others, start).await?;
    table.add("a tenth of a namespace reads nothing, an edit: last other one configured", "s", configured);
    let mut falsely = 0.0;
    while start.elapsed() < HANG {
        falsely += f64::from(u8::from(is_programmed(namespace, POLICIES).await?));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    table.add("a tenth of a namespace reads nothing, an edit: Programmed meanwhile", "times", falsely);
    let reads = Instant::now();
    hang(false);
    let programmed = fleet.programmed(std::slice::from_ref(namespace), reads).await?;
    table.add("a tenth of a namespace reads again: programmed", "s", programmed);
    Ok(())
}

/// The API server is killed, and started again.
async fn restart_api_server(fleet: &mut Fleet, table: &mut Table) -> anyhow::Result<()> {
    fleet.seen.ended.store(0, Ordering::Relaxed);
    let killed = Instant::now();
    fleet.plane.restart_api_server().await;
    table.add("the API server is killed: ready again", "s", killed.elapsed().as_secs_f64());
    // It counts from its start.
    let (before, start) = (Requests::read(&fleet.plane).await?, Instant::now());
    fleet.namespaces[0].apply("p0", policy("a", 5_000)).await?;
    let programmed = fleet.programmed(&fleet.namespaces, start).await?;
    table.add("the API server is back, an edit: all policies programmed", "s", programmed);
    let ended = fleet.seen.ended.load(Ordering::Relaxed) as f64;
    table.add("the API server is killed: sessions that ended", "sessions", ended);
    table.requests("the API server is back", fleet, before, start).await
}

/// All pods of a namespace get another label, which no policy selects, and the first one again.
async fn relabel(fleet: &Fleet, table: &mut Table) -> anyhow::Result<()> {
    let namespace = &fleet.namespaces[0];
    let pods = namespace.api::<Pod>().list(&ListParams::default()).await?.items;
    let label = async |app: &str| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"app": app}}}));
        let patches = pods.iter().map(|pod| {
            let (api, patch) = (namespace.api::<Pod>(), &patch);
            async move { api.patch(&pod.name_any(), &PatchParams::default(), patch).await }
        });
        futures::stream::iter(patches).buffer_unordered(CONCURRENT).try_collect::<Vec<_>>().await
    };
    let (before, start) = (Requests::read(&fleet.plane).await?, Instant::now());
    label("b").await?;
    let without = fleet.have_policies(&namespace.name, 0, start).await?;
    table.add("all pods of a namespace are relabelled: last one without policies", "s", without);
    let again = Instant::now();
    label("a").await?;
    table.add(
        "all pods of a namespace are labelled as before: last one configured",
        "s",
        fleet.configured(Some(&namespace.name), again).await?,
    );
    let programmed = fleet.programmed(std::slice::from_ref(namespace), again).await?;
    table.add("all pods of a namespace are labelled as before: programmed", "s", programmed);
    table.requests("all pods of a namespace are relabelled twice", fleet, before, start).await
}

/// The pods and the policies of a namespace are deleted, as when it is deleted.
async fn empty_a_namespace(fleet: &mut Fleet, table: &mut Table) -> anyhow::Result<()> {
    let namespace: TestNamespace = fleet.namespaces.remove(0);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let (before, start) = (Requests::read(&fleet.plane).await?, Instant::now());
    let all = ListParams::default();
    namespace.api::<Pod>().delete_collection(&now, &all).await?;
    namespace.api::<RateLimitPolicy>().delete_collection(&now, &all).await?;
    let ended = fleet.have_no_session(&namespace.name, start).await?;
    table.add("a namespace is deleted: its last session ends", "s", ended);
    table.requests("a namespace is deleted", fleet, before, start).await?;
    fleet.sidecars.retain(|member| member.namespace != namespace.name);
    Ok(())
}

/// The leader is killed, so that the next one waits until its lease has expired.
async fn kill_the_leader(fleet: &Fleet, mut operator: Operator, table: &mut Table) -> anyhow::Result<()> {
    fleet.seen.refused.store(0, Ordering::Relaxed);
    let killed = Instant::now();
    operator.process.kill();
    let _next = fleet.start_replica(&["--pod-name=next"]).await;
    let listens = Instant::now();
    let before = Requests::read(&fleet.plane).await?;
    let listening = (listens - killed).as_secs_f64();
    table.add("the leader is killed: the next one listens", "s", listening);
    // Some are back before the generator knows that it listens.
    let back = fleet.configured(None, killed).await? - listening;
    table.add("the leader is killed: last one back after that", "s", back);
    let programmed = fleet.programmed(&fleet.namespaces, listens).await?;
    table.add("the leader is killed: all policies programmed after that", "s", programmed);
    table.requests("the leader is killed", fleet, before, listens).await?;
    Ok(())
}

impl Table {
    /// Adds the number of requests to the API server in a second, until the status of all policies is quiet.
    async fn requests(
        &mut self,
        what: &str,
        fleet: &Fleet,
        before: Requests,
        since: Instant,
    ) -> anyhow::Result<()> {
        let requests = until_quiet(&fleet.plane, before).await?;
        // The last three seconds were quiet.
        let seconds = (since.elapsed().as_secs_f64() - 3.0).max(1.0);
        self.add(&format!("{what}: requests to the API server"), "requests/s", requests.all / seconds);
        Ok(())
    }
}
