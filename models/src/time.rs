//! Instants of a model, and clocks that differ in speed.

/// Store time at which models begin, in microseconds. Windows of every usual length begin there.
pub const START: u64 = 1_699_920_000_000_000;

/// Returns what a clock of this speed, in thousandths, shows after `micros` microseconds.
#[must_use]
pub fn shown(micros: u64, speed: u64) -> u64 {
    micros * speed / 1000
}

/// The instants of a model: some in each window, the same in all.
#[derive(Debug, Clone)]
pub struct Instants {
    /// Length of a window, in microseconds.
    pub window: u64,
    /// Instants within a window, in microseconds from its beginning.
    pub within: Vec<u64>,
    /// Number of windows.
    pub windows: usize,
}

impl Instants {
    /// Returns the number of instants.
    #[must_use]
    pub fn count(&self) -> usize {
        self.within.len() * self.windows
    }

    /// Returns an instant, in microseconds from [`START`].
    #[must_use]
    pub fn at(&self, step: usize) -> u64 {
        let (window, within) = (step / self.within.len(), step % self.within.len());
        window as u64 * self.window + self.within[within]
    }

    /// Returns the window, of this length in microseconds, in which an instant lies.
    #[must_use]
    pub fn window_of(&self, step: usize, length: u64) -> u64 {
        self.at(step) / length
    }
}
