//! The cause of a store fault, as precisely as the store's answer tells.

use serde::{Deserialize, Serialize};

use crate::failure::StoreFault;

/// The cause of a store fault. Status conditions name it, so that its reader knows what to mend.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, thiserror::Error,
)]
#[serde(rename_all = "camelCase")]
pub enum FaultCause {
    /// The host name has no address.
    #[error("its host name has no address")]
    NameNotResolved,
    /// The server's machine answers, but nothing listens on the port.
    #[error("nothing listens there")]
    ConnectionRefused,
    /// Nothing answers at the address.
    #[error("nothing answers at its address")]
    NoRoute,
    /// The connection ended.
    #[error("the connection ended")]
    ConnectionLost,
    /// The server reads its data from disk.
    #[error("it is reading its data from disk")]
    Loading,
    /// The cluster does not serve all of its hash slots, or a replica has lost its master.
    #[error("the cluster does not serve all of its hash slots")]
    ClusterDown,
    /// The server at this address belongs to another cluster, or has left its own.
    #[error("it belongs to another cluster, or has left its own")]
    AnotherCluster,
    /// The server has as many connections as it accepts.
    #[error("it has as many clients as it accepts")]
    TooManyClients,
    /// Replies take longer than the latency budget.
    #[error("its replies take longer than the latency budget")]
    Slow,
    /// The server runs a script that does not end.
    #[error("it runs a script that does not end")]
    Busy,
    /// The user or its password is wrong or missing.
    #[error("the user or its password is wrong or missing")]
    AuthenticationFailed,
    /// The user lacks a right.
    #[error("its user lacks a right")]
    NotPermitted,
    /// The server's certificate is not valid for this client: of an unknown authority, for another name, or expired.
    #[error("its certificate is not trusted: of an unknown authority, for another name, or expired")]
    CertificateNotTrusted,
    /// The server rejects the client's certificate, or misses one.
    #[error("it rejects the client's certificate, or requires one")]
    ClientCertificateRejected,
    /// The two sides do not agree about TLS.
    #[error("the TLS handshake failed: one side may not use TLS")]
    TlsFailed,
    /// The server accepts connections, but does not answer in TLS.
    #[error("it accepts connections, but the TLS handshake does not end: it may not use TLS")]
    TlsSilent,
    /// The server is a replica.
    #[error("it is a read-only replica")]
    ReadOnlyReplica,
    /// The server has reached its maxmemory.
    #[error("it has reached its maxmemory")]
    MemoryFull,
    /// The server cannot save its data, or has too few replicas, and accepts no writes.
    #[error("it accepts no writes, because it cannot save its data or has too few replicas")]
    WritesDisabled,
    /// The server does not know a command that Redis has since version 6.2, or 7.0 for managed access, or has another name
    /// for it.
    #[error(
        "it does not know a command: it is older than Redis 6.2, or 7.0 for managed access, or its commands are renamed"
    )]
    UnsupportedVersion,
    /// The server has only some of the keys, or is a proxy that spreads them.
    #[error(
        "it has only some of the keys, or spreads them over several shards: use a URL that begins with redis+cluster://, or \
             partitions: 1 if it is a proxy"
    )]
    SeveralShards,
    /// A proxy spreads keys with the same hash tag over several servers.
    #[error(
        "it is a proxy that spreads keys with the same hash tag: set enable_hashtagging in Envoy, with lb_policy RING_HASH \
             or MAGLEV, or hash_tag in twemproxy"
    )]
    TagsSpread,
    /// The server of a cluster's URL is no part of a cluster.
    #[error("it is no part of a cluster: use a URL that begins with redis:// or rediss://")]
    NotACluster,
    /// The server of a Sentinel URL is not a Sentinel.
    #[error("it is not a Sentinel: use a URL that begins with redis:// or rediss://")]
    NotASentinel,
    /// The server has no database of this number.
    #[error("it has no database of this number")]
    NoSuchDatabase,
    /// The server lacks the function library of Sluice.
    #[error("it lacks the function library of Sluice")]
    FunctionMissing,
    /// The reply does not fit the request.
    #[error("its replies are invalid")]
    InvalidReply,
    /// A key holds a value that is not a counter.
    #[error("a key holds a value that is not a counter")]
    WrongType,
    /// A cause that a later version distinguishes.
    #[error("the cause is unknown")]
    #[serde(other)]
    Unknown,
}

impl FaultCause {
    /// Every cause.
    pub(crate) const ALL: [Self; 29] = [
        Self::NameNotResolved,
        Self::ConnectionRefused,
        Self::NoRoute,
        Self::ConnectionLost,
        Self::Loading,
        Self::ClusterDown,
        Self::AnotherCluster,
        Self::TooManyClients,
        Self::Slow,
        Self::Busy,
        Self::AuthenticationFailed,
        Self::NotPermitted,
        Self::CertificateNotTrusted,
        Self::ClientCertificateRejected,
        Self::TlsFailed,
        Self::TlsSilent,
        Self::ReadOnlyReplica,
        Self::MemoryFull,
        Self::WritesDisabled,
        Self::UnsupportedVersion,
        Self::SeveralShards,
        Self::TagsSpread,
        Self::NotACluster,
        Self::NotASentinel,
        Self::NoSuchDatabase,
        Self::FunctionMissing,
        Self::InvalidReply,
        Self::WrongType,
        Self::Unknown,
    ];

    /// Returns the kind of fault.
    #[must_use]
    pub fn fault(self) -> StoreFault {
        match self {
            Self::NameNotResolved
            | Self::ConnectionRefused
            | Self::NoRoute
            | Self::ConnectionLost
            | Self::Loading
            | Self::ClusterDown
            | Self::AnotherCluster
            | Self::TooManyClients
            | Self::TlsSilent
            | Self::Unknown => StoreFault::Unreachable,
            Self::Slow | Self::Busy => StoreFault::Slow,
            Self::AuthenticationFailed
            | Self::NotPermitted
            | Self::CertificateNotTrusted
            | Self::ClientCertificateRejected
            | Self::TlsFailed => StoreFault::Refused,
            Self::ReadOnlyReplica | Self::MemoryFull | Self::WritesDisabled => StoreFault::ReadOnly,
            Self::UnsupportedVersion
            | Self::SeveralShards
            | Self::TagsSpread
            | Self::NotACluster
            | Self::NotASentinel
            | Self::NoSuchDatabase
            | Self::FunctionMissing
            | Self::InvalidReply => StoreFault::Nonsense,
            Self::WrongType => StoreFault::WrongType,
        }
    }

    /// Returns the more specific of two causes: the fault of a server that answers, and else the later one.
    pub(crate) fn or_more_specific(self, other: Self) -> Self {
        if self.is_silence() || !other.is_silence() { other } else { self }
    }

    /// Reports whether the server did not answer at all.
    fn is_silence(self) -> bool {
        matches!(self, Self::NameNotResolved | Self::ConnectionRefused | Self::NoRoute | Self::ConnectionLost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_listed_once_and_has_a_form_on_the_wire() {
        for (at, cause) in FaultCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            let json = serde_json::to_string(&cause).unwrap();
            assert_eq!(serde_json::from_str::<FaultCause>(&json).unwrap(), cause);
        }
        assert_eq!(serde_json::from_str::<FaultCause>("\"later\"").unwrap(), FaultCause::Unknown);
        assert_eq!(serde_json::from_str::<StoreFault>("\"later\"").unwrap(), StoreFault::Unknown);
    }
}
