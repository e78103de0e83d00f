//! A search for the schedule of requests that gets the most out of a rate.

use super::random::Random;
use crate::Rate;

/// One request of an adversary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Move {
    /// Window in which the request is sent.
    window: u64,
    /// Time since the beginning of that window, in microseconds.
    micros: u64,
    /// The request costs the remaining room divided by this number.
    divisor: u64,
}

impl Move {
    /// Returns a move. Half of them are within a microsecond of an edge, and half are about a period away.
    fn any(random: &mut Random, windows: u64, length: u64) -> Self {
        let window = match random.below(2) {
            0 => [0, 1, windows - 1, windows, windows + 1, 2 * windows][random.below(6) as usize],
            _ => random.below(2 * windows + 2),
        };
        let micros = match random.below(6) {
            0 => 0,
            1 => 1,
            2 => length - 1,
            3 => length - 2,
            _ => random.below(length),
        };
        Self { window, micros, divisor: [1, 1, 1, 2, 3, u64::MAX][random.below(6) as usize] }
    }
}

/// Returns the instants and the costs that are admitted to an adversary who makes these moves.
fn admitted(rate: &Rate, moves: &[Move], length: u64) -> Vec<(u64, u64)> {
    // A multiple of all window lengths, so that each move lies in its window.
    let start = 1_000_000 * rate.period.micros();
    let (mut stored, mut all) = (None, vec![]);
    for each in moves {
        let now = start + each.window * length + each.micros;
        let (record, at) = rate.roll(stored.take(), now);
        let room = rate.requests.get().saturating_sub(rate.used(&record, at));
        let cost = (room / each.divisor).max(u64::from(room > 0));
        if cost > 0 {
            assert!(rate.has_room(&record, at, cost) && !rate.has_room(&record, at, room + 1));
            stored = Some(rate.charge(record, at, cost));
            all.push((now, cost));
        } else {
            stored = Some(record);
        }
    }
    all
}

/// Returns the largest cost that any trailing period holds. The period is in the unit of the instants.
pub(crate) fn most_in_any_period(admitted: &[(u64, u64)], period: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for &(now, cost) in admitted {
        sum += cost;
        while admitted[first].0 + period <= now {
            sum -= admitted[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Returns the most requests in a trailing period, to the microsecond, that a search finds. It tries random
/// schedules, and changes of the best one so far.
pub(crate) fn worst_case(rate: &Rate, tries: u64, seed: u64) -> u64 {
    worst_case_in_units(rate, tries, seed, 1)
}

/// Returns the same as [`worst_case`], with instants rounded down to `unit` microseconds.
pub(crate) fn worst_case_in_units(rate: &Rate, tries: u64, seed: u64, unit: u64) -> u64 {
    let windows = rate.tag().previous_windows().max(1);
    let length = rate.tag().window_millis() * 1000;
    let mut random = Random(seed);
    let (mut best, mut most) = (vec![], 0);
    for _ in 0..tries {
        let mut moves: Vec<Move> = if random.below(2) == 0 { vec![] } else { best.clone() };
        if !moves.is_empty() {
            let at = random.below(moves.len() as u64) as usize;
            moves.swap_remove(at);
        }
        for _ in 0..1 + random.below(4) {
            moves.push(Move::any(&mut random, windows, length));
        }
        moves.sort_unstable();
        let mut all = admitted(rate, &moves, length);
        all.iter_mut().for_each(|(now, _)| *now /= unit);
        let found = most_in_any_period(&all, rate.period.micros() / unit);
        if found > most {
            (best, most) = (moves, found);
        }
    }
    most
}
