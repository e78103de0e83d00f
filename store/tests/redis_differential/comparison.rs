//! The comparison: random batches are sent to the script and to the reference, and their results and stored
//! values compared.

use rand::Rng;
use redis::{ConnectionLike, RedisResult, Value};
use sluice_limiter::Record;
use sluice_store::redis::Script;

use super::encoding::{RunCheck, encode_general, encode_nothing, encode_plain, encode_runs, runs};
use super::world::{BatchEntry, CREATED, Stored, World, encode, expires, name, overflow_name, registry_name};

/// Shadows `redis` with a table whose TIME reads two keys, and whose GET fails if another key says so. A mutant
/// may neither loop nor repeat a string without end.
const PRELUDE: &str = "local real, strings, turns = redis, string, 0
local redis = {
  pcall = function(name, ...)
    if name == 'GET' and real.call('GET', 'fake:failure') == '1' then return {err = 'ERR a failure'} end
    return real.pcall(name, ...)
  end,
  call = function(name, ...)
    if name == 'TIME' then return real.call('MGET', 'fake:seconds', 'fake:micros') end
    return real.call(name, ...)
  end,
}
local string = setmetatable({
  rep = function(text, times)
    if #text * times > 10000000 then error('a string without end') end
    return strings.rep(text, times)
  end,
}, {__index = strings})
ARGV.turn = function()
  turns = turns + 1
  if turns > 100000 then error('a loop without end') end
end
";

/// PEXPIRETIME for Redis before version 7.0, which does not have it: a clock that stands still while PTTL runs makes it exact.
const EXPIRES_AT: &str = "local function millis()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local before, left
repeat before, left = millis(), redis.call('PTTL', KEYS[1]) until millis() == before
return left < 0 and left or before + left
";

/// The sources of the scripts to compare with the reference, in the order of [`Script::ALL`].
pub(crate) type Sources<'a> = [&'a str; Script::ALL.len()];

/// The value of each key of a call, and its expiry.
type StoredValues = Vec<(Value, Value)>;

/// Loads a script, with a clock that the test sets, and returns its hash.
pub(crate) fn load(source: &str, connection: &mut impl ConnectionLike) -> RedisResult<String> {
    redis::cmd("SCRIPT").arg("LOAD").arg(format!("{PRELUDE}{source}")).query(connection)
}

/// Compares this number of checks. The first difference is the error.
pub(crate) fn run(
    world: &mut World,
    sources: Sources<'_>,
    connection: &mut impl ConnectionLike,
    checks: u64,
) -> Result<(), String> {
    let mut hashes = vec![];
    for source in sources {
        hashes.push(load(source, connection).map_err(|error| error.to_string())?);
    }
    let command = redis::cmd("COMMAND").arg("INFO").arg("PEXPIRETIME").query(connection);
    let has_expire_time = matches!(command, Ok(Value::Array(found)) if found != [Value::Nil]);
    let (mut done, mut batches) = (0, 0);
    while done < checks {
        let mut pipe = redis::pipe();
        if batches % 50 == 0 {
            world.rebuild();
            pipe.cmd("FLUSHALL").ignore();
        }
        batches += 1;
        world.step();
        pipe.mset(&[
            ("fake:seconds", world.now / 1_000_000),
            ("fake:micros", world.now % 1_000_000),
            ("fake:failure", u64::from(world.get_fails)),
        ])
        .ignore();
        let mut seeds = world.crowd();
        let most = if world.is_focused_on_values() { 40 } else { 12 };
        for _ in 0..world.rng.random_range(0..most) {
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
        let mut call =
            Call { deadline, late: deadline < millis, hashes: &hashes, has_expire_time, connection };
        if batches == 1 {
            call.nothing(world)?;
        }
        let Division { plain, runs, mut general } = divide(world, &entries);
        // The store sends a plain check alone if no other one waits.
        let is_single = plain.len() == 1 || batches % 3 == 0;
        let (script, size) =
            if is_single { (Script::Single, 1) } else { (Script::Plain, plain.len().max(1)) };
        for checks in plain.chunks(size) {
            general.extend(call.runs(world, script, checks)?);
        }
        if !runs.is_empty() {
            general.extend(call.runs(world, Script::Runs, &runs)?);
        }
        if !general.is_empty() {
            call.general(world, &general)?;
        }
    }
    Ok(())
}

/// The entries of a batch by the script that decides them.
#[derive(Default)]
struct Division<'a> {
    plain: Vec<RunCheck<'a>>,
    runs: Vec<RunCheck<'a>>,
    general: Vec<&'a BatchEntry>,
}

