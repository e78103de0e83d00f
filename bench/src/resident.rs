//! Resident memory: the sidecar idle and after 10k clients, nginx beside it with the same limits; the sidecar of a
//! pod, whose counters are in Redis; the operator with 100 policies on a real API server.

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::operator::Operator;
use sluice_tests::redis::Redis;
use sluice_tests::sidecar::Sidecar;

use crate::cores::Cores;
use crate::http::{self, load};
use crate::procfs::{Memory, Processes};
use crate::proxies::{ADMIT, Proxy};
use crate::row::{Checks, Row};

const ROUNDS: usize = 3;
const CLIENTS: usize = 10_000;
const POLICIES: usize = 100;
const NAME: &str = "nginx, master and worker";

/// Measures all.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut rows = beside_nginx(cores).await?;
    rows.extend(on_control_plane().await?);
    Ok(rows)
}

async fn beside_nginx(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = http::upstream().await?;
    let (mut idle, mut loaded, mut checks) = (Vec::new(), Vec::new(), Checks::default());
    let mut admitted = (0, 0);
    for _ in 0..ROUNDS {
        let (sluice, nginx) = (Proxy::sluice(cores, upstream).await?, Proxy::nginx(cores, upstream).await?);
        idle.push((sluice.processes.memory()?, nginx.processes.memory()?));
        admitted.0 += load(sluice.address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
        admitted.1 += load(nginx.address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
        loaded.push((sluice.processes.memory()?, nginx.processes.memory()?));
    }
    checks.both("200 of all clients", admitted.0, admitted.1, (ROUNDS * CLIENTS) as u64);
    let rows = |what: &str, rounds: &[(Memory, Memory)], checks: &Checks| {
        UNITS.map(|(unit, of)| {
            let rounds: Vec<_> = rounds.iter().map(|(ours, peer)| (of(ours), of(peer))).collect();
            Row::compared(format!("sidecar, memory store: {what}"), unit, &rounds, NAME, checks)
        })
    };
    let after = rows("after 10k keys", &loaded, &checks);
    Ok(rows("idle", &idle, &Checks::default()).into_iter().chain(after).collect())
}

async fn on_control_plane() -> anyhow::Result<Vec<Row>> {
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
    let mut programmed = Checks::default();
    programmed.one("policies on the API server", count(&namespace).await?, POLICIES as u64);

    let (sidecars, operators) =
        (Processes::started("sluice-sidecar")?, Processes::started("sluice-operator")?);
    let mut rows = alone("sidecar of a pod, Redis store: idle", &sidecars, &Checks::default())?;
    let address: SocketAddr = sidecar.address.parse()?;
    let admitted = load(address, ADMIT, "client", CLIENTS, CLIENTS).await?.admitted;
    let keys = redis.keys().await.len() as u64;
    let mut checks = Checks::default();
    checks.one("200 of all clients", admitted, CLIENTS as u64);
    checks.one("keys in Redis", keys, CLIENTS as u64);
    rows.extend(alone("sidecar of a pod, Redis store: after 10k keys", &sidecars, &checks)?);
    rows.extend(alone("operator, 100 policies and a sidecar", &operators, &programmed)?);
    Ok(rows)
}

/// The first policy selects the one pod; the others select nothing that is there.
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

async fn count(namespace: &TestNamespace) -> anyhow::Result<u64> {
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    Ok(api.list(&Default::default()).await?.items.len() as u64)
}

/// A unit, and how many of it memory is.
type Unit = (&'static str, fn(&Memory) -> f64);
const UNITS: [Unit; 3] = [
    ("MiB RSS", |memory| memory.rss as f64 / 1_048_576.0),
    ("MiB PSS", |memory| memory.pss as f64 / 1_048_576.0),
    ("MiB RSS without files", |memory| memory.own as f64 / 1_048_576.0),
];

fn alone(what: &str, processes: &Processes, checks: &Checks) -> anyhow::Result<Vec<Row>> {
    let memory = processes.memory()?;
    Ok(UNITS.map(|(unit, of)| Row::alone(what, unit, of(&memory), checks)).into())
}
