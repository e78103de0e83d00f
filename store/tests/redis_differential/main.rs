//! The bytes of the script that ships, run in a real Redis, against the reference definition in Rust: random batches
//! at random instants must be decided alike, and leave the same records with the same end behind. And the proof that
//! this would notice: mutants of the script, all of which must be caught.
//!
//! Only time is fake. A prelude shadows `redis` with a table whose TIME reads two keys; all instants lie in the
//! future, so that Redis itself expires nothing.
//!
//! - [`world`]: what is compared.
//! - [`mutants`]: the script's mutants.
//!
//! `SLUICE_DIFFERENTIAL_CHECKS` sets how many checks are compared, `SLUICE_SEED` repeats a run.

#![allow(missing_docs, clippy::unwrap_used)]

mod mutants;
#[path = "../support/mod.rs"]
mod support;
mod world;

use mutants::MUTANTS;
use rand::Rng;
use redis::{Connection, Value};
use sluice_limiter::Record;
use sluice_store::redis::CHECK_LUA;
use sluice_store::{Counter, LimitSpec};
use support::Redis;
use world::{ALL, Entry, Focus, Stored, World, encode, expires, name};

const PRELUDE: &str = "local real = redis
local redis = {
  pcall = real.pcall,
  call = function(name, ...)
    if name == 'TIME' then return real.call('MGET', 'fake:seconds', 'fake:micros') end
    return real.call(name, ...)
  end,
}
";

/// Compares `checks` checks; what differs first is the error.
fn run(world: &mut World, script: &str, connection: &mut Connection, checks: u64) -> Result<(), String> {
    let script = format!("{PRELUDE}{script}");
    let hash: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection).map_err(|error| error.to_string())?;
    let (mut done, mut batches) = (0, 0);
    while done < checks {
        let mut pipe = redis::pipe();
        if batches % 50 == 0 {
            world.rebuild();
            pipe.cmd("FLUSHALL").ignore();
        }
        batches += 1;
        world.step();
        pipe.mset(&[("fake:seconds", world.now / 1_000_000), ("fake:micros", world.now % 1_000_000)])
            .ignore();
        for _ in 0..world.rng.random_range(0..12) {
            let (name, stored) = world.seed();
            put(&mut pipe, &name, &stored);
            world.stored.insert(name, stored);
        }
        let entries = world.entries();
        done += entries.len() as u64;
        let late = world.rng.random_bool(0.02);
        let millis = world.now / 1000;
        let deadline = millis + world.rng.random_range(0..2) * 1000 - u64::from(late) * 1001;
        let late = deadline < millis;
        let (names, payload, shorts) = request(&entries, deadline);
        pipe.cmd("EVALSHA").arg(&hash).arg(names.len()).arg(&names).arg(payload);
        pipe.cmd("MGET").arg(&names);
        for name in &names {
            pipe.cmd("PEXPIRETIME").arg(name);
        }
        let replies: Vec<Value> = pipe.query(connection).map_err(|error| error.to_string())?;
        let [Value::Array(reply), Value::Array(values), ends @ ..] = &replies[..] else {
            return Err(format!("replies of another shape: {replies:?}"));
        };
        let mut rest = &reply[..];
        if rest.split_off_first() != Some(&Value::Int(world.now as i64)) {
            return Err(format!("the time is not {}: {reply:?}", world.now));
        }
        for (entry, short) in entries.iter().zip(shorts).filter(|_| !late) {
            let before = world.known(entry);
            let mut expected = world.decide(entry);
            // The short answer is given where it can be.
            if short && expected.len() > 1 && matches!(rest.first(), Some(Value::Int(..-2))) {
                expected = shortened(&expected, entry, world.now);
            }
            let got = rest.split_off(..expected.len().min(rest.len())).unwrap_or_default();
            if got != expected {
                let now = world.now;
                return Err(format!(
                    "differs at {now}: {got:?}, expected {expected:?}, of {before:?} by {entry:?}"
                ));
            }
        }
        if !rest.is_empty() {
            return Err(format!("replies too much: {rest:?}"));
        }
        world.forget();
        for ((name, value), end) in names.iter().zip(values).zip(ends) {
            compare(world, name, value, end)?;
        }
    }
    Ok(())
}

/// Whole numbers as MessagePack, all in the long form.
fn pack(numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![0xdd];
    out.extend((numbers.len() as u32).to_be_bytes());
    for n in numbers {
        out.push(0xcf);
        out.extend(n.to_be_bytes());
    }
    out
}

