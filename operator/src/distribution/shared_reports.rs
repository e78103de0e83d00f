//! The last reports of sidecars about policies and stores. The pods of a workload report the same, so equal reports are kept once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use sluice_config::message::{PolicyReport, StoreReport};

/// Number of different reports of a namespace that are looked through for an equal one. Further ones are kept as often as they come.
const MAX_DIFFERENT: usize = 8;

/// The last reports of a sidecar.
#[derive(Default, PartialEq)]
pub(super) struct Reports {
    /// The report about each policy, by its UID.
    pub(super) policies: HashMap<String, PolicyReport, RandomState>,
    /// The report about each store, by its name.
    pub(super) stores: BTreeMap<String, StoreReport>,
}

/// The last different reports by namespace, the newest first.
#[derive(Default)]
pub(super) struct SharedReports(HashMap<String, VecDeque<Weak<Reports>>>);

impl SharedReports {
    /// Returns equal reports of another sidecar of the namespace, or these.
    pub(super) fn share(&mut self, namespace: &str, reports: Reports) -> Arc<Reports> {
        let known = match self.0.get_mut(namespace) {
            Some(known) => known,
            None => self.0.entry(namespace.to_owned()).or_default(),
        };
        if let Some(equal) = known.iter().filter_map(Weak::upgrade).find(|known| **known == reports) {
            return equal;
        }
        let reports = Arc::new(reports);
        known.retain(|known| known.strong_count() > 0);
        known.truncate(MAX_DIFFERENT - 1);
        known.push_front(Arc::downgrade(&reports));
        reports
    }

    /// Forgets the reports of a namespace that has no sessions any more.
    pub(super) fn forget(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(policies: usize) -> Reports {
        let report = || PolicyReport::Nacked { hash: sluice_config::PolicyHash::of("p"), reason: "r".into() };
        let policies = (0..policies).map(|policy| (policy.to_string(), report())).collect();
        Reports { policies, stores: BTreeMap::new() }
    }

    #[test]
    fn equal_reports_of_a_namespace_are_kept_once_and_no_more_than_a_few_are_looked_through() {
        let mut shared = SharedReports::default();
        let first = shared.share("n", of(1));
        assert!(Arc::ptr_eq(&first, &shared.share("n", of(1))));
        assert!(!Arc::ptr_eq(&first, &shared.share("other", of(1))));
        let different: Vec<_> = (2..=MAX_DIFFERENT).map(|policies| shared.share("n", of(policies))).collect();
        assert!(Arc::ptr_eq(&first, &shared.share("n", of(1))));
        let one_more = shared.share("n", of(100));
        assert!(!Arc::ptr_eq(&first, &shared.share("n", of(1))), "the oldest one was forgotten");
        assert_eq!(shared.0["n"].len(), MAX_DIFFERENT);
        drop((first, different));
        let _ = shared.share("n", of(101));
        assert!(shared.0["n"].len() <= 3, "those of nobody are not kept");
        assert!(Arc::ptr_eq(&one_more, &shared.share("n", of(100))));
        shared.forget("n");
        assert_eq!(shared.0.len(), 1);
    }
}
