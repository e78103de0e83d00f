//! Whole paths that count in Redis: the sidecar and Redis, and Envoy with envoyproxy/ratelimit and Redis. All
//! programs of a path share the measured core; clients and upstream have the other.

use anyhow::Context as _;

use super::comparison::{Comparison, Contender, Round};
use super::programs::{Filter, Service, envoy_asking, service, sluice};
use super::traffic::Protocol;
use crate::parts::proxy::load::upstream;
use crate::parts::proxy::proxies::{ADMIT, DENY};
use crate::report::row::Row;
use crate::support::cores::Cores;
use crate::support::redis_server::RedisServer;

const REQUESTS: usize = 10_000;
const PEER: &str = "Envoy, envoyproxy/ratelimit and Redis";

/// A title, a unit and a value of the table.
type Value = (&'static str, &'static str, fn(&Round) -> f64);
const VALUES: [Value; 3] = [
    ("CPU of all processes", "us/request", |round| round.cpu),
    ("throughput", "requests/s", |round| round.throughput),
    ("99 % of responses within", "ms", |round| round.p99),
];

/// Measures admitted requests of many clients and of one, and denied requests.
pub(super) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let redis = RedisServer::start(cores).await?;
    // Work is measured and not waiting: no request is decided without Redis.
    let url = format!("--store={}", redis.url);
    let store = [url.as_str(), "--latency-budget=10s"];
    let redis_address = redis.url.strip_prefix("redis://").context("a URL of Redis")?;
    let ratelimit = service(cores, Service::Ratelimit, redis_address, 0).await?;
    let strict = sluice(cores, upstream, "Strict", &store).await?;
    let leased = sluice(cores, upstream, "Leased", &store).await?;
    let envoy = envoy_asking(cores, upstream, ratelimit.address, (Filter::Ratelimit, "10s")).await?;
    let contenders = [
        Contender::path("Sluice, strict", strict, Vec::new(), &redis.processes),
        Contender::path("Sluice, leased", leased, Vec::new(), &redis.processes),
        Contender::path(PEER, envoy, vec![ratelimit], &redis.processes),
    ];
    let mut rows = Vec::new();
    for (what, path, clients, values) in [
        ("200, 1,000 clients", ADMIT, 1_000, &VALUES[..]),
        ("200, one client", ADMIT, 1, &VALUES[..1]),
        ("429, 1,000 clients", DENY, 1_000, &VALUES[..1]),
    ] {
        let protocol = Protocol::Http1;
        let contenders = &contenders;
        let compared =
            Comparison { contenders, protocol, path, clients, requests: REQUESTS }.measure().await?;
        for (ours, consistency) in [(0, "strict"), (1, "leased")] {
            for (title, unit, value) in values {
                let what = format!("path with Redis, {consistency}: {what}, {title}");
                rows.push(compared.row(what, unit, *value, [ours, 2]));
            }
        }
    }
    Ok(rows)
}
