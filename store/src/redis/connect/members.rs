//! The servers of a cluster by their ids, so that no connection ends at a stranger: the address of a server that is gone may
//! belong to a server of another cluster by now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The servers of the map of hash slots in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The ids of the masters by their addresses.
    masters: BTreeMap<String, String>,
    /// The ids of all servers, replicas included.
    ids: BTreeSet<String>,
}

impl Members {
    /// Replaces all members.
    pub(crate) fn set(&self, masters: BTreeMap<String, String>, ids: BTreeSet<String>) {
        *self.known() = Known { masters, ids };
    }

    /// Returns the id of the master at an address.
    pub(crate) fn id(&self, address: &str) -> Option<String> {
        self.known().masters.get(address).cloned()
    }

    /// Returns the ids of all servers.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.known().ids.clone()
    }

    /// Reports whether a server at this address belongs to the cluster, from the ids of the servers that it knows. A server
    /// keeps its id when it leaves the cluster, so that it knows itself proves something only if there is no other one.
    pub(crate) fn knows(&self, address: &str, ids: &BTreeSet<String>) -> bool {
        let known = self.known();
        let own = known.masters.get(address);
        let mut others = known.ids.iter().filter(|id| Some(*id) != own).peekable();
        match (own, others.peek()) {
            (None, None) => true,
            (Some(own), None) => ids.contains(own),
            (_, Some(_)) => others.any(|id| ids.contains(id)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn a_member_knows_other_members() {
        let members = Members::default();
        assert!(members.knows("a:1", &ids(&["x"])), "nothing is known");
        let masters = [("a:1".to_owned(), "A".to_owned()), ("b:1".to_owned(), "B".to_owned())];
        members.set(masters.clone().into(), ids(&["A", "B", "R"]));
        for (address, known, is_member) in [
            ("a:1", &["A", "B"][..], true),
            ("a:1", &["B"], true),
            ("b:1", &["B", "R"], true),
            // It has left, and is a cluster of its own.
            ("a:1", &["A"], false),
            ("a:1", &["X", "Y"], false),
            ("a:1", &[], false),
            // A new server of the cluster, and a stranger.
            ("c:1", &["C", "A"], true),
            ("c:1", &["C"], false),
        ] {
            assert_eq!(members.knows(address, &ids(known)), is_member, "{address} {known:?}");
        }
        let [single, _] = masters;
        members.set([single].into(), ids(&["A"]));
        assert!(members.knows("a:1", &ids(&["A"])) && !members.knows("a:1", &ids(&["X"])));
    }
}
