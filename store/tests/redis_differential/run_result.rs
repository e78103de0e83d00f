//! The result of a check in a run, which the script sends in a full or a short form.

use redis::Value;
use sluice_store::Counter;

/// The states of counters with one rate: window, current and previous count.
pub(crate) type States = Vec<[i64; 3]>;

/// Takes the result of a check in a run off the reply, in the full or the short form, and compares it.
/// `shared` holds the states of the run's shared counters and is updated.
pub(crate) fn compare_run_result(
    rest: &mut &[Value],
    expected: &[Value],
    counters: &[Counter],
    own: usize,
    shared: &mut Option<States>,
) -> Result<(), String> {
    let int = |value: &Value| if let Value::Int(n) = value { Ok(*n) } else { Err(format!("{value:?}")) };
    let mut take = || {
        rest.split_off_first()
            .ok_or("the reply is too short")
            .and_then(|v| int(v).map_err(|_| "not a number"))
    };
    let first = take()?;
    let numbers = expected.iter().map(int).collect::<Result<Vec<_>, _>>()?;
    let differs = |got: &[i64]| Err(format!("{got:?}, expected {expected:?}"));
    if first == -1 || first == -2 || numbers.len() == 1 {
        return if numbers == [first] { Ok(()) } else { differs(&[first]) };
    }
    // The states in the order of the check. In the reply the own counter comes first.
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
        *shared = Some(states[..own].iter().chain(&states[own + rates..]).copied().collect());
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
        // In the short form the window is the current one.
        got.push([states.get(own + n).map_or(0, |state| state[0]), current, previous]);
    }
    let Some(shared) = shared else { return Err("a short form without the shared counters".into()) };
    shared.iter_mut().for_each(|state| state[1] += admitted);
    let all: States = shared[..own].iter().chain(&got).chain(&shared[own..]).copied().collect();
    if numbers[0] == admitted && all == states {
        Ok(())
    } else {
        differs(&[vec![admitted], all.concat()].concat())
    }
}
