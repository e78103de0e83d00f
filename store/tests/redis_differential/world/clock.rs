//! Random steps of the clock.

use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};
use sluice_limiter::MAX_PERIOD_MS;
use sluice_store::Counter;

use super::state::{DAY, EARLIEST, Focus, Stored, World, name};

impl World {
    /// Moves the clock. Half of the steps end within one unit of a boundary: a millisecond from that of a
    /// window, or a microsecond from a stored instant.
    pub(crate) fn step(&mut self) {
        let limit = self.limits.choose(&mut self.rng).unwrap()[0].clone();
        let rate = limit.rates[0];
        let period = rate.tag().window_millis();
        let now = self.now / 1000;
        let moved = match self.rng.random_range(0..20) {
            0 => now - self.rng.random_range(1..4),
            1 => now - period * self.rng.random_range(1..4),
            2 => now - DAY * self.rng.random_range(1..4),
            3 => now + DAY,
            4..8 => now + self.rng.random_range(0..3),
            8..14 => now + self.rng.random_range(0..=period),
            _ => now + period,
        };
        let moved = if self.rng.random_bool(0.4) {
            (moved + period / 2) / period * period + self.rng.random_range(0..3) - 1
        } else {
            moved
        };
        let mut micros = moved * 1000 + self.rng.random_range(0..1000);
        if self.rng.random_bool(0.4)
            && let Some(at) = self.stored_instant()
        {
            micros = at - 1 + self.rng.random_range(0..3);
        }
        // In some batches many clients of one limit send one check each, possibly with a shared counter.
        (self.one, self.shared) = (None, None);
        let (shares, runs) = (self.focus == Focus::Shared, self.focus == Focus::Runs);
        let often = matches!(self.focus, Focus::Plain | Focus::Widths);
        let share = if often { 0.8 } else { 0.4 };
        if shares || runs || self.is_everyday() && self.rng.random_bool(share) {
            let (one, key) = (self.any_limit(), self.key());
            let others: Vec<_> = self.limits.iter().map(|versions| versions[0].clone()).collect();
            let others =
                others.into_iter().filter(|other| other.scope != one.scope && other.rates.len() == 1);
            if (shares || self.rng.random_bool(if runs { 0.3 } else { 0.6 }))
                && let Some(other) = others.choose(&mut self.rng)
            {
                self.shared = Some(Counter { limit: other, key, cost: 1 });
            }
            self.one = Some(one);
        }
        if self.focus == Focus::Huge && self.rng.random_bool(0.5) {
            // The last minutes of a window: the number of milliseconds left has at most 18 bits.
            let bits = *[6, 12, 16, 18, 18, 18].choose(&mut self.rng).unwrap();
            micros = ((moved / period + 1) * period - self.rng.random_range(1..1 << bits)) * 1000;
            self.one = Some(limit);
        }
        self.get_fails = self.rng.random_bool(0.06);
        // Beyond the latest instant, the clock goes back by years.
        let latest = EARLIEST + 20 * MAX_PERIOD_MS;
        self.now =
            if (EARLIEST..latest).contains(&(micros / 1000)) { micros } else { (EARLIEST + period) * 1000 };
    }

    /// Returns an instant at which a stored value changes a decision.
    pub(super) fn stored_instant(&mut self) -> Option<u64> {
        let names: Vec<&String> = self.stored.keys().collect();
        // The order of a map differs from run to run.
        let name = (*names.iter().min()?).clone();
        let limit = self.any_limit();
        let name = if self.rng.random_bool(0.2) {
            name
        } else {
            let key = self.key();
            self::name(&limit, key)
        };
        let Some(Stored::Records(records)) = self.stored.get(&name) else { return None };
        let record = records.choose(&mut self.rng)?.clone();
        let rate = limit.rates.iter().find(|rate| rate.tag() == record.tag)?;
        let (rolled, at) = rate.roll(Some(record), self.now);
        let room = rate.has_room(&rolled, at, 1);
        let decision = rate.decision(&rolled, at, 1, room, false);
        Some(at + decision.retry_after.unwrap_or(decision.reset).max(1))
    }
}