/// Divides the entries as the store does. No two plain checks name the same counter, and a check of a run has a
/// counter of its own.
fn divide<'a>(world: &mut World, entries: &'a [BatchEntry]) -> Division<'a> {
    let mut division = Division::default();
    // The store also sends checks to the general script after another script did not decide.
    let skipped = world.rng.random_bool(0.4);
    let script = |entry: &BatchEntry| match entry {
        BatchEntry::Check { counters, .. } if !skipped => Script::of(counters),
        _ => Script::General,
    };
    let of_script = |wanted: Script| entries.iter().filter(move |entry| script(entry) == wanted);
    let all_names: Vec<String> = of_script(Script::Runs).flat_map(BatchEntry::names).collect();
    let mut plain_names: Vec<String> = vec![];
    for entry in entries {
        let BatchEntry::Check { counters, callers } = entry else {
            division.general.push(entry);
            continue;
        };
        let check = |own| RunCheck { entry, counters, callers: *callers, own };
        let names = entry.names();
        match script(entry) {
            Script::Plain if !plain_names.contains(&names[0]) => {
                plain_names.extend(names);
                division.plain.push(check(0));
            }
            Script::Runs => {
                let own = (0..counters.len()).find(|&own| {
                    all_names.iter().filter(|name| **name == names[own]).count() == 1
                        && check(own).shared().iter().all(|counter| counter.limit.rates.len() == 1)
                });
                match own {
                    Some(own) => division.runs.push(check(own)),
                    None => division.general.push(entry),
                }
            }
            _ => division.general.push(entry),
        }
    }
    division
}

/// The properties that the calls of a batch have in common.
struct Call<'a, C> {
    deadline: u64,
    late: bool,
    hashes: &'a [String],
    has_expire_time: bool,
    connection: &'a mut C,
}

