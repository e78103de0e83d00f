//! The memory store's time: microseconds since the Unix epoch, because windows are aligned to the epoch.
//!
//! Reading the system's time takes longer than a check. The machine's clock therefore reads the processor's
//! tick counter and anchors it to the system's time whenever the anchor is older than 100 ms. A step of the
//! system's time shows after 100 ms at the latest. Time only moves forward between two anchors. At an anchor
//! it may move back, by the error of the tick counter over 100 ms (a microsecond or two) or by the step
//! itself. The algorithms tolerate both: time never runs backwards for a counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's clock, or a manual one for tests.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::new);

impl Clock {
    /// The machine's clock. The first reading in a process calibrates the tick counter, which takes a
    /// millisecond, or up to 200 on a busy machine.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that shows `millis` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn manual(millis: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(millis * 1000))))
    }

    /// Advances a manual clock. Has no effect on the machine's clock.
    pub fn advance(&self, millis: u64) {
        self.advance_micros(millis * 1000);
    }

    /// Advances a manual clock by microseconds.
    pub fn advance_micros(&self, micros: u64) {
        if let Some(clock) = &self.0 {
            clock.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.0 {
            None => MACHINE.now(),
            Some(clock) => clock.load(Ordering::SeqCst),
        }
    }
}

/// The processor's tick counter and its offset from the system's time.
#[derive(Debug)]
struct Machine {
    counter: quanta::Clock,
    /// Microseconds per 2^64 ticks.
    scale: u64,
    /// Maximum age of an anchor, in ticks.
    valid: u64,
    /// Tick at which `offset` was measured.
    anchored: AtomicU64,
    /// System time minus tick counter time, in microseconds, modulo 2^64.
    offset: AtomicU64,
}

impl Machine {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << 40).max(1);
        // With about one tick per nanosecond the scale is near 2^64 / 1000. It fits for any counter above 1
        // MHz.
        let scale = ((u128::from(nanos) << 24) / 1000).min(u128::from(u64::MAX)) as u64;
        let valid = ((100_000 << 64) / u128::from(scale)) as u64;
        let machine = Self { counter, scale, valid, anchored: AtomicU64::new(0), offset: AtomicU64::new(0) };
        machine.anchor();
        machine
    }

    #[inline]
    fn now(&self) -> u64 {
        let tick = self.counter.raw();
        // If the counter went back, the difference wraps and is large as well.
        if tick.wrapping_sub(self.anchored.load(Ordering::Relaxed)) > self.valid {
            self.anchor();
        }
        self.micros(tick).wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[inline]
    fn micros(&self, tick: u64) -> u64 {
        ((u128::from(tick) * u128::from(self.scale)) >> 64) as u64
    }

    /// Concurrent callers measure the same offset, give or take a microsecond, so either result may be kept.
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
            // A reading that took longer than 5 us was interrupted.
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
    fn the_machine_clock_follows_the_system_time() {
        let clock = Clock::system();
        let started = std::time::Instant::now();
        // Long enough for several anchors.
        while started.elapsed().as_millis() < 350 {
            let (before, now, after) = (system(), clock.now(), system());
            let error = 20_000;
            assert!(before <= now + error && now <= after + error, "{before} {now} {after}");
        }
    }

    #[test]
    fn a_step_of_the_system_time_shows_once_the_anchor_is_old() {
        let machine = Machine::new();
        for wrong in [u64::MAX - 3_600_000_000, 0, 3_600_000_000] {
            // Simulates an anchor with a wrong offset that is too old, and a tick counter that went back.
            for age in [machine.valid + 1, 1 << 63] {
                machine.offset.fetch_add(wrong, Ordering::SeqCst);
                machine.anchored.store(machine.counter.raw().wrapping_sub(age), Ordering::SeqCst);
                assert!(machine.now().abs_diff(system()) < 1_000_000);
            }
        }
    }

    #[test]
    fn a_manual_clock_moves_only_when_it_is_advanced() {
        let clock = Clock::manual(5);
        assert_eq!((clock.now(), clock.now()), (5_000, 5_000));
        clock.advance(1);
        clock.clone().advance_micros(1);
        assert_eq!(clock.now(), 6_001);
    }
}
