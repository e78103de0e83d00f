//! The Redis store with 256 callers, against MULTI/INCRBY; and a global limit besides the limit of each
//! client, against the latter alone.

use std::time::Duration;

use super::load::{CHECKS, Load, Round, Target, Testbed, expect_all_admitted, values};
use crate::peers::multi_incrby;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{PERIOD, UNREACHABLE, limit, limit_of_periods};

const ROUNDS: u64 = 5;
/// A limit that denies most checks, to verify that both sides enforce it.
const LOW_LIMIT: u32 = 1_000;

/// Two loads to compare, each with its target: Sluice's and the peer's.
struct Comparison<'a> {
    what: &'a str,
    targets: [Target; 2],
    loads: [&'a Load; 2],
    peer_name: &'a str,
    /// Upper bound of the ratio of Redis's CPU time.
    aim: f64,
}

/// Measures all loads.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let testbed = Testbed::start(cores).await?;
    let low = Load::new(limit("bench/policy/few", LOW_LIMIT)?, 1);
    let mut denials = Verification::default();
    let ours = testbed.run(Target::Store, &low, 0).await?;
    let peers = testbed.run(Target::MultiIncrby, &low, 0).await?;
    let what = format!("admitted of {CHECKS} with a limit of {LOW_LIMIT}");
    denials.expect_both(&what, ours.admitted, peers.admitted, u64::from(LOW_LIMIT));

    let hour = Duration::from_secs(3_600);
    let three_rates = limit_of_periods("bench/policy/three", UNREACHABLE, &[PERIOD, hour, 24 * PERIOD])?;
    let mut rows = Vec::new();
    for (what, load, aim) in [
        ("100k keys", Load::new(limit("bench/policy/keys", UNREACHABLE)?, 100_000), 0.75),
        ("one hot key", Load::new(limit("bench/policy/hot", UNREACHABLE)?, 1), 0.12),
        ("three rates, 100k keys", Load::new(three_rates, 100_000), 0.4),
    ] {
        let targets = [Target::Store, Target::MultiIncrby];
        let comparison =
            Comparison { what, targets, loads: [&load, &load], peer_name: multi_incrby::NAME, aim };
        rows.extend(comparison.measure(&testbed, denials.clone()).await?);
    }
    let per_client = Load::new(limit("bench/policy/client", UNREACHABLE)?, 100_000);
    let with_global = Load { global: Some(limit("bench/policy/global", UNREACHABLE)?), ..per_client.clone() };
    let comparison = Comparison {
        what: "a global limit and a limit of each of 100k clients",
        targets: [Target::Store, Target::Store],
        loads: [&with_global, &per_client],
        peer_name: "the limit of each client alone",
        aim: 1.3,
    };
    rows.extend(comparison.measure(&testbed, Verification::default()).await?);
    Ok(rows)
}

impl Comparison<'_> {
    async fn measure(&self, testbed: &Testbed, mut verification: Verification) -> anyhow::Result<Vec<Row>> {
        let rounds = testbed.compare(ROUNDS, self.targets, self.loads).await?;
        expect_all_admitted(&mut verification, &rounds);
        let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
            let what = format!("Redis store: {}, {title}", self.what);
            Row::compared(what, unit, &values(&rounds, value), self.peer_name, &verification)
        };
        Ok(vec![
            row("CPU of Redis", "us/check", Round::redis_micros).with_aim(Aim::RatioAtMost(self.aim)),
            row("CPU of the client", "us/check", Round::client_micros),
            row("throughput", "checks/s", Round::throughput),
        ])
    }
}
