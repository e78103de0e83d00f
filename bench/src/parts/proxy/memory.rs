//! Resident memory: the sidecar without traffic and after 10k clients, compared with nginx under the same
//! limits; the sidecar of a pod, with its counters in Redis; and the operator with 100 policies on a real API
//! server.

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_tests::components::Operator;
use sluice_tests::components::Redis;
use sluice_tests::components::Sidecar;
use sluice_tests::kubernetes::ControlPlane;
use sluice_tests::kubernetes::TestNamespace;

use super::load::{load, upstream};
use super::proxies::{ADMIT, Proxy};
use crate::report::row::Row;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::procfs::{Memory, Processes};

const ROUNDS: usize = 3;
const CLIENTS: usize = 10_000;
const POLICIES: usize = 100;
const PEER: &str = "nginx, master and worker";

/// A unit of the table, and memory in that unit.
type Unit = (&'static str, fn(&Memory) -> f64);
const UNITS: [Unit; 3] = [
    ("MiB RSS", |memory| memory.rss as f64 / 1_048_576.0),
    ("MiB PSS", |memory| memory.pss as f64 / 1_048_576.0),
    ("MiB RSS without files", |memory| memory.private as f64 / 1_048_576.0),
];

/// Measures sidecar, nginx and operator.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut rows = compare_with_nginx(cores).await?;
    rows.extend(measure_with_api_server().await?);
    Ok(rows)
}

async fn compare_with_nginx(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let (mut idle, mut loaded, mut verification) = (Vec::new(), Vec::new(), Verification::default());
    let (mut ours, mut peers) = (0, 0);
    for _ in 0..ROUNDS {
        let sluice = Proxy::start_sluice(cores, upstream).await?;
        let nginx = Proxy::start_nginx(cores, upstream).await?;
        idle.push((sluice.processes.memory()?, nginx.processes.memory()?));
        ours += load(sluice.address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
        peers += load(nginx.address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
        loaded.push((sluice.processes.memory()?, nginx.processes.memory()?));
    }
    verification.expect_both("200 of all clients", ours, peers, (ROUNDS * CLIENTS) as u64);
    let rows = |what: &str, rounds: &[(Memory, Memory)], verification: &Verification| {
        UNITS.map(|(unit, value)| {
            let values: Vec<_> = rounds.iter().map(|(ours, peers)| (value(ours), value(peers))).collect();
            Row::compared(format!("sidecar, memory store: {what}"), unit, &values, PEER, verification)
        })
    };
    let idle = rows("idle", &idle, &Verification::default());
    let loaded = rows("after 10k keys", &loaded, &verification);
    Ok(idle.into_iter().chain(loaded).collect())
}

async fn measure_with_api_server() -> anyhow::Result<Vec<Row>> {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "bench-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "bench").await;
    for number in 0..POLICIES {
        namespace.apply(&format!("p{number}"), policy(number)).await?;
    }
    let pod = namespace.pod("one", true, json!({"app": "a0"})).await;
    let sidecar = Sidecar::start(&namespace, &pod, &operator).await;
    namespace.wait_for("p0", "Ready", "True Ready").await;
    let last = format!("p{}", POLICIES - 1);
    namespace.wait_for(&last, "Accepted", "True Accepted").await;
    let mut policies = Verification::default();
    policies.expect("policies on the API server", count_policies(&namespace).await?, POLICIES as u64);

    let sidecars = Processes::started("sluice-sidecar")?;
    let operators = Processes::started("sluice-operator")?;
    let mut rows =
        measure_process("sidecar of a pod, Redis store: idle", &sidecars, &Verification::default())?;
    let address: SocketAddr = sidecar.address.parse()?;
    let admitted = load(address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
    let keys = redis.keys().await.len() as u64;
    let mut clients = Verification::default();
    clients.expect("200 of all clients", admitted, CLIENTS as u64);
    clients.expect("keys in Redis", keys, CLIENTS as u64);
    rows.extend(measure_process("sidecar of a pod, Redis store: after 10k keys", &sidecars, &clients)?);
    rows.extend(measure_process("operator, 100 policies and a sidecar", &operators, &policies)?);
    Ok(rows)
}

/// Builds a policy. The first one selects the pod; the others select no pod.
fn policy(number: usize) -> Value {
    json!({
        "selector": {"matchLabels": {"app": format!("a{number}")}},
        "limits": [{
            "name": "l",
            "key": {"parts": [{"header": {"name": "x-api-key"}}]},
            "rates": [{"requests": 1_000_000_000, "per": "1h"}],
        }],
    })
}

async fn count_policies(namespace: &TestNamespace) -> anyhow::Result<u64> {
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    Ok(api.list(&Default::default()).await?.items.len() as u64)
}

fn measure_process(
    what: &str,
    processes: &Processes,
    verification: &Verification,
) -> anyhow::Result<Vec<Row>> {
    let memory = processes.memory()?;
    Ok(UNITS.map(|(unit, value)| Row::single(what, unit, value(&memory), verification)).into())
}
