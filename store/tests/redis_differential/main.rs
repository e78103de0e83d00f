//! The shipped scripts, run in a real Redis, against the reference definition in Rust: random batches at
//! random instants must have the same results, and leave the same records with the same expiry. Mutants of
//! the script prove that the comparison would notice a difference: every one of them must be caught.
//!
//! Only the time is fake. A prelude shadows `redis` with a table whose TIME reads two keys. All instants lie
//! in the future, so that Redis itself expires nothing.
//!
//! - [`world`]: the random input, and the reference.
//! - [`encoding`]: the scripts' arguments.
//! - [`comparison`]: the comparison.
//! - [`mutants`]: the mutants of the script.
//!
//! `SLUICE_DIFFERENTIAL_CHECKS` sets the number of compared checks. `SLUICE_SEED` repeats a run.
//! `SLUICE_MUTANTS` selects the mutants whose description contains it.

#![allow(missing_docs, clippy::unwrap_used)]

mod comparison;
mod encoding;
mod mutants;
#[path = "../support/mod.rs"]
mod support;
mod world;

use comparison::run;
use mutants::MUTANTS;
use sluice_store::redis::Script;
use support::Redis;
use world::{ALL, Focus, World};

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
    concurrency_is_decided_as_the_reference_decides: Concurrency,
}

#[test]
fn every_mutant_of_the_script_is_caught() {
    let redis = Redis::start(&[]);
    let mut survivors = vec![];
    let unindent = |text: &str| text.split('\n').map(str::trim_start).collect::<Vec<_>>().join("\n");
    let script = unindent(Script::General.source());
    let wanted = std::env::var("SLUICE_MUTANTS").unwrap_or_default();
    for &(likely, description, original, mutation) in
        MUTANTS.iter().filter(|mutant| mutant.1.contains(&wanted))
    {
        let original = unindent(original);
        let times = script.matches(&original).count();
        assert_eq!(
            times, 1,
            "the script must contain the original exactly once: {original:?}: {description}"
        );
        let mutant = script.replace(&original, mutation);
        let loaded: Result<String, _> =
            redis::cmd("SCRIPT").arg("LOAD").arg(&mutant).query(&mut redis.connection());
        assert!(loaded.is_ok(), "the mutant is not valid Lua: {description}: {loaded:?}");
        let others = ALL.into_iter().filter(|&focus| focus != likely).map(|focus| (focus, 20_000));
        let caught = std::iter::once((likely, 250_000)).chain(others).find_map(|(focus, checks)| {
            let mut world = World::new(1, focus);
            let [plain, runs, _] = Script::ALL.map(Script::source);
            let result = run(&mut world, [plain, runs, &mutant], &mut redis.connection(), checks);
            result.err().map(|difference| (focus, world.admitted + world.denied, difference))
        });
        match caught {
            None => {
                println!("not caught: {description}");
                survivors.push(description);
            }
            Some((focus, decided, difference)) => {
                let difference = difference.replace('\n', " ");
                println!("caught by {focus:?} after {decided} callers: {description}: {difference:.100}");
            }
        }
    }
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
    println!("{} mutants, all caught", MUTANTS.len());
}
