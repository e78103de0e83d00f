//! The clients that are denied most among more of them than can be told apart.
//!
//! Space-Saving: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! ICDT 2005. With m counters and n denials no count is too low, and none is too high by more than n / m.

use std::collections::{BTreeSet, HashMap};

/// Number of clients that are followed.
const MAX_FOLLOWED: usize = 10_000;

/// A client that is followed.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    /// The client in words.
    pub(super) name: String,
    /// Requests since it is followed.
    pub(super) requests: u64,
    /// Denials at most.
    pub(super) denied: u64,
    /// How much `denied` may be too high.
    pub(super) error: u64,
    /// Times of the first denial since it is followed, and of the last.
    pub(super) between: (u64, u64),
}

/// The clients that are denied most.
#[derive(Debug, Default)]
pub(super) struct Heavy {
    clients: HashMap<u128, Followed>,
    /// Those clients, by their denials.
    order: BTreeSet<(u64, u128)>,
}

impl Heavy {
    /// Adds a request of a client. `describe` describes it.
    pub(super) fn add(&mut self, key: u128, is_denied: bool, now: u64, describe: impl FnOnce() -> String) {
        if let Some(client) = self.clients.get_mut(&key) {
            client.requests += 1;
            if is_denied {
                self.order.remove(&(client.denied, key));
                client.denied += 1;
                client.between.1 = now;
                self.order.insert((client.denied, key));
            }
            return;
        }
        if !is_denied {
            return;
        }
        // The one with the fewest denials makes room, and the new one may have had as many.
        let full = self.clients.len() >= MAX_FOLLOWED;
        let least = if full { self.order.pop_first() } else { None };
        let error = least.map_or(0, |(denied, other)| {
            self.clients.remove(&other);
            denied
        });
        let denied = error + 1;
        self.order.insert((denied, key));
        self.clients
            .insert(key, Followed { name: describe(), requests: 1, denied, error, between: (now, now) });
    }

    /// Returns the clients that have surely been denied more often than any client that is not followed may have been. The others
    /// may be there by chance.
    pub(super) fn certain(&self) -> impl Iterator<Item = &Followed> {
        let is_full = self.clients.len() >= MAX_FOLLOWED;
        let least = self.order.first().filter(|_| is_full).map_or(0, |(denied, _)| *denied);
        self.clients.values().filter(move |client| client.denied - client.error > least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attacker_is_found_among_half_a_million_others_and_no_count_is_too_low() {
        let mut heavy = Heavy::default();
        let attacks = 2_000u64;
        for n in 0..500_000u64 {
            heavy.add(u128::from(n) + 1, true, n, || n.to_string());
            if n.is_multiple_of(500_000 / attacks) {
                heavy.add(0, true, n, || "attacker".to_owned());
                heavy.add(0, false, n, || "attacker".to_owned());
            }
        }
        assert!(heavy.clients.len() == MAX_FOLLOWED && heavy.order.len() == MAX_FOLLOWED);
        let found: Vec<_> = heavy.certain().collect();
        assert_eq!(found.iter().map(|client| &*client.name).collect::<Vec<_>>(), ["attacker"]);
        let (low, high) = (found[0].denied - found[0].error, found[0].denied);
        assert!((low..=high).contains(&attacks), "{low} {high}");
        assert!(found[0].error <= (500_000 + attacks) / MAX_FOLLOWED as u64, "{}", found[0].error);
    }

    #[test]
    fn few_clients_are_counted_exactly() {
        let mut heavy = Heavy::default();
        (0..30u64).for_each(|n| heavy.add(u128::from(n % 3), n < 9, n, || (n % 3).to_string()));
        let mut found: Vec<_> = heavy.certain().map(|c| (&*c.name, c.requests, c.denied, c.error)).collect();
        found.sort_unstable();
        assert_eq!(found, [("0", 10, 3, 0), ("1", 10, 3, 0), ("2", 10, 3, 0)]);
    }
}
