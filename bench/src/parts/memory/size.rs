//! Bytes a key in memory: the resident memory of a child process before and after two million keys. Then all
//! keys expire and are replaced by new ones, several times, which must not take more.

use super::fill::KEYS;
use crate::peers::limitador;
use crate::report::row::{Aim, Row};
use crate::report::sample::Sample;
use crate::report::verification::Verification;
use crate::support::child::Child;
use crate::support::procfs::Processes;

/// Number of times that all keys are replaced.
const REPLACEMENTS: u64 = 3;
/// Number of keys in limitador, which is slow to fill.
const LIMITADOR_KEYS: u64 = 500_000;
const WHAT: &str = "memory store: resident memory of 2M keys";

/// Measures the store and limitador.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    // limitador fills while the store is measured: time does not matter here.
    let mut limitador = limitador::start_empty()?.wait_until_ready()?;
    let limitador_empty = private_memory(&limitador)?;
    limitador.send(&LIMITADOR_KEYS.to_string())?;

    let mut store = Child::start_role(&["fill"])?.wait_until_ready()?;
    let empty = private_memory(&store)?;
    let filled = bytes_per_key(fill(&mut store)?, empty, KEYS);
    let mut verification = Verification::default();
    verification.expect("keys held", store.request("keys")?.parse()?, KEYS);
    let mut replaced = Vec::new();
    for _ in 0..REPLACEMENTS {
        store.request("expire")?;
        replaced.push(bytes_per_key(fill(&mut store)?, empty, KEYS));
    }
    drop(store);
    let mut replacements = Verification::default();
    replacements
        .note(format!("{REPLACEMENTS} times {KEYS} new keys, each time after all others had expired"));

    limitador.receive()?;
    let limitador = bytes_per_key(private_memory(&limitador)?, limitador_empty, LIMITADOR_KEYS);
    let row =
        |name: &str, peer: f64| Row::compared(WHAT, "bytes/key", &[(filled, peer)], name, &verification);
    let replaced = Sample::of(replaced.into_iter());
    let what = "memory store: resident memory after replacing all keys";
    Ok(vec![
        row("limitador, its storage, 500k keys", limitador).with_aim(Aim::AtMost(260.0)),
        Row::sampled(what, "bytes/key", replaced, &replacements).with_aim(Aim::AtMost(260.0)),
    ])
}

fn bytes_per_key(now: u64, before: u64, keys: u64) -> f64 {
    now.saturating_sub(before) as f64 / keys as f64
}

fn private_memory(child: &Child) -> anyhow::Result<u64> {
    Ok(Processes::of(child.id()).memory()?.private)
}

/// Creates [`KEYS`] new keys and returns the memory after it.
fn fill(child: &mut Child) -> anyhow::Result<u64> {
    child.request(&KEYS.to_string())?;
    private_memory(child)
}