impl<C: ConnectionLike> Call<'_, C> {
    /// Calls a script, and returns its reply without the time, which must be that of the world. Also returns the
    /// value and the expiry of each key.
    fn send(
        &mut self,
        world: &World,
        script: Script,
        names: &[String],
        payload: &[u8],
    ) -> Result<(Vec<Value>, StoredValues), String> {
        let mut pipe = redis::pipe();
        let hash = &self.hashes[script as usize];
        pipe.cmd("EVALSHA").arg(hash).arg(names.len()).arg(names).arg(payload);
        let mut replies: Vec<Value> = pipe.query(self.connection).map_err(|error| error.to_string())?;
        let mut reply = match (script, replies.pop()) {
            (Script::Single, Some(Value::BulkString(bytes))) => integers(&bytes)?,
            (Script::Plain | Script::Runs | Script::General, Some(Value::Array(reply))) => reply,
            (_, other) => return Err(format!("a reply of another form: {other:?}")),
        };
        if reply.first() != Some(&Value::Int(world.now as i64)) {
            return Err(format!("the time is not {}: {reply:?}", world.now));
        }
        if self.late && reply.len() > 1 {
            return Err(format!("the call was late: {reply:?}"));
        }
        Ok((reply.split_off(1), self.values(&with_derived(names))?))
    }

    /// Returns the values and the expiries of keys.
    fn values(&mut self, names: &[String]) -> Result<StoredValues, String> {
        let mut pipe = redis::pipe();
        pipe.cmd("MGET").arg(names);
        for name in names {
            match self.has_expire_time {
                true => pipe.cmd("PEXPIRETIME").arg(name),
                false => pipe.cmd("EVAL").arg(EXPIRES_AT).arg(1).arg(name),
            };
        }
        let mut replies: Vec<Value> = pipe.query(self.connection).map_err(|error| error.to_string())?;
        let ends = replies.split_off(1);
        match replies.pop() {
            Some(Value::Array(values)) => Ok(values.into_iter().zip(ends).collect()),
            other => Err(format!("not the values of keys: {other:?}")),
        }
    }

    /// Calls each script without an operation: the store finds out so whether the server can run it.
    fn nothing(&mut self, world: &World) -> Result<(), String> {
        for script in Script::ALL {
            let payload = encode_nothing(script, world.now / 1000);
            let mut pipe = redis::pipe();
            pipe.cmd("EVALSHA").arg(&self.hashes[script as usize]).arg(0).arg(payload);
            let reply: Value = pipe.query(self.connection).map_err(|error| error.to_string())?;
            let now = match script {
                Script::Single => Value::BulkString(world.now.to_le_bytes()[..7].to_vec()),
                Script::Plain | Script::Runs | Script::General => {
                    Value::Array(vec![Value::Int(world.now as i64)])
                }
            };
            if reply != Value::Array(vec![now]) {
                return Err(format!("a call without an operation returns {reply:?}"));
            }
        }
        Ok(())
    }

    /// Calls a script for plain checks or the one for runs, and returns the checks that it did not decide. A check that it
    /// has to decide must not be among them.
    fn runs<'b>(
        &mut self,
        world: &mut World,
        script: Script,
        checks: &[RunCheck<'b>],
    ) -> Result<Vec<&'b BatchEntry>, String> {
        let encode = if script == Script::Runs { encode_runs } else { encode_plain };
        let (names, payload) = encode(checks, self.deadline);
        let (reply, values) = self.send(world, script, &names, &payload)?;
        let (mut rest, mut undecided) = (&reply[..], vec![]);
        for run in runs(checks).filter(|_| !self.late) {
            let shared = run[0].shared();
            let mut before = counts(&mut rest, shared.len())?;
            let readable = shared.iter().all(|counter| {
                let name = name(&counter.limit, counter.key);
                let is_missing = world.is_missing(&name);
                world.must_decide(counter)
                    && !(world.get_fails && is_missing)
                    && !(is_missing && counter.limit.max_keys > 0 && world.is_full(&counter.limit))
            });
            let expiries: Vec<_> =
                shared.iter().map(|counter| world.expiry(&name(&counter.limit, counter.key))).collect();
            let expected = shared.iter().flat_map(|counter| {
                let created = created(world, &name(&counter.limit, counter.key));
                world.states_of(counter).into_iter().map(move |state| [state[1] + created, state[2]])
            });
            if readable && before != expected.collect::<Vec<_>>() {
                return Err(format!("differs at {}: the shared counters are {before:?}", world.now));
            }
            before.iter_mut().for_each(|[current, _]| *current %= (CREATED << 16) as i64);
            let readable = readable && !(script == Script::Single && world.get_fails);
            let mut taken = 0;
            for check in run {
                // A value that is no string stops the single script before it counts keys.
                let counts_keys = readable && check.own().limit.max_keys > 0;
                let own = name(&check.own().limit, check.own().key);
                let is_missing = match script {
                    Script::Single => !world.stored.contains_key(&own) && !world.get_fails,
                    _ => world.is_missing(&own),
                };
                let is_full = counts_keys && is_missing && world.is_full(&check.own().limit);
                let shared = (&before[..], taken);
                taken += compare_check(world, check, &mut rest, shared, readable, is_full, &mut undecided)?;
            }
            for (counter, before) in shared.iter().zip(expiries) {
                world.count_key(counter, before);
            }
        }
        if !rest.is_empty() {
            return Err(format!("the reply is too long: {rest:?}"));
        }
        world.end_call();
        compare_values(world, &with_derived(&names), values)?;
        Ok(undecided)
    }

    /// Calls the general script, which decides all entries.
    fn general(&mut self, world: &mut World, entries: &[&BatchEntry]) -> Result<(), String> {
        let (names, payload) = encode_general(entries, self.deadline);
        let is_overflow = |entry: &&BatchEntry| matches!(entry, BatchEntry::Settle(one) if one.overflowed);
        let mut read = entries.iter().flat_map(|entry| entry.names_in_any_case());
        let gets = read.any(|name| world.is_missing(&name)) || entries.iter().any(is_overflow);
        // A check after a reset may need an overflow counter that it did not need before. Only a reservation that is found is
        // corrected.
        let may_get =
            entries.iter().any(|entry| matches!(entry, BatchEntry::Reset(..) | BatchEntry::Take(..)));
        let sent = self.send(world, Script::General, &names, &payload);
        if !self.late && world.get_fails && (gets || may_get) {
            match &sent {
                Err(error) if error.contains("a failure") => {
                    let names = with_derived(&names);
                    return compare_values(world, &names, self.values(&names)?);
                }
                other if gets => return Err(format!("GET has failed, but the reply is {other:?}")),
                _ => {}
            }
        }
        let (reply, values) = sent?;
        let mut rest = &reply[..];
        let expiries: Vec<_> = names.iter().map(|name| (name.clone(), world.expiry(name))).collect();
        let mut notes = vec![];
        world.is_general = true;
        for (n, entry) in entries.iter().enumerate().filter(|_| !self.late) {
            let before = world.records_of(entry);
            let expected = world.decide(entry);
            let got = rest.split_off(..expected.len().min(rest.len())).unwrap_or_default();
            if got != expected {
                let now = world.now;
                return Err(format!(
                    "differs at {now}: {got:?}, expected {expected:?}, with {before:?} stored, by {entry:?}"
                ));
            }
            for (counter, keys) in std::mem::take(&mut world.call.notes) {
                notes.extend([32 * n as i64 + counter as i64, keys as i64].map(Value::Int));
            }
        }
        world.is_general = false;
        if rest != notes {
            return Err(format!("new keys: {rest:?}, expected {notes:?}"));
        }
        world.count_changed(&expiries);
        world.end_call();
        compare_values(world, &with_derived(&names), values)
    }
}

/// Reads signed integers of 7 bytes.
fn integers(bytes: &[u8]) -> Result<Vec<Value>, String> {
    if !bytes.len().is_multiple_of(7) {
        return Err(format!("no integers of 7 bytes: {bytes:?}"));
    }
    let integer = |bytes: &[u8]| {
        let sign = if bytes[6] < 128 { 0 } else { 255 };
        i64::from_le_bytes(std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(sign)))
    };
    Ok(bytes.chunks(7).map(integer).map(Value::Int).collect())
}

