//! Finds a server and connects to it.

use std::fmt;
use std::sync::Arc;

use super::fault::FailureAt;
use super::members::Members;
use super::open::try_open;
use super::probe::read_view;
use super::sentinel::Sentinels;
use super::sentinel::watch::MasterWatch;
use super::target::Target;
use super::verification::{Connected, Verification};
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
