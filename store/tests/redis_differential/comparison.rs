//! The comparison: random batches are sent to the script and to the reference, and their results and stored
//! values compared.

use std::collections::HashSet;

use rand::Rng;
use redis::{Connection, Value};
use sluice_limiter::Record;

use sluice_store::redis::is_plain;

use crate::encoding::{Arguments, OrderedEntry, encode_general, encode_plain};
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

/// The scripts to compare with the reference.
#[derive(Clone, Copy)]
pub(crate) struct Scripts<'a> {
    pub(crate) plain: &'a str,
    pub(crate) general: &'a str,
}

/// Compares this number of checks. The first difference is the error.
pub(crate) fn run(
    world: &mut World,
    scripts: Scripts<'_>,
    connection: &mut Connection,
    checks: u64,
) -> Result<(), String> {
    let mut hashes = vec![];
    for script in [scripts.plain, scripts.general] {
        let script = format!("{PRELUDE}{script}");
        let hash: Result<String, _> = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection);
        hashes.push(hash.map_err(|error| error.to_string())?);
    }
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
        let () = pipe.query(connection).map_err(|error| error.to_string())?;
        let entries = world.entries();
        done += entries.len() as u64;
        let late = world.rng.random_bool(0.02);
        let millis = world.now / 1000;
        let deadline = millis + world.rng.random_range(0..2) * 1000 - u64::from(late) * 1001;
        let call = Call { deadline, late: deadline < millis };
        let undecided = call.plain(world, &hashes[0], &entries, connection)?;
        if !undecided.is_empty() {
            call.general(world, &hashes[1], &undecided, connection)?;
        }
    }
    Ok(())
}

/// The properties that both calls of a batch have in common.
struct Call {
    deadline: u64,
    late: bool,
}

impl Call {
    /// Calls a script, and returns its reply without the time, which must be that of the world.
    fn send(
        &self,
        world: &World,
        hash: &str,
        (names, payload): (&[String], &[u8]),
        connection: &mut Connection,
    ) -> Result<(Vec<Value>, Vec<(Value, Value)>), String> {
        let mut pipe = redis::pipe();
        pipe.cmd("EVALSHA").arg(hash).arg(names.len()).arg(names).arg(payload);
        for name in names {
            pipe.cmd("MGET").arg(name).cmd("PEXPIRETIME").arg(name);
        }
        let mut replies: Vec<Value> = pipe.query(connection).map_err(|error| error.to_string())?;
        let mut stored = replies.split_off(1).into_iter();
        let mut values = vec![];
        while let (Some(Value::Array(value)), Some(end)) = (stored.next(), stored.next()) {
            values.push((value.into_iter().next().unwrap_or(Value::Nil), end));
        }
        let [Value::Array(reply)] = &mut replies[..] else {
            return Err(format!("a reply of another form: {replies:?}"));
        };
        if reply.first() != Some(&Value::Int(world.now as i64)) {
            return Err(format!("the time is not {}: {reply:?}", world.now));
        }
        if self.late && reply.len() > 1 {
            return Err(format!("the call was late: {reply:?}"));
        }
        Ok((reply.split_off(1), values))
    }

    /// Calls the plain script for all plain checks, and returns the other entries and those that it did not
    /// decide. A check that it has to decide must not be among them.
    fn plain<'a>(
        &self,
        world: &mut World,
        hash: &str,
        entries: &'a [BatchEntry],
        connection: &mut Connection,
    ) -> Result<Vec<&'a BatchEntry>, String> {
        // The store sends checks to the general script as well if the plain one recently did not decide.
        let skipped = world.rng.random_bool(0.3);
        let (mut undecided, mut plain, mut checks) = (vec![], vec![], vec![]);
        let mut named = HashSet::new();
        for entry in entries {
            match entry {
                BatchEntry::Check { counters, callers }
                    if !skipped
                        && counters.len() == 1
                        && is_plain(&counters[0])
                        && named.insert(name(&counters[0].limit, counters[0].key)) =>
                {
                    plain.push(entry);
                    checks.push((&counters[0], *callers));
                }
                _ => undecided.push(entry),
            }
        }
        if plain.is_empty() {
            return Ok(undecided);
        }
        let (names, payload) = encode_plain(&checks, self.deadline);
        let (reply, values) = self.send(world, hash, (&names, &payload), connection)?;
        let mut results = reply.chunks(3);
        for ((entry, (counter, _)), name) in plain.into_iter().zip(checks).zip(&names).filter(|_| !self.late)
        {
            let before = world.records_of(entry);
            let result = results.next().unwrap_or_default();
            let now = world.now;
            let differs = |expected: &[Value]| {
                Err(format!(
                    "differs at {now}: {result:?}, expected {expected:?}, with {before:?} stored, by {entry:?}"
                ))
            };
            if let [Value::Int(-1), ..] = result {
                if world.must_decide(counter) {
                    return differs(&[]);
                }
                undecided.push(entry);
                continue;
            }
            // After a denial, the script does not check whether a missing value is one of another type.
            let is_list = matches!(world.stored.get(name), Some(Stored::List));
            let list = if is_list { world.stored.remove_entry(name) } else { None };
            let expected = world.decide(entry);
            let window = Value::Int(Record::empty(counter.limit.rates[0].tag(), world.now).window as i64);
            let matches = matches!((&expected[..], result), ([a, w, b, c], [x, y, z])
                if (a, b, c) == (x, y, z) && *w == window);
            if !matches || list.is_some() && expected[0] != Value::Int(0) {
                return differs(&expected);
            }
            world.stored.extend(list);
        }
        if results.next().is_some() {
            return Err(format!("the reply is too long: {reply:?}"));
        }
        compare_values(world, &names, values)?;
        Ok(undecided)
    }

    /// Calls the general script, which decides all entries.
    fn general(
        &self,
        world: &mut World,
        hash: &str,
        entries: &[&BatchEntry],
        connection: &mut Connection,
    ) -> Result<(), String> {
        let Arguments { names, payload, order } = encode_general(entries, self.deadline);
        let (reply, values) = self.send(world, hash, (&names, &payload), connection)?;
        let mut rest = &reply[..];
        let mut shared: Option<States> = Some(vec![]);
        for OrderedEntry { index, run } in order.into_iter().filter(|_| !self.late) {
            let entry = entries[index];
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
        compare_values(world, &names, values)
    }
}

fn compare_values(world: &mut World, names: &[String], values: Vec<(Value, Value)>) -> Result<(), String> {
    world.remove_expired();
    names.iter().zip(values).try_for_each(|(name, (value, end))| compare_value(world, name, &value, &end))
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