/// Takes the current and previous counts of some rates off a reply.
fn counts(rest: &mut &[Value], rates: usize) -> Result<Vec<[i64; 2]>, String> {
    let got = rest.split_off(..2 * rates).ok_or("the reply is too short")?;
    let pair = |pair: &[Value]| match pair {
        [Value::Int(current), Value::Int(previous)] => Ok([*current, *previous]),
        other => Err(format!("not counts: {other:?}")),
    };
    got.chunks(2).map(pair).collect()
}

/// Takes the result of a check off the reply and compares it, given the counts of the shared counters before the
/// run and the number of callers admitted since. Returns the number of admitted callers.
fn compare_check<'a>(
    world: &mut World,
    check: &RunCheck<'a>,
    rest: &mut &[Value],
    (shared, taken): (&[[i64; 2]], i64),
    readable: bool,
    is_full: bool,
    undecided: &mut Vec<&'a BatchEntry>,
) -> Result<i64, String> {
    let (entry, own) = (check.entry, check.own());
    let Some(Value::Int(admitted)) = rest.split_off_first() else {
        return Err("the reply is too short".into());
    };
    let states = counts(rest, own.limit.rates.len())?;
    let (now, before) = (world.now, world.records_of(entry));
    let differs = |expected: &[Value]| {
        Err(format!(
            "differs at {now}: {admitted} {states:?} {shared:?}, expected {expected:?}, with {before:?} stored, by {entry:?}"
        ))
    };
    if *admitted == -1 {
        if readable && world.must_decide(own) && !is_full {
            return differs(&[]);
        }
        undecided.push(entry);
        return Ok(0);
    }
    if is_full {
        return differs(&[]);
    }
    // After a denial, the script does not check whether a missing value is one of another type.
    let named = name(&own.limit, own.key);
    let is_list = matches!(world.stored.get(&named), Some(Stored::List));
    let list = if is_list { world.stored.remove_entry(&named) } else { None };
    let (expiry, created) = (world.expiry(&named), created(world, &named));
    let expected = world.decide(entry);
    let is_admitted = expected.first() != Some(&Value::Int(0));
    let keys = if is_admitted { world.count_key(own, expiry) } else { 0 };
    let created = if is_admitted { created } else { 0 };
    let admitted = &(*admitted - (keys << 16) as i64 - created);
    let mut all: Vec<_> =
        shared.iter().map(|[current, previous]| [current + taken + admitted, *previous]).collect();
    all.splice(check.own..check.own, states.iter().copied());
    let rates = check.counters.iter().flat_map(|counter| &counter.limit.rates);
    let mut got = vec![Value::Int(*admitted)];
    for (rate, [current, previous]) in rates.zip(&all) {
        let window = Record::empty(rate.tag(), world.now).window as i64;
        got.extend([window, *current, *previous].map(Value::Int));
    }
    if got != expected || is_list && *admitted != 0 {
        return differs(&expected);
    }
    world.stored.extend(list);
    Ok(*admitted)
}

/// Returns what is added to a number in a reply if the key is missing and created.
fn created(world: &World, name: &str) -> i64 {
    if world.is_missing(name) { (CREATED << 16) as i64 } else { 0 }
}

fn compare_values(world: &mut World, names: &[String], values: StoredValues) -> Result<(), String> {
    world.remove_expired();
    names.iter().zip(values).try_for_each(|(name, (value, end))| compare_value(world, name, &value, &end))
}

/// Returns these names and those of the registries and overflow counters that belong to them.
fn with_derived(names: &[String]) -> Vec<String> {
    let mut all = names.to_vec();
    for name in names {
        let scope = name.split(':').next().unwrap_or_default();
        for derived in [registry_name(scope), overflow_name(scope)] {
            if !all.contains(&derived) {
                all.push(derived);
            }
        }
    }
    all
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
        Stored::Registry(registry) => {
            pipe.cmd("SET").arg(name).arg(registry.encode()).ignore();
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
        (Some(Stored::Registry(registry)), Value::BulkString(found)) => {
            *found == registry.encode() && [-1, registry.expires_at() as i64].map(Value::Int).contains(end)
        }
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
        Some(Stored::Registry(registry)) => format!("{registry:?}"),
        Some(Stored::List) => "a list".into(),
        None => "nothing".into(),
    };
    let found = match value {
        Value::BulkString(bytes) => format!("{bytes:?} {:?}", Record::decode_all(bytes)),
        other => format!("{other:?}"),
    };
    Err(format!("{name} at {}: Redis holds {found} until {end:?}, expected {expected}", world.now))
}
