//! How many bytes a key takes in memory: the resident memory of a process that does nothing else, before and after two
//! million keys; and whether it stays so while keys come and go.

use std::num::NonZeroU32;

use anyhow::{Context as _, bail};
use governor::{Quota, RateLimiter};
use sluice_store::{Clock, KeyHash, MemoryStore};

use crate::child::{Child, serve};
use crate::keys::{MANY, PERIOD, counter, key, limit};
use crate::procfs::Processes;
use crate::row::{Aim, Checks, Row, Sample};

const KEYS: u64 = 2_000_000;
/// How often the keys that live are replaced by new ones.
const CHURN: u64 = 3;
/// Of `limitador`, which takes its time.
const FEWER: u64 = 500_000;

/// Measures all.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    // It takes its time, which does not matter here, while ours is filled.
    let mut limitador = Child::limitador(&["fill"])?.ready()?;
    let limitador_empty = own(&limitador)?;
    limitador.say(&FEWER.to_string())?;

    let mut ours = Child::role(&["fill", "sluice"])?.ready()?;
    let empty = own(&ours)?;
    let filled = each(fill(&mut ours, KEYS)?, empty, KEYS);
    let mut checks = Checks::default();
    checks.one("keys held", ours.ask("keys")?.parse()?, KEYS);
    let mut later = Vec::new();
    for _ in 0..CHURN {
        ours.ask("period")?;
        later.push(each(fill(&mut ours, KEYS)?, empty, KEYS));
    }
    drop(ours);
    let mut steady = Checks::default();
    steady.note(format!("{CHURN} times {KEYS} new keys, each time after what was before had expired"));

    let mut governor = Child::role(&["fill", "governor"])?.ready()?;
    let empty = own(&governor)?;
    let governor = each(fill(&mut governor, KEYS)?, empty, KEYS);
    limitador.answer()?;
    let limitador = each(own(&limitador)?, limitador_empty, FEWER);
    let row = |name: &str, peer: f64| Row::compared(WHAT, "bytes/key", &[(filled, peer)], name, &checks);
    let churned = Sample::of(later.into_iter());
    let churned = Row::sampled("memory store: resident memory after churn", "bytes/key", churned, &steady);
    Ok(vec![
        row("governor (DashMap, foldhash)", governor).aim(Aim::AtMost(48.0)),
        row("limitador, its storage, 500k keys", limitador),
        churned.aim(Aim::AtMost(48.0)),
    ])
}

fn each(now: u64, before: u64, keys: u64) -> f64 {
    now.saturating_sub(before) as f64 / keys as f64
}

const WHAT: &str = "memory store: resident memory of 2M keys";

fn own(child: &Child) -> anyhow::Result<u64> {
    Ok(Processes::of([child.id()]).memory()?.own)
}

fn fill(child: &mut Child, keys: u64) -> anyhow::Result<u64> {
    child.ask(&keys.to_string())?;
    own(child)
}

/// A process that holds keys: a number makes as many new ones, `keys` tells how many are held, `period` lets so much
/// time go by that all there is has expired.
pub(crate) fn role(who: &str) -> anyhow::Result<()> {
    let mut made = 0;
    let mut next = |more: u64| {
        made += more;
        (made - more..made).map(key)
    };
    match who {
        "sluice" => {
            let clock = Clock::manual(1 << 40);
            let store = MemoryStore::new(2 * KEYS as usize, clock.clone());
            let limit = limit("bench/policy/limit", MANY)?;
            let mut counter = counter(&limit, 0);
            serve(|line| {
                match line {
                    "keys" => return Ok(store.keys().to_string()),
                    "period" => clock.advance(2 * PERIOD.as_millis() as u64),
                    number => next(number.parse()?).for_each(|key| {
                        counter.key = KeyHash(key);
                        let _ = store.check(std::slice::from_ref(&counter));
                    }),
                }
                Ok("done".to_owned())
            })
        }
        "governor" => {
            let number = NonZeroU32::new(MANY as u32).context("a rate of nothing")?;
            let quota = Quota::with_period(PERIOD / MANY as u32).context("a rate too fast")?;
            let hasher = foldhash::fast::RandomState::default();
            let governor = RateLimiter::dashmap_with_hasher(quota.allow_burst(number), hasher);
            serve(|line| {
                next(line.parse()?).for_each(|key| {
                    let _ = governor.check_key(&key);
                });
                Ok("done".to_owned())
            })
        }
        _ => bail!("sluice or governor is expected"),
    }
}
