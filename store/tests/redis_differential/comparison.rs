//! The comparison: random batches are sent to the script and to the reference, and their results and stored
//! values compared.

use rand::Rng;
use redis::{Connection, Value};
use sluice_limiter::Record;

use crate::encoding::{Arguments, OrderedEntry, encode_batch};
use crate::run_result::{States, compare_run_result};
use crate::world::{BatchEntry, Stored, World, encode, expires, name};

/// Shadows `redis` with a table whose TIME reads two keys.
const PRELUDE: &str = "local real = redis
local redis = {
  pcall = real.pcall,
  call = function(name, ...)
    if name == 'TIME' then return real.call('MGET', 'fake:seconds', 'fake:micros') end
    return real.call(name, ...)
  end,
}
";

/// Compares this number of checks. The first difference is the error.
pub(crate) fn run(
    world: &mut World,
    script: &str,
    connection: &mut Connection,
    checks: u64,
) -> Result<(), String> {
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
        let mut seeds = world.crowd();
        for _ in 0..world.rng.random_range(0..12) {
            seeds.push(world.seed());
        }
        for (name, stored) in seeds {
            put(&mut pipe, &name, &stored);
            world.stored.insert(name, stored);
        }
        let entries = world.entries();
        done += entries.len() as u64;
        let late = world.rng.random_bool(0.02);
        let millis = world.now / 1000;
        let deadline = millis + world.rng.random_range(0..2) * 1000 - u64::from(late) * 1001;
        let late = deadline < millis;
        let Arguments { names, payload, order } = encode_batch(&entries, deadline);
        pipe.cmd("EVALSHA").arg(&hash).arg(names.len()).arg(&names).arg(payload);
        pipe.cmd("MGET").arg(&names);
        for name in &names {
            pipe.cmd("PEXPIRETIME").arg(name);
        }
        let replies: Vec<Value> = pipe.query(connection).map_err(|error| error.to_string())?;
        let [Value::Array(reply), Value::Array(values), ends @ ..] = &replies[..] else {
            return Err(format!("replies of another form: {replies:?}"));
        };
        let mut rest = &reply[..];
        if rest.split_off_first() != Some(&Value::Int(world.now as i64)) {
            return Err(format!("the time is not {}: {reply:?}", world.now));
        }
        let mut shared: Option<States> = Some(vec![]);
        for OrderedEntry { index, run } in order.into_iter().filter(|_| !late) {
            let entry = &entries[index];
            let before = world.records_of(entry);
            let differs = |what: String, now: u64| {
                Err(format!("differs at {now}: {what}, with {before:?} stored, by {entry:?}"))
            };
            if let (Some((own, first)), BatchEntry::Check { counters, .. }) = (run, entry) {
                if first && counters.len() > 1 {
                    let others = counters.iter().enumerate().filter(|&(at, _)| at != own);
                    let others: Vec<_> = others.map(|(_, counter)| counter.clone()).collect();
                    shared = match rest.first() {
                        // All results of the run have the full form.
                        Some(Value::Int(-1)) => {
                            rest = &rest[1..];
                            None
                        }
                        _ => {
                            let got = rest.split_off(..3 * others.len()).unwrap_or_default();
                            let states = world.states_of(&others);
                            if got != states.concat().into_iter().map(Value::Int).collect::<Vec<_>>() {
                                return differs(
                                    format!("{got:?}, expected {states:?} of the shared counters"),
                                    world.now,
                                );
                            }
                            Some(states)
                        }
                    };
                } else if first {
                    shared = Some(vec![]);
                }
                let named = name(&counters[own].limit, counters[own].key);
                // After a denial, the script does not check whether a missing value is one of another type.
                let decided = !matches!(rest.first(), Some(Value::Int(-2..=-1)));
                let unseen = if decided && matches!(world.stored.get(&named), Some(Stored::List)) {
                    world.stored.remove(&named)
                } else {
                    None
                };
                let mut expected = world.decide(entry);
                if unseen.is_some() && expected[0] != Value::Int(0) {
                    return differs("a list was charged".into(), world.now);
                }
                world.stored.extend(unseen.map(|list| (named.clone(), list)));
                // The script reads the own counter first.
                if let ([Value::Int(..0)], Some(code)) = (&expected[..], world.broken(&named)) {
                    expected = vec![Value::Int(code)];
                }
                if let Err(what) = compare_run_result(&mut rest, &expected, counters, own, &mut shared) {
                    return differs(what, world.now);
                }
                continue;
            }
            let expected = world.decide(entry);
            let got = rest.split_off(..expected.len().min(rest.len())).unwrap_or_default();
            if got != expected {
                return differs(format!("{got:?}, expected {expected:?}"), world.now);
            }
        }
        if !rest.is_empty() {
            return Err(format!("the reply is too long: {rest:?}"));
        }
        world.remove_expired();
        for ((name, value), end) in names.iter().zip(values).zip(ends) {
            compare_value(world, name, value, end)?;
        }
    }
    Ok(())
}

/// Stores a value in Redis.
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

/// Compares a value in Redis, and its expiry, with the reference.
fn compare_value(world: &World, name: &str, value: &Value, end: &Value) -> Result<(), String> {
    let is_equal = match (world.stored.get(name), value) {
        (None | Some(Stored::List), Value::Nil) => true,
        (Some(Stored::Garbage(bytes)), Value::BulkString(found)) => bytes == found,
        (Some(Stored::Records(records)), Value::BulkString(found)) => {
            Record::decode_all(found).is_ok_and(|found| found == *records)
                && *found == encode(records)
                && expires(records).is_none_or(|expires| *end == Value::Int(expires))
        }
        _ => false,
    };
    if is_equal {
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