fn put(pipe: &mut redis::Pipeline, name: &str, stored: &Stored) {
    match stored {
        Stored::Records(records) => {
            let end = expires(records).map(|end| ("PXAT", end));
            pipe.cmd("SET").arg(name).arg(encode(records)).arg(end).ignore();
        }
        Stored::Garbage(bytes) => {
            pipe.cmd("SET").arg(name).arg(bytes).ignore();
        }
        Stored::List => {
            pipe.cmd("DEL").arg(name).ignore().cmd("RPUSH").arg(name).arg("x").ignore();
        }
    }
}

/// The numbers of a call as the head of the script describes them, and which entries are in the short form.
fn request(entries: &[Entry], deadline: u64) -> (Vec<String>, Vec<u8>, Vec<bool>) {
    let mut names: Vec<String> = vec![];
    let mut limits: Vec<&LimitSpec> = vec![];
    let (mut asked, mut shorts) = (vec![], vec![]);
    fn index_of<T: PartialEq>(all: &mut Vec<T>, one: T) -> u64 {
        let known = all.iter().position(|other| *other == one);
        let index = known.unwrap_or_else(|| {
            all.push(one);
            all.len() - 1
        });
        index as u64 + 1
    }
    for entry in entries {
        let mut short = false;
        match entry {
            Entry::Check { counters, callers } => {
                let new = match &counters[..] {
                    [one] => one.cost == 1 && *callers == 1 && !names.contains(&name(&one.limit, one.key)),
                    _ => false,
                };
                let plain = |counter: &Counter| {
                    counter.limit.rates.iter().all(|rate| rate.parameters(0, 1).is_none())
                };
                let simple = *callers == 1
                    && counters.iter().all(|one| one.cost == 1 && one.limit.rates.len() == 1 && plain(one));
                short = new && plain(&counters[0]) || simple;
                if new {
                    asked.push(index_of(&mut limits, &counters[0].limit) + 2);
                } else if simple {
                    asked.extend([2, counters.len() as u64]);
                } else {
                    asked.extend([1, counters.len() as u64, *callers]);
                }
                for counter in counters {
                    let index = index_of(&mut names, name(&counter.limit, counter.key));
                    if simple && !new {
                        asked.extend([index, index_of(&mut limits, &counter.limit)]);
                    } else if !new {
                        asked.extend([index, counter.cost, index_of(&mut limits, &counter.limit)]);
                    }
                    for rate in &counter.limit.rates {
                        asked.extend(rate.parameters(counter.key.0, counter.cost).into_iter().flatten());
                    }
                }
            }
            Entry::Settle(settlement) => {
                let index = index_of(&mut names, name(&settlement.limit, settlement.key));
                let amount = settlement.delta.unsigned_abs();
                let (more, less) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
                let limit = index_of(&mut limits, &settlement.limit);
                asked.extend([0, index, settlement.charged, more, less, limit]);
                for rate in &settlement.limit.rates {
                    asked.extend(rate.settlement_parameters(settlement.key.0, amount));
                }
            }
        }
        shorts.push(short);
    }
    let mut numbers = vec![deadline, limits.len() as u64];
    for limit in limits {
        numbers.push(limit.rates.len() as u64);
        for rate in &limit.rates {
            let flag = u64::from(rate.parameters(0, 1).is_some());
            numbers.extend([rate.requests.get(), rate.tag().get() + flag]);
        }
    }
    numbers.extend(asked);
    (names, pack(&numbers), shorts)
}

/// What the script answers in the short form instead.
fn shortened(values: &[Value], entry: &Entry, now: u64) -> Vec<Value> {
    let ([Value::Int(admitted), states @ ..], Entry::Check { counters, .. }) = (values, entry) else {
        return values.to_vec();
    };
    let mut short = vec![];
    let rates = counters.iter().flat_map(|counter| &counter.limit.rates);
    for (rate, state) in rates.zip(states.chunks(3)) {
        let [Value::Int(slot), Value::Int(current), previous] = state else { panic!("{state:?}") };
        let ahead = *slot != (now / 1000 / rate.tag().slot_millis()) as i64;
        let code = current * 2 + i64::from(ahead);
        short.push(Value::Int(if short.is_empty() { -3 - code * 2 - admitted } else { code }));
        if rate.tag().previous_slots() > 0 {
            short.push(previous.clone());
        }
        if ahead {
            short.push(Value::Int(*slot));
        }
    }
    short
}

