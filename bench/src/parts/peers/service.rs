//! The service against envoyproxy/ratelimit, whose place it takes: behind the same Envoy, with the same configuration and
//! environment, and with one Redis. All programs of a path share the measured core.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_tests::wait::until;

use super::programs::{Filter, Service, envoy_asking, service};
use crate::parts::proxy::load::{Pace, Responses, api_keys, load_at, upstream};
use crate::parts::proxy::proxies::{ADMIT, DENY, Proxy};
use crate::report::row::{Aim, Row};
use crate::report::sample::Sample;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::procfs::Processes;
use crate::support::redis_server::RedisServer;
use crate::support::rounds::interleave;

/// Rounds as fast as the paths can, which differ by a tenth and more, and at a rate, where a round takes as long as it is to take.
const ROUNDS: u64 = 11;
const PACED_ROUNDS: u64 = 5;
const CONNECTIONS: usize = 64;
const CLIENTS: usize = 1_000;
const REQUESTS: usize = 10_000;
const DOMAINS: usize = 10_000;
/// Longest time for which Envoy waits by default.
const DEFAULT_TIMEOUT: &str = "0.02s";
const PEER: &str = "envoyproxy/ratelimit";

/// Envoy, a service and Redis.
struct Path {
    /// Envoy that waits for an answer however long it takes.
    patient: Proxy,
    /// Envoy that waits for [`DEFAULT_TIMEOUT`].
    impatient: Proxy,
    service: Proxy,
    redis: Processes,
}

/// Measurements of a round.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// CPU time of a request in microseconds, of all processes.
    all: f64,
    /// CPU time of the service for a request, in microseconds.
    service: f64,
    throughput: f64,
    /// Time within which 99 % of the responses arrived, in milliseconds.
    p99: f64,
    responses: Responses,
}

impl Path {
    async fn start(
        cores: Cores,
        upstream: SocketAddr,
        program: Service,
        redis: &RedisServer,
        more_domains: usize,
    ) -> anyhow::Result<Self> {
        let address = redis.url.strip_prefix("redis://").context("a URL of Redis")?;
        let service = service(cores, program, address, more_domains).await?;
        let patient = envoy_asking(cores, upstream, service.address, (Filter::Ratelimit, "10s")).await?;
        let impatient =
            envoy_asking(cores, upstream, service.address, (Filter::Ratelimit, DEFAULT_TIMEOUT)).await?;
        for envoy in [&patient, &impatient] {
            until("Envoy and the service admit a request", async || {
                let pace = Pace { connections: 1, rate: None };
                let answers = load_at(envoy.address, ADMIT, api_keys("ready", 1), 1, pace).await;
                answers.ok().filter(|(responses, _)| responses.admitted == 1)
            })
            .await;
        }
        Ok(Self { patient, impatient, service, redis: redis.processes.clone() })
    }

    async fn run(
        &self,
        envoy: &Proxy,
        path: &'static str,
        prefix: &str,
        rate: Option<f64>,
    ) -> anyhow::Result<Round> {
        let pace = Pace { connections: CONNECTIONS, rate };
        let keys = api_keys(prefix, CLIENTS);
        // The first request of each client makes its counter.
        let patient = Pace { connections: CONNECTIONS, rate: None };
        load_at(self.patient.address, path, keys.clone(), CLIENTS, patient).await?;
        let all = envoy.processes.clone().and(&self.service.processes).and(&self.redis);
        let (before, before_service, start) = (all.cpu()?, self.service.processes.cpu()?, Instant::now());
        let (responses, mut times) = load_at(envoy.address, path, keys, REQUESTS, pace).await?;
        let wall = start.elapsed();
        let service = self.service.processes.cpu_since(&before_service)?;
        let all = all.cpu_since(&before)?;
        times.sort_unstable();
        let p99 = times.get(times.len() * 99 / 100).map_or(f64::NAN, Duration::as_secs_f64);
        let requests = REQUESTS as f64;
        Ok(Round {
            all: all.as_secs_f64() * 1e6 / requests,
            service: service.as_secs_f64() * 1e6 / requests,
            throughput: requests / wall.as_secs_f64(),
            p99: p99 * 1e3,
            responses,
        })
    }
}

/// Rounds of both paths, and what they have in common.
struct Rounds {
    rounds: Vec<(Round, Round)>,
    peer: &'static str,
    verification: Verification,
}

