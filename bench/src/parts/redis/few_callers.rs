//! A few callers on one connection, as most sidecars have: little or nothing to batch. 100k keys, against
//! MULTI/INCRBY.

use super::load::{Load, Round, Target, Testbed, expect_all_admitted, values};
use crate::peers::multi_incrby;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, limit};

const ROUNDS: u64 = 7;
const CALLERS: [u64; 5] = [1, 2, 4, 8, 16];
const CLIENTS: u64 = 100_000;
/// Number of checks of all callers together.
const CHECKS: u64 = 8_000;

/// Measures one caller, two, and so on.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let testbed = Testbed::start(cores).await?;
    let limit = limit("bench/policy/few-callers", UNREACHABLE)?;
    let mut rows = Vec::new();
    for callers in CALLERS {
        let load = Load::of_callers(limit.clone(), CLIENTS, callers, CHECKS);
        let targets = [Target::Store, Target::MultiIncrby];
        let rounds = testbed.compare(ROUNDS, targets, [&load, &load]).await?;
        let mut verification = Verification::default();
        expect_all_admitted(&mut verification, &rounds);
        let values = values(&rounds, Round::redis_micros);
        let what = format!("Redis store: {callers} callers of one connection, CPU of Redis");
        rows.push(
            Row::compared(what, "us/check", &values, multi_incrby::NAME, &verification)
                .with_aim(Aim::RatioAtMost(1.25)),
        );
    }
    Ok(rows)
}