fn compare(world: &World, name: &str, value: &Value, end: &Value) -> Result<(), String> {
    let same = match (world.stored.get(name), value) {
        (None | Some(Stored::List), Value::Nil) => true,
        (Some(Stored::Garbage(bytes)), Value::BulkString(found)) => bytes == found,
        (Some(Stored::Records(records)), Value::BulkString(found)) => {
            Record::decode_all(found).is_ok_and(|found| found == *records)
                && *found == encode(records)
                && expires(records).is_none_or(|expires| *end == Value::Int(expires))
        }
        _ => false,
    };
    if same {
        return Ok(());
    }
    let expected = match world.stored.get(name) {
        Some(Stored::Records(records)) => format!("{records:?}"),
        Some(Stored::Garbage(_)) => "garbage".into(),
        Some(Stored::List) => "a list".into(),
        None => "nothing".into(),
    };
    let found = match value {
        Value::BulkString(bytes) => format!("{bytes:?} {:?}", Record::decode_all(bytes)),
        other => format!("{other:?}"),
    };
    Err(format!("{name} at {}: Redis holds {found} until {end:?}, expected {expected}", world.now))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a whole number"))
}

fn compare_all(focus: Focus) {
    let redis = Redis::start(&[]);
    let seed = number("SLUICE_SEED").unwrap_or_else(rand::random);
    let checks = number("SLUICE_DIFFERENTIAL_CHECKS").unwrap_or(30_000);
    let mut world = World::new(seed, focus);
    if let Err(difference) = run(&mut world, CHECK_LUA, &mut redis.connection(), checks) {
        panic!("SLUICE_SEED={seed} {focus:?}: {difference}");
    }
    let (admitted, denied) = (world.admitted, world.denied);
    println!(
        "SLUICE_SEED={seed} {focus:?}: {checks} checks, {admitted} admitted, {denied} denied, 0 differences"
    );
    assert!(admitted > checks / 50 && denied > checks / 50, "both outcomes were compared");
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
    two_windows_are_decided_as_the_reference_does: TwoWindows,
    sub_windows_are_decided_as_the_reference_does: SubWindows,
    guaranteed_windows_are_decided_as_the_reference_does: Guaranteed,
    fixed_windows_are_decided_as_the_reference_does: FixedClock,
    fixed_windows_from_the_first_request_are_decided_as_the_reference_does: FixedFirstRequest,
    spread_windows_are_decided_as_the_reference_does: FixedSpread,
    logs_are_decided_as_the_reference_does: Log,
    token_buckets_are_decided_as_the_reference_does: TokenBucket,
    gcra_is_decided_as_the_reference_does: Gcra,
    leaky_buckets_are_decided_as_the_reference_does: LeakyBucket,
    warm_ups_are_decided_as_the_reference_does: WarmUp,
    everyday_checks_are_decided_as_the_reference_does: Everyday,
    soft_limits_are_decided_as_the_reference_does: Soft,
    concurrency_is_decided_as_the_reference_does: Concurrency,
}

#[test]
fn every_mutant_of_the_script_is_caught() {
    let redis = Redis::start(&[]);
    let mut survivors = vec![];
    for &(likely, what, original, mutation) in MUTANTS {
        let times = CHECK_LUA.matches(original).count();
        assert_eq!(times, 1, "how often the script contains {original:?}: {what}");
        let mutant = CHECK_LUA.replace(original, mutation);
        let loaded: Result<String, _> =
            redis::cmd("SCRIPT").arg("LOAD").arg(&mutant).query(&mut redis.connection());
        assert!(loaded.is_ok(), "no Lua any more: {what}: {loaded:?}");
        let others = ALL.into_iter().filter(|&focus| focus != likely).map(|focus| (focus, 20_000));
        let caught = std::iter::once((likely, 100_000)).chain(others).find_map(|(focus, checks)| {
            let mut world = World::new(1, focus);
            let result = run(&mut world, &mutant, &mut redis.connection(), checks);
            result.err().map(|difference| (focus, world.admitted + world.denied, difference))
        });
        match caught {
            None => survivors.push(what),
            Some((focus, decided, difference)) => {
                let difference = difference.replace('\n', " ");
                println!("caught by {focus:?} after {decided} callers: {what}: {difference:.100}");
            }
        }
    }
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
    println!("{} mutants, all caught", MUTANTS.len());
}
