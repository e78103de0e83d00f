//! The scripts called as functions (FCALL), as in a managed store, against the same scripts called by their hash
//! (EVALSHA), as in a shared one. Both count in the same keys.

use std::sync::Arc;
use std::time::Duration;

use sluice_store::LimitSpec;

use super::load::{CALLERS, CHECKS, Load, Round, Target, Testbed, expect_all_admitted, values};
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{PERIOD, UNREACHABLE, gcra_limit, limit, limit_of_periods};

const ROUNDS: u64 = 5;
const CLIENTS: u64 = 100_000;
/// Number of checks of a single caller and of all callers in a round.
const SINGLE_CHECKS: u64 = 4_000;
const MANY_CHECKS: u64 = 51_200;
/// A limit that denies most checks, to verify that both sides enforce it.
const LOW_LIMIT: u32 = 1_000;
const TARGETS: [Target; 2] = [Target::Functions, Target::Store];
const PEER: &str = "the same script, EVALSHA";

/// Measures each kind of script with one caller and with many.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let testbed = Testbed::start(cores).await?;
    let denials = verify_denials(&testbed).await?;
    let hour = Duration::from_secs(3_600);
    let limits = [
        ("one rate", limit("bench/policy/fcall-one", UNREACHABLE)?),
        (
            "three rates",
            limit_of_periods("bench/policy/fcall-three", UNREACHABLE, &[PERIOD, hour, 24 * PERIOD])?,
        ),
        ("GCRA", gcra_limit("bench/policy/fcall-gcra", UNREACHABLE)?),
    ];
    let mut rows = Vec::new();
    for (what, limit) in limits {
        for (callers, checks) in [(1, SINGLE_CHECKS), (CALLERS, MANY_CHECKS)] {
            rows.extend(compare(&testbed, what, &limit, callers, checks, denials.clone()).await?);
        }
    }
    Ok(rows)
}

/// Verifies that both sides deny.
async fn verify_denials(testbed: &Testbed) -> anyhow::Result<Verification> {
    let mut admitted = Vec::new();
    for (target, scope) in TARGETS.into_iter().zip(["bench/policy/low-fcall", "bench/policy/low-evalsha"]) {
        let low = Load::new(limit(scope, LOW_LIMIT)?, 1);
        admitted.push(testbed.run(target, &low, 0).await?.admitted);
    }
    let mut verification = Verification::default();
    let what = format!("admitted of {CHECKS} with a limit of {LOW_LIMIT}");
    verification.expect_both(&what, admitted[0], admitted[1], u64::from(LOW_LIMIT));
    Ok(verification)
}

async fn compare(
    testbed: &Testbed,
    what: &str,
    limit: &Arc<LimitSpec>,
    callers: u64,
    checks: u64,
    mut verification: Verification,
) -> anyhow::Result<Vec<Row>> {
    let load = Load::of_callers(limit.clone(), CLIENTS, callers, checks);
    testbed.redis.command(&["CONFIG", "RESETSTAT"]).await?;
    let rounds = testbed.compare(ROUNDS, TARGETS, [&load, &load]).await?;
    expect_all_admitted(&mut verification, &rounds);
    let (fcall, evalsha) = (testbed.redis.calls("fcall").await?, testbed.redis.calls("evalsha").await?);
    // A single caller leaves nothing to batch. The other side's connection is probed while it idles.
    let least = if callers == 1 { (ROUNDS + 1) * checks } else { ROUNDS + 1 };
    verification.expect_both(
        "calls of FCALL and of EVALSHA, at least",
        fcall.min(least),
        evalsha.min(least),
        least,
    );
    verification.note(format!("{fcall} calls of FCALL, {evalsha} of EVALSHA"));
    let clients = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
    let row = |title: &str, unit: &str, values: &[(f64, f64)]| {
        let what = format!("Redis store as functions: {what}, {clients}, {title}");
        Row::compared(what, unit, values, PEER, &verification)
    };
    let cpu = row("CPU of Redis", "us/check", &values(&rounds, Round::redis_micros));
    let time = if callers == 1 {
        row("time of a check", "us", &values(&rounds, |round| round.latency_micros(callers)))
    } else {
        row("throughput", "checks/s", &values(&rounds, Round::throughput))
    };
    Ok(vec![cpu.with_aim(Aim::RatioAtMost(1.1)), time])
}
