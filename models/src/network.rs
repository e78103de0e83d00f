//! Messages under way. Any of them may arrive next, so they overtake each other and are late for any time.

/// Messages under way, in an order that does not depend on that in which they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Network<M>(Vec<M>);

impl<M> Default for Network<M> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<M: Ord + Clone> Network<M> {
    /// Sends a message.
    pub fn send(&mut self, message: M) {
        let at = self.0.partition_point(|other| *other < message);
        self.0.insert(at, message);
    }

    /// Takes a message, which arrives or is lost.
    pub fn take(&mut self, at: usize) -> M {
        self.0.remove(at)
    }

    /// Returns the messages, each of several equal ones once, with its position.
    pub fn messages(&self) -> impl Iterator<Item = (usize, &M)> {
        self.0.iter().enumerate().filter(|(at, message)| *at == 0 || self.0[at - 1] != **message)
    }

    /// Keeps only some messages.
    pub fn retain(&mut self, keep: impl FnMut(&M) -> bool) {
        self.0.retain(keep);
    }

    /// Changes every message.
    pub fn map(&mut self, change: impl FnMut(M) -> M) {
        self.0 = std::mem::take(&mut self.0).into_iter().map(change).collect();
        self.0.sort();
    }

    /// Reports whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