impl Rounds {
    async fn measure(
        [ours, peers]: [&Path; 2],
        peer: &'static str,
        path: &'static str,
        prefix: &str,
        (rate, is_patient): (Option<f64>, bool),
    ) -> anyhow::Result<Self> {
        let number = if rate.is_some() { PACED_ROUNDS } else { ROUNDS };
        let rounds = interleave(number, async |side, round| {
            let path_of = side.of([ours, peers]);
            let envoy = if is_patient { &path_of.patient } else { &path_of.impatient };
            let prefix = format!("{prefix}-{}-{round}", side.of(["ours", "peer"]));
            path_of.run(envoy, path, &prefix, rate).await
        })
        .await?;
        let mut verification = Verification::default();
        let (status, count): (_, fn(&Responses) -> u64) = if path == DENY {
            ("429", |responses| responses.denied)
        } else {
            ("200", |responses| responses.admitted)
        };
        let sum = |side: fn(&(Round, Round)) -> &Round| {
            rounds.iter().map(|round| count(&side(round).responses)).sum()
        };
        if is_patient {
            let expected = REQUESTS as u64 * number;
            verification.expect_both(status, sum(|round| &round.0), sum(|round| &round.1), expected);
        }
        Ok(Self { rounds, peer, verification })
    }

    fn row(&self, what: impl Into<String>, unit: &str, value: fn(&Round) -> f64) -> Row {
        let rounds: Vec<_> = self.rounds.iter().map(|(ours, peer)| (value(ours), value(peer))).collect();
        Row::compared(what, unit, &rounds, self.peer, &self.verification)
    }
}

/// Time after which the threads that a start has needed, such as those that resolve names, have ended. The CPU time of a thread that
/// ends while it is measured is lost.
const IDLE: Duration = Duration::from_secs(12);

/// Measures the service and its peer at full load and at the same rate, and the service with many domains.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let redis = RedisServer::start(cores).await?;
    let ours = Path::start(cores, upstream, Service::Sluice, &redis, 0).await?;
    let peer = Path::start(cores, upstream, Service::Ratelimit, &redis, 0).await?;
    let both = [&ours, &peer];
    tokio::time::sleep(IDLE).await;

    let full = Rounds::measure(both, PEER, ADMIT, "full", (None, true)).await?;
    let mut rows = vec![
        full.row("service: 200, CPU of the service", "us/check", |round| round.service)
            .with_aim(Aim::RatioAtMost(0.25)),
        full.row("service: 200, CPU of Envoy, the service and Redis", "us/request", |round| round.all)
            .with_aim(Aim::RatioAtMost(0.55)),
        full.row("service: 200, throughput", "requests/s", |round| round.throughput),
    ];
    let denied = Rounds::measure(both, PEER, DENY, "denied", (None, true)).await?;
    rows.push(denied.row("service: 429, CPU of the service", "us/check", |round| round.service));
    rows.push(
        denied.row("service: 429, CPU of Envoy, the service and Redis", "us/request", |round| round.all),
    );

    let rate = Sample::of(full.rounds.iter().map(|(_, peer)| peer.throughput)).median / 2.0;
    let at_rate = format!("at {rate:.0} requests/s, half of what the peer's path can do");
    let paced = Rounds::measure(both, PEER, ADMIT, "paced", (Some(rate), true)).await?;
    rows.push(
        paced
            .row(format!("service: {at_rate}, 99 % of responses within"), "ms", |round| round.p99)
            .with_aim(Aim::RatioAtMost(0.5)),
    );
    let impatient = Rounds::measure(both, PEER, ADMIT, "impatient", (Some(rate), false)).await?;
    let errors = |side: fn(&(Round, Round)) -> &Round| {
        let rounds = impatient.rounds.iter();
        Sample::of(rounds.map(|round| side(round).responses.other as f64 * 1e6 / REQUESTS as f64))
    };
    let what = "questions without an answer within Envoy's 20 ms";
    for (name, sample) in [("service", errors(|round| &round.0)), (PEER, errors(|round| &round.1))] {
        let none = Verification::default();
        rows.push(Row::sampled(format!("{name}: {at_rate}, {what}"), "a million", sample, &none));
    }
    drop(peer);

    let began = Instant::now();
    let many = Path::start(cores, upstream, Service::Sluice, &redis, DOMAINS).await?;
    let (loaded, memory) = (began.elapsed(), many.service.processes.memory()?.rss);
    tokio::time::sleep(IDLE).await;
    let domains = Rounds::measure([&many, &ours], "Sluice with one domain", ADMIT, "domains", (None, true));
    rows.push(
        domains
            .await?
            .row("service: 10,000 domains of 10 limits, CPU of the service", "us/check", |round| {
                round.service
            })
            .with_aim(Aim::RatioAtMost(1.15)),
    );
    let none = Verification::default();
    let what = "service: 10,000 domains of 10 limits, from its start to the first answer through Envoy";
    rows.push(Row::single(what, "s", loaded.as_secs_f64(), &none).with_aim(Aim::AtMost(10.0)));
    let what = "service: 10,000 domains of 10 limits, resident memory";
    rows.push(Row::single(what, "MiB", memory as f64 / f64::from(1 << 20), &none));
    Ok(rows)
}
