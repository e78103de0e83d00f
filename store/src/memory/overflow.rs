//! A check of which several counters have become one, as there was room for none of their keys: that one is charged with
//! what all of them cost, and each is told what it says.

use super::entry::Id;
use crate::check::{CheckResponse, Counter};

/// Such a check.
pub(super) struct Shared {
    pub(super) check: Vec<Counter>,
    pub(super) ids: Vec<Id>,
    /// Of each counter, where in `check` it is now.
    places: Vec<usize>,
}

impl Shared {
    /// `None` if no two counters have the same id.
    pub(super) fn of(check: &[Counter], ids: &[Id]) -> Option<Self> {
        let first = |id: &Id| ids.iter().position(|other| other == id);
        if ids.iter().enumerate().all(|(n, id)| first(id) == Some(n)) {
            return None;
        }
        let mut shared = Self { check: Vec::new(), ids: Vec::new(), places: Vec::new() };
        for (counter, id) in check.iter().zip(ids) {
            if let Some(place) = shared.ids.iter().position(|other| other == id) {
                shared.check[place].cost = shared.check[place].cost.saturating_add(counter.cost);
                shared.places.push(place);
            } else {
                shared.places.push(shared.ids.len());
                shared.check.push(counter.clone());
                shared.ids.push(*id);
            }
        }
        Some(shared)
    }

    /// The answer to the check as it was.
    pub(super) fn answer(&self, answer: &CheckResponse) -> CheckResponse {
        let rates = |place: usize| self.check[place].limit.rates.len();
        let decisions = self.places.iter().flat_map(|&place| {
            let begin: usize = (0..place).map(rates).sum();
            answer.decisions.iter().skip(begin).take(rates(place)).copied()
        });
        CheckResponse { decisions: decisions.collect(), ..*answer }
    }
}
