//! The block of quota of one lease.

use crate::plan::lease_terms::ChargedWindow;

/// Quota that the store has granted to this process and that is not used yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Block {
    left: u64,
    /// Size of the grant that arrived last.
    size: u64,
    /// Time at which the block expires, by this process's clock. By the store's clock its window ends later.
    expires: u64,
    /// End of the window that was charged, by the store's clock. Grants from one window can be merged.
    window_end: u64,
    /// Instant of the store's clock that identifies the charge.
    charged_at: u64,
    /// Instant of the oldest charge that is in the block.
    // Rule: lease.forgets-reset.
    charged_since: u64,
}

impl Block {
    /// Returns the quota that is left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Returns the size of the grant that arrived last.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the time at which the block expires, by this process's clock.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// Returns the end of the window that was charged, by the store's clock.
    #[must_use]
    pub fn window_end(&self) -> u64 {
        self.window_end
    }

    /// Returns the instant of the store's clock that identifies the charge.
    #[must_use]
    pub fn charged_at(&self) -> u64 {
        self.charged_at
    }

    /// Returns the instant of the store's clock of the oldest charge that is in the block.
    #[must_use]
    pub fn charged_since(&self) -> u64 {
        self.charged_since
    }

    /// Empties the block if it has expired, and returns the quota that is lost thereby.
    pub fn expire(&mut self, now: u64) -> Option<u64> {
        // Rule: lease.ends-with-window.
        (self.left > 0 && now >= self.expires).then(|| std::mem::take(&mut self.left))
    }

    /// Removes quota. The caller has checked that it is there.
    pub fn remove(&mut self, amount: u64) {
        self.left -= amount;
    }

    /// Returns quota that a request reserved from the block of `window_end`, unless that block has expired.
    pub fn put_back(&mut self, amount: u64, window_end: u64, now: u64) {
        // Rule: lease.put-back-in-window.
        if self.window_end == window_end && now < self.expires {
            self.left += amount;
        }
    }

    /// Adds a grant, for which the call was sent at `sent`. Returns the quota that is lost because the grant
    /// replaces a block of another window.
    pub fn add(&mut self, granted: u64, charged_at: u64, window: ChargedWindow, sent: u64) -> u64 {
        // The store decided after `sent`, so the window ends later than this. The margin covers clocks that
        // differ in speed by a thousandth.
        // Rule: lease.margin.
        let expires = sent + (window.usable_for - window.usable_for.div_ceil(1000));
        (self.charged_at, self.size) = (charged_at, granted);
        if window.end == self.window_end && self.left > 0 {
            self.left += granted;
            self.expires = self.expires.max(expires);
            0
        } else {
            (self.window_end, self.expires, self.charged_since) = (window.end, expires, charged_at);
            std::mem::replace(&mut self.left, granted)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_ends_before_its_window_by_a_clock_that_is_slower_by_a_thousandth(
            sent in 0u64..1 << 40, usable_for in 1u64..1 << 45,
        ) {
            let shown = |micros: u64| micros - micros.div_ceil(1000);
            let mut block = Block::default();
            block.add(5, 1, ChargedWindow { end: 2, usable_for }, shown(sent));
            prop_assert!(block.expires() <= shown(sent + usable_for));
        }
    }
}
