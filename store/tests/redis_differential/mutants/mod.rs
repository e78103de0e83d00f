//! Mutants of the scripts: scripts with one changed token or one dropped statement. The comparison must detect
//! all of them, except for those that are listed.
//!
//! - [`lexer`]: the tokens of a script.
//! - [`generate`]: the mutants.
//! - [`hunt`]: the comparisons of a mutant, until the first difference.
//! - [`equivalent`]: the mutants that may survive because they decide and store the same.
//! - [`not_examined`]: further mutants that survive.

mod equivalent;
mod generate;
mod hunt;
mod lexer;
mod not_examined;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use equivalent::EQUIVALENT;
use generate::{Mutant, mutants, original};
use hunt::{CHECKS_PER_SECTION, Hunter, Outcome, SEED, Section};
use sluice_store::redis::Script;

use crate::comparison::Sources;
use crate::world::ALL;

/// The sections of each focus.
const SECTIONS: usize = 5;
/// One of this many mutants is compared in a usual run.
const USUAL_SHARE: u64 = 3;
/// The number of neighbouring mutants that a server takes at once.
const CHUNK: usize = 16;

/// Calls a function for all numbers below `count` on all cores, and returns its results in order. Each core has
/// a state of its own and takes `chunk` numbers at once.
fn in_parallel<S, R: Send>(
    count: usize,
    chunk: usize,
    start: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, usize) -> R + Sync,
) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut state = start();
                loop {
                    let from = next.fetch_add(chunk, Ordering::Relaxed);
                    for n in from..count.min(from + chunk) {
                        let result = each(&mut state, n);
                        results.lock().unwrap().push((n, result));
                    }
                    if from >= count {
                        break;
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|&(n, _)| n);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns sections of all focuses in turn.
fn sections(sources: Sources<'_>) -> Vec<Section> {
    in_parallel(
        SECTIONS * ALL.len(),
        1,
        || Hunter::new(sources, 0),
        |hunter, n| {
            let (focus, seed) = (ALL[n % ALL.len()], SEED + (n / ALL.len()) as u64);
            hunter
                .record(focus, seed)
                .unwrap_or_else(|difference| panic!("seed {seed} {focus:?}: {difference}"))
        },
    )
}

/// Counts mutants by their description in the lists.
fn counts<'a>(descriptions: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for description in descriptions {
        *counts.entry(description).or_default() += 1;
    }
    counts
}

#[test]
fn the_parts_of_a_script_are_its_source() {
    for script in Script::ALL {
        let parts: String = script.parts().iter().map(|(_, source)| *source).collect();
        assert!(parts == script.source(), "the mutants of {script:?} are not those of the shipped script");
    }
}

#[test]
fn every_mutant_of_the_scripts_is_caught_or_listed() {
    let wanted = std::env::var("SLUICE_MUTANTS").unwrap_or_default();
    let is_thorough = wanted == "all";
    let is_wanted = |mutant: &Mutant| match &wanted[..] {
        "" => mutant.number().is_multiple_of(USUAL_SHARE),
        _ => is_thorough || mutant.id.contains(&wanted),
    };
    let mutants: Vec<_> = Script::ALL.into_iter().flat_map(mutants).collect();
    let is_stale = |entry: &&equivalent::Equivalent| !mutants.iter().any(|mutant| entry.matches(mutant));
    let stale: Vec<_> = EQUIVALENT.iter().filter(is_stale).collect();
    assert!(stale.is_empty(), "no mutant matches {stale:#?}");
    let not_examined = not_examined::all();
    let known = counts(mutants.iter().map(|mutant| &mutant.description[..]));
    for (description, count) in &not_examined {
        assert!(known.get(&description[..]) >= Some(count), "no such mutants:\n{description}");
    }

    let mutants: Vec<_> = mutants.into_iter().filter(is_wanted).collect();
    let originals = Script::ALL.map(original);
    let sources = originals.each_ref().map(|source| &source[..]);
    let sections = sections(sources);
    let checks = sections.len() as u64 * CHECKS_PER_SECTION;
    println!("{} mutants, {checks} checks", mutants.len());
    let outcomes = in_parallel(
        mutants.len(),
        CHUNK,
        || Hunter::new(sources, sections.len()),
        |hunter, n| {
            let mutant = &mutants[n];
            let reason = EQUIVALENT.iter().find(|entry| entry.matches(mutant)).map(|entry| entry.reason);
            let is_listed = reason.is_some() || not_examined.contains_key(&mutant.description);
            let outcome = hunter.hunt(mutant, &sections, is_listed && !is_thorough);
            println!("{outcome}: {} {}", mutant.id, reason.unwrap_or_default());
            (reason.is_some(), outcome)
        },
    );

    let both = || mutants.iter().zip(&outcomes);
    let survived = |outcome: &Outcome| matches!(outcome, Outcome::Survived);
    let equivalent = both().filter(|(_, (is_equivalent, _))| *is_equivalent);
    let caught: Vec<_> = equivalent.clone().filter(|(_, (_, outcome))| !survived(outcome)).collect();
    let others = both().filter(|(_, (is_equivalent, _))| !is_equivalent);
    let survivors = counts(
        others
            .clone()
            .filter(|(_, (_, outcome))| survived(outcome))
            .map(|(mutant, _)| &mutant.description[..]),
    );
    let compared = counts(others.map(|(mutant, _)| &mutant.description[..]));
    let mut wrong = String::new();
    for (description, count) in compared {
        let (found, listed) = (
            survivors.get(description).copied().unwrap_or_default(),
            not_examined.get(description).copied().unwrap_or_default(),
        );
        if found != listed {
            wrong += &format!("{found} of {count} survive, {listed} are listed:\n{description}");
        }
    }
    println!(
        "{} mutants: {} caught, {} equivalent, {} not examined, {} not valid",
        mutants.len(),
        both().filter(|(_, (_, outcome))| matches!(outcome, Outcome::Caught(..))).count(),
        equivalent.count(),
        survivors.values().sum::<usize>(),
        both().filter(|(_, (_, outcome))| matches!(outcome, Outcome::Invalid)).count(),
    );
    let caught: Vec<_> = caught.into_iter().map(|(mutant, _)| &mutant.id[..]).collect();
    assert!(caught.is_empty(), "listed as equivalent, but caught or not valid:\n{}", caught.join("\n"));
    assert!(wrong.is_empty(), "mutants are caught or survive, unlike the list says:\n{wrong}");
}
