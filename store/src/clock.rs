//! The time that a memory store counts in: microseconds since the Unix epoch, because windows are aligned to it.
//!
//! Asking the system for its time takes longer than a check. So the machine's clock is read from the processor's counter
//! and anchored to the system's time anew whenever the anchor is older than a tenth of a second: a step of the system's
//! time is followed by the first reading a tenth of a second later. Between two anchors time only goes forward; at an
//! anchor it may go back, by the error of the counter over that tenth (a microsecond or two) or by the step itself. The
//! algorithms take both: time does not run backwards for a counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's clock, or one that a test moves by hand.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::new);

impl Clock {
    /// The machine's clock. The first reading of a process calibrates the counter, which takes a millisecond, and on a busy
    /// machine up to 200.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that stands still at `millis` until [`Clock::advance`].
    #[must_use]
    pub fn manual(millis: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(millis * 1000))))
    }

    /// Moves a manual clock; does nothing to the machine's.
    pub fn advance(&self, millis: u64) {
        self.advance_micros(millis * 1000);
    }

    /// Moves a manual clock by microseconds.
    pub fn advance_micros(&self, micros: u64) {
        if let Some(clock) = &self.0 {
            clock.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.0 {
            None => MACHINE.now(),
            Some(clock) => clock.load(Ordering::SeqCst),
        }
    }
}

/// The processor's counter, and what to add to it.
#[derive(Debug)]
struct Machine {
    counter: quanta::Clock,
    /// Microseconds of 2^64 ticks of the counter.
    scale: u64,
    /// How old an anchor may be, in ticks.
    valid: u64,
    /// The tick at which `offset` was right.
    anchored: AtomicU64,
    /// The system's time less the counter's, in microseconds, modulo 2^64.
    offset: AtomicU64,
}

impl Machine {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << 40).max(1);
        // At most a tick a nanosecond or so: the scale is below 2^64 / 1000 for it, and fits for any counter above 1 MHz.
        let scale = ((u128::from(nanos) << 24) / 1000).min(u128::from(u64::MAX)) as u64;
        let valid = ((100_000 << 64) / u128::from(scale)) as u64;
        let machine = Self { counter, scale, valid, anchored: AtomicU64::new(0), offset: AtomicU64::new(0) };
        machine.anchor();
        machine
    }

    #[inline]
    fn now(&self) -> u64 {
        let tick = self.counter.raw();
        // A counter that went back is far ahead of its anchor here, too.
        if tick.wrapping_sub(self.anchored.load(Ordering::Relaxed)) > self.valid {
            self.anchor();
        }
        self.micros(tick).wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[inline]
    fn micros(&self, tick: u64) -> u64 {
        ((u128::from(tick) * u128::from(self.scale)) >> 64) as u64
    }

    /// Two who do this at once find the same, but for a microsecond: either may win.
    #[cold]
    fn anchor(&self) {
        let (mut best, mut tick, mut time) = (u64::MAX, 0, 0);
        for _ in 0..4 {
            let before = self.counter.raw();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64);
            let took = self.counter.raw().wrapping_sub(before);
            if took < best {
                (best, tick, time) = (took, before.wrapping_add(took / 2), now);
            }
            // Longer than 5 us: something came between.
            if self.micros(took) < 5 {
                break;
            }
        }
        self.offset.store(time.wrapping_sub(self.micros(tick)), Ordering::Relaxed);
        self.anchored.store(tick, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
    }

    #[test]
    fn the_machines_clock_tells_the_systems_time() {
        let clock = Clock::system();
        let started = std::time::Instant::now();
        // Over some anchors.
        while started.elapsed().as_millis() < 350 {
            let (before, now, after) = (system(), clock.now(), system());
            let error = 20_000;
            assert!(before <= now + error && now <= after + error, "{before} {now} {after}");
        }
    }

    #[test]
    fn a_step_is_followed_once_the_anchor_is_old() {
        let machine = Machine::new();
        for wrong in [u64::MAX - 3_600_000_000, 0, 3_600_000_000] {
            // As if the system's time had been another when it was anchored, and the anchor were old, or the counter back.
            for age in [machine.valid + 1, 1 << 63] {
                machine.offset.fetch_add(wrong, Ordering::SeqCst);
                machine.anchored.store(machine.counter.raw().wrapping_sub(age), Ordering::SeqCst);
                assert!(machine.now().abs_diff(system()) < 1_000_000);
            }
        }
    }

    #[test]
    fn a_manual_clock_stands_still() {
        let clock = Clock::manual(5);
        assert_eq!((clock.now(), clock.now()), (5_000, 5_000));
        clock.advance(1);
        clock.clone().advance_micros(1);
        assert_eq!(clock.now(), 6_001);
    }
}
