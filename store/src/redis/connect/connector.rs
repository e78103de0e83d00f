//! Finds a server and connects to it. The servers of a cluster are known by their ids, so that no connection ends at a stranger: the
//! address of a server that is gone may belong to a server of another cluster by now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fault::FailureAt;
use super::open::try_open;
use super::sentinel::Sentinels;
use super::sentinel::watch::MasterWatch;
use super::target::Target;
use super::verification::{Connected, Verification, read_view};
use crate::fault_cause::FaultCause;

/// Finds the server that a worker uses, and connects to it.
pub(crate) enum Connector {
    /// Always the same server.
    Fixed(Arc<Target>),
    /// A master of a cluster, as long as it belongs to the cluster.
    Member(Arc<Target>, Members),
    /// The master that the sentinels report.
    Sentinels(Arc<Sentinels>),
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(target) | Self::Member(target, _) => f.write_str(&target.address),
            Self::Sentinels(sentinels) => write!(f, "the master {}", sentinels.name()),
        }
    }
}

impl Connector {
    /// Finds the server, connects to it, and verifies the connection. `last` is the address of the last server.
    pub(crate) async fn connect(
        &self,
        last: Option<&str>,
        verification: &Verification,
        failed: u32,
    ) -> Result<Connected, FailureAt> {
        match self {
            Self::Fixed(target) => {
                let connected = async {
                    let connection = try_open(target, failed).await?;
                    verification.verify(target.clone(), connection, failed).await
                };
                connected.await.map_err(|failure| FailureAt { address: target.address.clone(), failure })
            }
            Self::Member(target, members) => {
                let connected = async {
                    let mut connection = try_open(target, failed).await?;
                    let view = read_view(&mut connection, target, verification.budget).await?;
                    if !members.knows(&target.address, view.ids()) {
                        return Err(FaultCause::AnotherCluster.into());
                    }
                    verification.verify(target.clone(), connection, failed).await
                };
                connected.await.map_err(|failure| FailureAt { address: target.address.clone(), failure })
            }
            Self::Sentinels(sentinels) => sentinels.connect(last, verification, failed).await,
        }
    }

    /// Watches for a master that replaces the one in use, which only sentinels name.
    pub(crate) fn watch(&self, address: &str, verification: Verification) -> Option<MasterWatch> {
        match self {
            Self::Fixed(_) | Self::Member(..) => None,
            Self::Sentinels(sentinels) => {
                Some(MasterWatch::start(sentinels.clone(), address.to_owned(), verification))
            }
        }
    }
}

/// The servers of the map of hash slots in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members(Arc<Mutex<KnownMembers>>);

#[derive(Debug, Default)]
struct KnownMembers {
    /// The ids of the masters by their addresses.
    masters: BTreeMap<String, String>,
    /// The ids of all servers, replicas included.
    ids: BTreeSet<String>,
}

impl Members {
    /// Replaces all members.
    pub(crate) fn set(&self, masters: BTreeMap<String, String>, ids: BTreeSet<String>) {
        *self.known() = KnownMembers { masters, ids };
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

    fn known(&self) -> MutexGuard<'_, KnownMembers> {
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
