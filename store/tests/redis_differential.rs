//! The shipped scripts, run in a real Redis, against the reference definition in Rust: random batches at
//! random instants must have the same results, and leave the same records with the same expiry. Mutants of
//! the scripts prove that the comparison would notice a difference.
//!
//! Only the time is fake. A prelude shadows `redis` with a table whose TIME reads two keys. All instants lie
//! in the future, so that Redis itself expires nothing.
//!
//! - [`world`]: the random input, and the reference.
//! - [`encoding`]: the scripts' arguments.
//! - [`comparison`]: the comparison.
//! - [`mutants`]: the mutants of the scripts.
//!
//! `SLUICE_DIFFERENTIAL_CHECKS` sets the number of compared checks. `SLUICE_SEED` repeats a run.

mod comparison;
mod encoding;
mod mutants;
mod world;

use comparison::run;
use sluice_store::redis::Script;
use world::{Focus, World};

use crate::support::Redis;

crate::servers::pass_with_other_servers!();

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("an integer"))
}

fn compare_all(focus: Focus) {
    let redis = Redis::start(&[]);
    let seed = number("SLUICE_SEED").unwrap_or_else(rand::random);
    let checks = number("SLUICE_DIFFERENTIAL_CHECKS").unwrap_or(30_000);
    let mut world = World::new(seed, focus);
    let sources = Script::ALL.map(Script::source);
    if let Err(difference) = run(&mut world, sources, &mut redis.connection(), checks) {
        panic!("SLUICE_SEED={seed} {focus:?}: {difference}");
    }
    let (admitted, denied) = (world.admitted, world.denied);
    println!(
        "SLUICE_SEED={seed} {focus:?}: {checks} checks, {admitted} admitted, {denied} denied, 0 differences"
    );
    assert!(
        admitted > checks / 50 && denied > checks / 50,
        "too few admitted or denied checks were compared"
    );
}

macro_rules! the_script_decides_as_the_reference_does {
    ($($name:ident: $focus:ident,)*) => {$(
        #[test]
        fn $name() {
            compare_all(Focus::$focus);
        }
    )*};
}

the_script_decides_as_the_reference_does! {
    two_windows_are_decided_as_the_reference_decides: TwoWindows,
    sub_windows_are_decided_as_the_reference_decides: SubWindows,
    guaranteed_windows_are_decided_as_the_reference_decides: Guaranteed,
    fixed_windows_are_decided_as_the_reference_decides: FixedClock,
    fixed_windows_from_the_first_request_are_decided_as_the_reference_decides: FixedFirstRequest,
    spread_windows_are_decided_as_the_reference_decides: FixedSpread,
    logs_are_decided_as_the_reference_decides: Log,
    token_buckets_are_decided_as_the_reference_decides: TokenBucket,
    gcra_is_decided_as_the_reference_decides: Gcra,
    leaky_buckets_are_decided_as_the_reference_decides: LeakyBucket,
    warm_ups_are_decided_as_the_reference_decides: WarmUp,
    everyday_checks_are_decided_as_the_reference_decides: Everyday,
    soft_limits_are_decided_as_the_reference_decides: Soft,
    blocks_are_decided_as_the_reference_decides: Block,
    concurrency_is_decided_as_the_reference_decides: Concurrency,
    reservations_are_kept_as_the_reference_keeps_them: Reservations,
    shared_counters_are_decided_as_the_reference_decides: Shared,
    plain_checks_are_decided_as_the_reference_decides: Plain,
    runs_of_checks_are_decided_as_the_reference_decides: Runs,
    damaged_values_are_decided_as_the_reference_decides: Damaged,
    huge_numbers_are_decided_as_the_reference_decides: Huge,
    counts_of_any_width_are_decided_as_the_reference_decides: Widths,
    large_values_are_decided_as_the_reference_decides: Large,
    limits_of_few_keys_are_decided_as_the_reference_decides: Keys,
}
