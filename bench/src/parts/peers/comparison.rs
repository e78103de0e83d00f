//! Rounds of all contenders under the same load, and the table rows made from them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sluice_tests::wait::until;

use super::traffic::Protocol;
use crate::parts::proxy::load::Responses;
use crate::parts::proxy::proxies::{ADMIT, DENY, Proxy};
use crate::report::row::Row;
use crate::report::verification::Verification;
use crate::support::procfs::Processes;
use crate::support::rounds::interleave_all;

const ROUNDS: u64 = 5;

/// A proxy, or a path of several programs, that is compared with others.
pub(super) struct Contender {
    pub(super) name: &'static str,
    address: SocketAddr,
    processes: Processes,
    running: Vec<Proxy>,
}

impl Contender {
    /// A proxy that counts by itself.
    pub(super) fn alone(name: &'static str, proxy: Proxy) -> Self {
        let processes = proxy.processes.clone();
        Self { name, address: proxy.address, processes, running: vec![proxy] }
    }

    /// A proxy that counts with the help of services.
    pub(super) fn path(name: &'static str, proxy: Proxy, services: Vec<Proxy>, redis: &Processes) -> Self {
        let mut contender = Self::alone(name, proxy);
        contender.processes = contender.processes.and(redis);
        for service in services {
            contender.processes = contender.processes.and(&service.processes);
            contender.running.push(service);
        }
        contender
    }
}

/// A load that all contenders get.
pub(super) struct Comparison<'a> {
    pub(super) contenders: &'a [Contender],
    pub(super) protocol: Protocol,
    /// [`ADMIT`] or [`DENY`].
    pub(super) path: &'static str,
    /// Number of clients. Each sends a request that is not measured, and then its share of those that are.
    pub(super) clients: usize,
    pub(super) requests: usize,
}

/// Responses of one contender in all rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// To the first request of each client.
    first: Responses,
    /// To the measured requests.
    measured: Responses,
}

/// Measurements of one contender in one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// CPU time of a request, in microseconds.
    pub(super) cpu: f64,
    /// Requests in a second.
    pub(super) throughput: f64,
    /// Time within which half of the responses arrived, in milliseconds.
    pub(super) p50: f64,
    /// Time within which 99 % of the responses arrived, in milliseconds.
    pub(super) p99: f64,
}

/// The result of a comparison.
pub(super) struct Compared<'a> {
    contenders: &'a [Contender],
    rounds: Vec<Vec<Round>>,
    verification: Verification,
}

impl<'a> Comparison<'a> {
    /// Runs all rounds and verifies the number of responses with each status.
    pub(super) async fn measure(self) -> anyhow::Result<Compared<'a>> {
        for contender in self.contenders {
            until("the proxy admits a request", async || {
                let answers = self.protocol.send(contender.address, ADMIT, "ready", 1, 1).await;
                answers.ok().filter(|(responses, _)| responses.admitted == 1)
            })
            .await;
        }
        let mut totals = vec![Totals::default(); self.contenders.len()];
        let rounds = interleave_all(ROUNDS, self.contenders.len(), async |index, round| {
            self.run(index, round, &mut totals[index]).await
        })
        .await?;
        Ok(Compared { contenders: self.contenders, rounds, verification: self.verify(&totals) })
    }

    async fn run(&self, index: usize, round: u64, totals: &mut Totals) -> anyhow::Result<Round> {
        let Contender { address, processes, .. } = &self.contenders[index];
        // Clients of this round and contender: contenders may share a Redis.
        let prefix = format!("contender-{index}-round-{round}-client");
        let send = |requests| self.protocol.send(*address, self.path, &prefix, self.clients, requests);
        totals.first += send(self.clients).await?.0;
        let (before, start) = (processes.cpu()?, Instant::now());
        let (responses, mut times) = send(self.requests).await?;
        let (cpu, wall) = (processes.cpu_since(&before)?, start.elapsed());
        totals.measured += responses;
        times.sort_unstable();
        let within = |percent| times.get(times.len() * percent / 100).map_or(f64::NAN, Duration::as_secs_f64);
        let requests = self.requests as f64;
        Ok(Round {
            cpu: cpu.as_secs_f64() * 1e6 / requests,
            throughput: requests / wall.as_secs_f64(),
            p50: within(50) * 1e3,
            p99: within(99) * 1e3,
        })
    }

    fn verify(&self, totals: &[Totals]) -> Verification {
        let mut verification = Verification::default();
        let mut expect = |what: &str, count: fn(&Totals) -> u64, expected: u64| {
            let names = self.contenders.iter().map(|contender| contender.name);
            let found: Vec<_> = names.zip(totals.iter().map(count)).collect();
            verification.expect_all(what, &found, expected);
        };
        let clients = self.clients as u64 * (ROUNDS + 1);
        let requests = self.requests as u64 * (ROUNDS + 1);
        let (admitted, denied) = if self.path == DENY { (0, requests) } else { (requests, 0) };
        expect("first requests with 200", |totals| totals.first.admitted, clients);
        expect("then 200", |totals| totals.measured.admitted, admitted);
        expect("then 429", |totals| totals.measured.denied, denied);
        verification
    }
}

impl Compared<'_> {
    /// Returns a row for a value of the contender `ours`, which is Sluice, and of `peer`.
    pub(super) fn row(
        &self,
        what: String,
        unit: &str,
        value: fn(&Round) -> f64,
        [ours, peer]: [usize; 2],
    ) -> Row {
        let rounds: Vec<_> =
            self.rounds.iter().map(|round| (value(&round[ours]), value(&round[peer]))).collect();
        Row::compared(what, unit, &rounds, self.contenders[peer].name, &self.verification)
    }
}
