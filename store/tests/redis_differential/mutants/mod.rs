//! Mutants of the scripts: scripts with one changed token or one dropped statement. The comparison must detect
//! all of them, except for those that are listed.
//!
//! - [`lexer`]: the tokens of a script.
//! - [`generate`]: the mutants.
//! - [`hunt`]: the comparisons of a mutant, until the first difference.
//! - [`equivalent`]: the mutants that may survive because they decide and store the same.

mod equivalent;
mod generate;
mod hunt;
mod lexer;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use generate::{mutants, original};
use hunt::{Hunter, Outcome, Section};
use sluice_store::redis::Script;

use super::world::{ALL, Focus};

/// The sections of a focus.
const SECTIONS: u64 = 24;
/// The sections of a focus with decisions that random input seldom reaches.
const MORE_SECTIONS: u64 = 48;
/// The sections of a focus in which a count must meet the edge of a width.
const MOST_SECTIONS: u64 = 144;
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
fn sections() -> Vec<Section> {
    let of_focus = |focus| match focus {
        Focus::Runs
        | Focus::WarmUp
        | Focus::TokenBucket
        | Focus::Gcra
        | Focus::LeakyBucket
        | Focus::Log
        | Focus::Block
        | Focus::Concurrency
        | Focus::Keys => MORE_SECTIONS,
        Focus::Widths => MOST_SECTIONS,
        _ => SECTIONS,
    };
    let numbers = (0..MOST_SECTIONS).flat_map(|number| ALL.map(|focus| (focus, number)));
    let numbers = numbers.filter(|&(focus, number)| number < of_focus(focus));
    numbers.map(|(focus, number)| Section::new(focus, number)).collect()
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
    let mutants: Vec<_> = Script::ALL.into_iter().flat_map(mutants).collect();
    let stale: Vec<_> =
        equivalent::all().filter(|entry| !mutants.iter().any(|mutant| entry.matches(mutant))).collect();
    assert!(stale.is_empty(), "no mutant matches {stale:#?}");
    let originals = Script::ALL.map(original);
    let sources = originals.each_ref().map(|source| &source[..]);
    let sections = sections();
    let outcomes = in_parallel(
        mutants.len(),
        CHUNK,
        || Hunter::new(sources, sections.len()),
        |hunter, n| {
            let mutant = &mutants[n];
            let reason = equivalent::all().find(|entry| entry.matches(mutant)).map(|entry| entry.reason);
            let outcome = hunter.hunt(mutant, &sections, reason.is_some());
            println!("{outcome}: {} {}", mutant.id, reason.unwrap_or_default());
            (reason.is_some(), outcome)
        },
    );

    let (mut caught, mut equivalent, mut wrong) = (0, 0, vec![]);
    for (mutant, (is_equivalent, outcome)) in mutants.iter().zip(&outcomes) {
        match (is_equivalent, outcome) {
            (true, Outcome::Survived) => equivalent += 1,
            (false, Outcome::Caught(..)) => caught += 1,
            (true, _) => wrong.push(format!("listed as equivalent, but {outcome}: {}", mutant.id)),
            (false, _) => wrong.push(format!("{outcome}: {}", mutant.id)),
        }
    }
    let recorded = sections.iter().filter(|section| section.is_recorded()).count();
    println!(
        "{} mutants: {caught} caught, {equivalent} equivalent, {recorded} of {} sections needed",
        mutants.len(),
        sections.len()
    );
    assert!(wrong.is_empty(), "{} mutants are not as they should be:\n{}", wrong.len(), wrong.join("\n"));
}
