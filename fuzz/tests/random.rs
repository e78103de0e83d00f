//! Every check with random changes of its seeds, for a few seconds. SLUICE_FUZZ_SECONDS sets the time of each, and
//! SLUICE_SEED repeats a run.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use sluice_fuzz::mutate::mutate;
use sluice_fuzz::{TARGETS, Target};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("an integer"))
}

/// Prints the input of a check that panics.
struct Input<'a> {
    seed: u64,
    name: &'a str,
    bytes: &'a [u8],
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SLUICE_SEED={} {}: {:?}", self.seed, self.name, self.bytes.escape_ascii().to_string());
        }
    }
}

fn run(name: &str) {
    let target: &Target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    let seed = number("SLUICE_SEED").unwrap_or_else(rand::random);
    let time = Duration::from_secs(number("SLUICE_FUZZ_SECONDS").unwrap_or(5));
    let mut rng = StdRng::seed_from_u64(seed);
    // Inputs that were changed already are changed again, so that changes add up.
    let mut pool: Vec<Vec<u8>> = target.seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    let (began, mut inputs) = (Instant::now(), 0_u64);
    while began.elapsed() < time || inputs < 1_000 {
        let mut bytes = pool.choose(&mut rng).cloned().unwrap_or_default();
        if inputs >= pool.len() as u64 {
            mutate(&mut bytes, target.words, &mut rng);
        }
        let input = Input { seed, name, bytes: &bytes };
        (target.check)(input.bytes);
        drop(input);
        inputs += 1;
        if rng.random_bool(0.01) {
            let keep = target.seeds.len();
            if pool.len() < keep + 200 {
                pool.push(bytes);
            } else {
                let at = rng.random_range(keep..pool.len());
                pool[at] = bytes;
            }
        }
    }
    println!("SLUICE_SEED={seed} {name}: {inputs} inputs");
}

macro_rules! targets {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name));
        }
    )*

        #[test]
        fn every_target_has_a_test() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! { cookie forwarded path stream policy record request checks descriptors heads ratelimit }
