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
use sluice_limiter::{MAX_COUNT, Record};
use sluice_store::redis::CHECK_LUA;
use support::Redis;
use world::{Entry, Stored, World, expires, name};

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
        let micros = world.now % 1000 * 1000 + world.rng.random_range(0..1000);
        pipe.mset(&[("fake:seconds", world.now / 1000), ("fake:micros", micros)]).ignore();
        for _ in 0..world.rng.random_range(0..12) {
            let (name, stored) = world.seed();
            put(&mut pipe, &name, &stored);
            world.stored.insert(name, stored);
        }
        let entries = world.entries();
        done += entries.len() as u64;
        let late = world.rng.random_bool(0.02);
        let deadline = world.now + world.rng.random_range(0..2) * 1000 - u64::from(late) * 1001;
        let late = deadline < world.now;
        let (names, payload) = request(&entries, deadline);
        pipe.cmd("EVALSHA").arg(&hash).arg(names.len()).arg(&names).arg(payload);
        pipe.cmd("MGET").arg(&names);
        for name in &names {
            pipe.cmd("PEXPIRETIME").arg(name);
        }
        let replies: Vec<Value> = pipe.query(connection).map_err(|error| error.to_string())?;
        let [Value::Array(reply), Value::Array(values), ends @ ..] = &replies[..] else {
            return Err(format!("replies of another shape: {replies:?}"));
        };
        let got: Vec<i64> = reply.iter().map(|n| if let Value::Int(n) = n { *n } else { i64::MIN }).collect();
        let mut expected = vec![world.now as i64];
        if !late {
            expected.extend(world.decide(&entries));
        }
        if got != expected {
            let at = got.iter().zip(&expected).position(|(a, b)| a != b);
            return Err(format!("replies differ at {at:?} at {}:\n{got:?}\n{expected:?}", world.now));
        }
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
            pipe.cmd("SET").arg(name).arg(raw(records)).arg(end).ignore();
        }
        Stored::Garbage(bytes) => {
            pipe.cmd("SET").arg(name).arg(bytes).ignore();
        }
        Stored::List => {
            pipe.cmd("DEL").arg(name).ignore().cmd("RPUSH").arg(name).arg("x").ignore();
        }
    }
}

/// The bytes of records, counts beyond the maximum included, as damaged values have them.
fn raw(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![];
    for record in records {
        let counts = [record.current, record.previous];
        if counts.iter().all(|&count| count <= MAX_COUNT) {
            record.encode(&mut bytes);
            continue;
        }
        bytes.extend(&(record.tag.get() | 6).to_le_bytes()[..6]);
        for n in [record.slot].iter().chain(&counts[..=usize::from(record.tag.previous_slots() > 0)]) {
            bytes.extend(&n.to_le_bytes()[..6]);
        }
    }
    bytes
}

fn request(entries: &[Entry], deadline: u64) -> (Vec<String>, Vec<u8>) {
    let mut names: Vec<String> = vec![];
    let mut numbers = vec![deadline];
    for Entry { counters, callers } in entries {
        numbers.extend([counters.len() as u64, *callers]);
        for counter in counters {
            let name = name(&counter.limit, counter.key);
            let index = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            numbers.extend([index as u64 + 1, counter.cost, counter.limit.rates.len() as u64]);
            for rate in &counter.limit.rates {
                numbers.extend([rate.requests.get(), rate.tag().get()]);
            }
        }
    }
    (names, pack(&numbers))
}

fn compare(world: &World, name: &str, value: &Value, end: &Value) -> Result<(), String> {
    let same = match (world.stored.get(name), value) {
        (None | Some(Stored::List), Value::Nil) => true,
        (Some(Stored::Garbage(bytes)), Value::BulkString(found)) => bytes == found,
        (Some(Stored::Records(records)), Value::BulkString(found)) => {
            Record::decode_all(found).is_ok_and(|found| found == *records)
                && *found == raw(records)
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

#[test]
fn the_script_decides_as_the_reference_does() {
    let redis = Redis::start(&[]);
    let seed = number("SLUICE_SEED").unwrap_or_else(rand::random);
    let checks = number("SLUICE_DIFFERENTIAL_CHECKS").unwrap_or(100_000);
    let mut world = World::new(seed);
    if let Err(difference) = run(&mut world, CHECK_LUA, &mut redis.connection(), checks) {
        panic!("SLUICE_SEED={seed}: {difference}");
    }
    println!("SLUICE_SEED={seed}: {checks} checks, {} admitted, {} denied", world.admitted, world.denied);
    assert!(world.admitted > checks / 20 && world.denied > checks / 20, "both outcomes were compared");
}

#[test]
fn every_mutant_of_the_script_is_caught() {
    let redis = Redis::start(&[]);
    let mut survivors = vec![];
    for (what, original, mutation) in MUTANTS {
        assert!(CHECK_LUA.contains(original), "the script no longer contains {original:?}: {what}");
        let mutant = CHECK_LUA.replacen(original, mutation, 1);
        let mut world = World::new(1);
        match run(&mut world, &mutant, &mut redis.connection(), 100_000) {
            Ok(()) => survivors.push(what),
            Err(difference) => {
                let decided = world.admitted + world.denied;
                println!("caught after {decided} callers: {what}: {:.120}", difference.replace('\n', " "));
            }
        }
    }
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
