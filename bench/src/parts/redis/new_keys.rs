//! A flood of checks of new keys: with the registry of keys against the same limit without a maximum, and beyond the
//! maximum, where the overflow counter decides, against MULTI/INCRBY. And known keys of a limit with a maximum, against
//! the same limit without one.

use super::load::{Load, Round, Target, Testbed, expect_all_admitted, values};
use crate::peers::multi_incrby;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, limit, limit_of_keys};

const ROUNDS: u64 = 7;
/// More keys than a part sends.
const MANY: u64 = 1_000_000_000;
/// Keys that the warm-up round uses up.
const FEW: u64 = 10_000;

/// Measures floods with one caller and with many.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let counted = limit_of_keys("bench/policy/counted", UNREACHABLE, MANY)?;
    let full = limit_of_keys("bench/policy/full", UNREACHABLE, FEW)?;
    let uncounted = limit("bench/policy/uncounted", UNREACHABLE)?;
    let new = |limit: &std::sync::Arc<_>, callers, checks| Load {
        new_clients: true,
        ..Load::of_callers(std::sync::Arc::clone(limit), 1, callers, checks)
    };
    for (what, callers, checks) in [("256 callers", 256, 51_200), ("1 caller", 1, 8_000)] {
        for (title, ours, peers, target, peer_name, aim) in [
            ("new keys", &counted, &uncounted, Target::Store, "without maxKeys", 1.6),
            ("new keys", &counted, &uncounted, Target::MultiIncrby, multi_incrby::NAME, 2.0),
            ("new keys beyond maxKeys", &full, &uncounted, Target::MultiIncrby, multi_incrby::NAME, 3.0),
        ] {
            let testbed = Testbed::start(cores).await?;
            let loads = [new(ours, callers, checks), new(peers, callers, checks)];
            let title = format!("Redis store: {title}, {what}, CPU of Redis");
            rows.push(compare(&testbed, &title, [Target::Store, target], &loads, peer_name, aim).await?);
        }
    }
    let testbed = Testbed::start(cores).await?;
    // Few enough for the warm-up to make nearly all of them known.
    let loads = [Load::new(counted, 20_000), Load::new(uncounted, 20_000)];
    let title = "Redis store: 20k known keys with maxKeys, CPU of Redis";
    rows.push(compare(&testbed, title, [Target::Store; 2], &loads, "without maxKeys", 1.05).await?);
    Ok(rows)
}

async fn compare(
    testbed: &Testbed,
    title: &str,
    targets: [Target; 2],
    loads: &[Load; 2],
    peer_name: &str,
    aim: f64,
) -> anyhow::Result<Row> {
    let rounds = testbed.compare(ROUNDS, targets, [&loads[0], &loads[1]]).await?;
    let mut verification = Verification::default();
    expect_all_admitted(&mut verification, &rounds);
    let values = values(&rounds, Round::redis_micros);
    Ok(Row::compared(title, "us/check", &values, peer_name, &verification).with_aim(Aim::RatioAtMost(aim)))
}
