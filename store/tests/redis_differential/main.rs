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
//! `SLUICE_DIFFERENTIAL_CHECKS` sets how many checks are compared, `SLUICE_SEED` repeats a run, and `SLUICE_MUTANTS`
//! chooses the mutants whose description contains it.

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
use world::{ALL, BatchEntry, Focus, Stored, World, encode, expires, name};

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
        let Call { names, payload, order } = request(&entries, deadline);
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
        let mut besides: Option<States> = Some(vec![]);
        for OrderedEntry { entry, run } in order.into_iter().filter(|_| !late) {
            let entry = &entries[entry];
            let before = world.known(entry);
            let differs =
                |what: String, now: u64| Err(format!("differs at {now}: {what}, of {before:?} by {entry:?}"));
            if let (Some((own, first)), BatchEntry::Check { counters, .. }) = (run, entry) {
                if first && counters.len() > 1 {
                    let others = counters.iter().enumerate().filter(|&(at, _)| at != own);
                    let others: Vec<_> = others.map(|(_, one)| one.clone()).collect();
                    besides = match rest.first() {
                        // Something of theirs has to be done in full.
                        Some(Value::Int(-1)) => {
                            rest = &rest[1..];
                            None
                        }
                        _ => {
                            let said = rest.split_off(..3 * others.len()).unwrap_or_default();
                            let stood = world.standing(&others);
                            if said != stood.concat().into_iter().map(Value::Int).collect::<Vec<_>>() {
                                return differs(
                                    format!("{said:?}, the others stand at {stood:?}"),
                                    world.now,
                                );
                            }
                            Some(stood)
                        }
                    };
                } else if first {
                    besides = Some(vec![]);
                }
                let named = name(&counters[own].limit, counters[own].key);
                // What is denied is not looked at any further where there is no value.
                let decided = !matches!(rest.first(), Some(Value::Int(-2..=-1)));
                let unseen = if decided && matches!(world.stored.get(&named), Some(Stored::List)) {
                    world.stored.remove(&named)
                } else {
                    None
                };
                let mut expected = world.decide(entry);
                if unseen.is_some() && expected[0] != Value::Int(0) {
                    return differs("a list charged".into(), world.now);
                }
                world.stored.extend(unseen.map(|list| (named.clone(), list)));
                // The own counter is looked at first.
                if let ([Value::Int(..0)], Some(code)) = (&expected[..], world.broken(&named)) {
                    expected = vec![Value::Int(code)];
                }
                if let Err(what) = run_answer(&mut rest, &expected, counters, own, &mut besides) {
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

/// What is asked in one call.
struct Call {
    names: Vec<String>,
    payload: Vec<u8>,
    /// The entries in its order: first those that are no run's.
    order: Vec<OrderedEntry>,
}

/// An entry of a call.
#[derive(Clone, Copy)]
struct OrderedEntry {
    entry: usize,
    /// Of a run: which counter is its own, and whether it is the first.
    run: Option<(usize, bool)>,
}

/// The number of something, from 1.
fn index_of<T: PartialEq>(all: &mut Vec<T>, one: T) -> u64 {
    let known = all.iter().position(|other| *other == one);
    let index = known.unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    });
    index as u64 + 1
}

/// Which counter of a check may be its own in a run.
fn own_of(entries: &[BatchEntry], entry: &BatchEntry) -> Option<usize> {
    let BatchEntry::Check { counters, callers } = entry else { return None };
    let all: Vec<_> = entries.iter().flat_map(BatchEntry::names).collect();
    let plain = |one: &Counter| one.limit.rates.iter().all(|rate| rate.script_arguments(0, 1).is_none());
    if counters.iter().any(|one| one.cost != 1 || !plain(one)) {
        return None;
    }
    let uses = |one: &Counter| all.iter().filter(|other| **other == name(&one.limit, one.key)).count();
    let own = counters.iter().position(|one| uses(one) == 1)?;
    let mut besides = counters.iter().enumerate().filter(|&(at, _)| at != own);
    (counters.len() == 1 || *callers == 1 && besides.all(|(_, one)| one.limit.rates.len() == 1))
        .then_some(own)
}

/// The call as the head of the script describes it.
fn request(entries: &[BatchEntry], deadline: u64) -> Call {
    let (mut names, mut limits): (Vec<String>, Vec<&LimitSpec>) = (vec![], vec![]);
    let (mut asked, mut order) = (vec![], vec![]);
    let owns: Vec<_> = entries.iter().map(|entry| own_of(entries, entry)).collect();
    for (n, entry) in entries.iter().enumerate().filter(|&(n, _)| owns[n].is_none()) {
        order.push(OrderedEntry { entry: n, run: None });
        match entry {
            BatchEntry::Check { counters, callers } => {
                asked.extend([1, counters.len() as u64, *callers]);
                for counter in counters {
                    let index = index_of(&mut names, name(&counter.limit, counter.key));
                    asked.extend([index, counter.cost, index_of(&mut limits, &counter.limit)]);
                    for rate in &counter.limit.rates {
                        asked
                            .extend(rate.script_arguments(counter.key.0, counter.cost).into_iter().flatten());
                    }
                }
            }
            BatchEntry::Settle(settlement) => {
                let index = index_of(&mut names, name(&settlement.limit, settlement.key));
                let amount = settlement.delta.unsigned_abs();
                let (more, less) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
                let limit = index_of(&mut limits, &settlement.limit);
                asked.extend([0, index, settlement.charged, more, less, limit]);
                for rate in &settlement.limit.rates {
                    asked.extend(rate.settlement_script_arguments(settlement.key.0, amount));
                }
            }
        }
    }
    let mut left: Vec<usize> = (0..entries.len()).filter(|&n| owns[n].is_some()).collect();
    while let Some(&first) = left.first() {
        // What the checks of a run have in common.
        let shape = |n: usize| {
            let (BatchEntry::Check { counters, callers }, Some(own)) = (&entries[n], owns[n]) else {
                panic!()
            };
            let besides = counters.iter().enumerate().filter(|&(at, _)| at != own);
            let besides: Vec<_> = besides.map(|(_, one)| (&one.limit, one.key)).collect();
            (own, &counters[own].limit, besides, *callers)
        };
        let (own, limit, besides, callers) = shape(first);
        let run: Vec<_> = left.iter().copied().filter(|&n| shape(n) == shape(first)).collect();
        left.retain(|n| !run.contains(n));
        let limit = index_of(&mut limits, limit);
        asked.extend([2, limit, callers, run.len() as u64, besides.len() as u64]);
        for (limit, key) in besides {
            asked.extend([index_of(&mut names, name(limit, key)), index_of(&mut limits, limit)]);
        }
        for n in run {
            let BatchEntry::Check { counters, .. } = &entries[n] else { panic!() };
            names.push(name(&counters[own].limit, counters[own].key));
            order.push(OrderedEntry { entry: n, run: Some((own, n == first)) });
        }
    }
    let mut numbers = vec![deadline, limits.len() as u64];
    for limit in limits {
        numbers.push(limit.rates.len() as u64);
        for rate in &limit.rates {
            let flag = u64::from(rate.script_arguments(0, 1).is_some());
            numbers.extend([rate.requests.get(), rate.tag().get() + flag]);
        }
    }
    numbers.extend(asked);
    Call { names, payload: pack(&numbers), order }
}

/// The states of one rate each: slot, current, previous.
type States = Vec<[i64; 3]>;

/// What a check of a run is to be answered, in full or in short, given how the counters stood that it has besides its own.
/// Takes the answer off the reply; an error if it is another.
fn run_answer(
    rest: &mut &[Value],
    expected: &[Value],
    counters: &[Counter],
    own: usize,
    besides: &mut Option<States>,
) -> Result<(), String> {
    let int = |value: &Value| if let Value::Int(n) = value { Ok(*n) } else { Err(format!("{value:?}")) };
    let mut take = || rest.split_off_first().ok_or("no more").and_then(|v| int(v).map_err(|_| "no number"));
    let first = take()?;
    let numbers = expected.iter().map(int).collect::<Result<Vec<_>, _>>()?;
    let differs = |got: &[i64]| Err(format!("{got:?}, expected {expected:?}"));
    if first == -1 || first == -2 || numbers.len() == 1 {
        return if numbers == [first] { Ok(()) } else { differs(&[first]) };
    }
    // The counters' states in their order, the own one first in the script's.
    let states: States = numbers[1..].chunks(3).map(|one| one.try_into().unwrap()).collect();
    let rates = counters[own].limit.rates.len();
    if first >= 0 {
        let mut ordered = states.clone();
        ordered[..own + rates].rotate_right(rates);
        let ordered: Vec<i64> = std::iter::once(numbers[0]).chain(ordered.into_iter().flatten()).collect();
        let mut got = vec![first];
        for _ in 1..ordered.len() {
            got.push(take()?);
        }
        *besides = Some(states[..own].iter().chain(&states[own + rates..]).copied().collect());
        return if got == ordered { Ok(()) } else { differs(&got) };
    }
    let mut got = vec![];
    let mut code = -3 - first;
    let admitted = code & 1;
    for n in 0..rates {
        if n > 0 {
            code = -3 - take()?;
        }
        if code & 1 != admitted {
            return differs(&[code]);
        }
        let (current, previous) =
            if code & 2 == 0 { ((code >> 2) & 0xf_ffff, code >> 22) } else { (code >> 2, take()?) };
        // The short form is that of now.
        got.push([states.get(own + n).map_or(0, |state| state[0]), current, previous]);
    }
    let Some(besides) = besides else { return Err("in short, of what is not known".into()) };
    besides.iter_mut().for_each(|state| state[1] += admitted);
    let all: States = besides[..own].iter().chain(&got).chain(&besides[own..]).copied().collect();
    if numbers[0] == admitted && all == states {
        Ok(())
    } else {
        differs(&[vec![admitted], all.concat()].concat())
    }
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
    let flush = |text: &str| text.split('\n').map(str::trim_start).collect::<Vec<_>>().join("\n");
    let script = flush(CHECK_LUA);
    let wanted = std::env::var("SLUICE_MUTANTS").unwrap_or_default();
    for &(likely, what, original, mutation) in MUTANTS.iter().filter(|mutant| mutant.1.contains(&wanted)) {
        let original = flush(original);
        let times = script.matches(&original).count();
        assert_eq!(times, 1, "how often the script contains {original:?}: {what}");
        // Where the text begins in the middle of a line, so does what replaces it.
        let mutant = script.replace(&original, mutation);
        let loaded: Result<String, _> =
            redis::cmd("SCRIPT").arg("LOAD").arg(&mutant).query(&mut redis.connection());
        assert!(loaded.is_ok(), "no Lua any more: {what}: {loaded:?}");
        let others = ALL.into_iter().filter(|&focus| focus != likely).map(|focus| (focus, 20_000));
        let caught = std::iter::once((likely, 250_000)).chain(others).find_map(|(focus, checks)| {
            let mut world = World::new(1, focus);
            let result = run(&mut world, &mutant, &mut redis.connection(), checks);
            result.err().map(|difference| (focus, world.admitted + world.denied, difference))
        });
        match caught {
            None => {
                println!("not caught: {what}");
                survivors.push(what);
            }
            Some((focus, decided, difference)) => {
                let difference = difference.replace('\n', " ");
                println!("caught by {focus:?} after {decided} callers: {what}: {difference:.100}");
            }
        }
    }
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
    println!("{} mutants, all caught", MUTANTS.len());
}
