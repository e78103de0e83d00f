//! The cause of a store fault, as precisely as the store's answer tells.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::StoreFault;

/// The cause of a store fault. Status conditions name it, so that its reader knows what to mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultCause {
    /// The host name has no address.
    NameNotResolved,
    /// The server's machine answers, but nothing listens on the port.
    ConnectionRefused,
    /// Nothing answers at the address.
    NoRoute,
    /// The connection ended.
    ConnectionLost,
    /// The server reads its data from disk.
    Loading,
    /// The cluster does not serve all of its hash slots, or a replica has lost its master.
    ClusterDown,
    /// The server at this address belongs to another cluster, or has left its own.
    AnotherCluster,
    /// The server has as many connections as it accepts.
    TooManyClients,
    /// Replies take longer than the latency budget.
    Slow,
    /// The server runs a script that does not end.
    Busy,
    /// The user or its password is wrong or missing.
    AuthenticationFailed,
    /// The user lacks a right.
    NotPermitted,
    /// The server's certificate is not valid for this client: of an unknown authority, for another name, or expired.
    CertificateNotTrusted,
    /// The server rejects the client's certificate, or misses one.
    ClientCertificateRejected,
    /// The two sides do not agree about TLS.
    TlsFailed,
    /// The server accepts connections, but does not answer in TLS.
    TlsSilent,
    /// The server is a replica.
    ReadOnlyReplica,
    /// The server has reached its maxmemory.
    MemoryFull,
    /// The server cannot save its data, or has too few replicas, and accepts no writes.
    WritesDisabled,
    /// The server does not know a command that Redis has since version 6.2, or 7.0 for managed access, or has another name
    /// for it.
    UnsupportedVersion,
    /// The server has only some of the keys, or is a proxy that spreads them.
    SeveralShards,
    /// A proxy spreads keys with the same hash tag over several servers.
    TagsSpread,
    /// The server of a cluster's URL is no part of a cluster.
    NotACluster,
    /// The server of a Sentinel URL is not a Sentinel.
    NotASentinel,
    /// The server has no database of this number.
    NoSuchDatabase,
    /// The server lacks the function library of Sluice.
    FunctionMissing,
    /// The reply does not fit the request.
    InvalidReply,
    /// A key holds a value that is not a counter.
    WrongType,
    /// A cause that a later version distinguishes.
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

impl fmt::Display for FaultCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NameNotResolved => "its host name has no address",
            Self::ConnectionRefused => "nothing listens there",
            Self::NoRoute => "nothing answers at its address",
            Self::ConnectionLost => "the connection ended",
            Self::Loading => "it is reading its data from disk",
            Self::ClusterDown => "the cluster does not serve all of its hash slots",
            Self::AnotherCluster => "it belongs to another cluster, or has left its own",
            Self::TooManyClients => "it has as many clients as it accepts",
            Self::Slow => "its replies take longer than the latency budget",
            Self::Busy => "it runs a script that does not end",
            Self::AuthenticationFailed => "the user or its password is wrong or missing",
            Self::NotPermitted => "its user lacks a right",
            Self::CertificateNotTrusted => {
                "its certificate is not trusted: of an unknown authority, for another name, or expired"
            }
            Self::ClientCertificateRejected => "it rejects the client's certificate, or requires one",
            Self::TlsSilent => "it accepts connections, but the TLS handshake does not end: it may not use TLS",
            Self::TlsFailed => "the TLS handshake failed: one side may not use TLS",
            Self::ReadOnlyReplica => "it is a read-only replica",
            Self::MemoryFull => "it has reached its maxmemory",
            Self::WritesDisabled => {
                "it accepts no writes, because it cannot save its data or has too few replicas"
            }
            Self::NoSuchDatabase => "it has no database of this number",
            Self::NotASentinel => "it is not a Sentinel: use a URL that begins with redis:// or rediss://",
            Self::TagsSpread => {
                "it is a proxy that spreads keys with the same hash tag: set enable_hashtagging in Envoy, with lb_policy RING_HASH or \
                 MAGLEV, or hash_tag in twemproxy"
            }
            Self::NotACluster => "it is no part of a cluster: use a URL that begins with redis:// or rediss://",
            Self::SeveralShards => {
                "it has only some of the keys, or spreads them over several shards: use a URL that begins with \
                 redis+cluster://, or partitions: 1 if it is a proxy"
            },
            Self::UnsupportedVersion => {
                "it does not know a command: it is older than Redis 6.2, or 7.0 for managed access, or its commands are renamed"
            }
            Self::FunctionMissing => "it lacks the function library of Sluice",
            Self::InvalidReply => "its replies are invalid",
            Self::WrongType => "a key holds a value that is not a counter",
            Self::Unknown => "the cause is unknown",
        })
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
    }
}
