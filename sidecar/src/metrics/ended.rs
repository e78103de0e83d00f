//! Connections that the sidecar ends, and streams of HTTP/2 that it ends while their connections go on.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::labels::{ReasonLabels, begin_with_zero};

/// The reason why the sidecar ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EndReason {
    /// Another connection needs its place, and it has no request in flight.
    EvictedIdle = 1,
    /// Another connection needs its place, and it makes no progress.
    EvictedStalled,
    /// The memory for unread and unsent bytes has run out.
    Memory,
    /// The client has neither sent nor read a body for too long.
    BodyTimeout,
    /// An HTTP/2 connection had no request for too long.
    IdleTimeout,
    /// No bytes moved on an upgraded connection for too long.
    UpgradeTimeout,
}

impl EndReason {
    /// All reasons.
    pub(crate) const ALL: [Self; 6] = [
        Self::EvictedIdle,
        Self::EvictedStalled,
        Self::Memory,
        Self::BodyTimeout,
        Self::IdleTimeout,
        Self::UpgradeTimeout,
    ];

    /// Returns the value of the metric label `reason`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::EvictedIdle => "evicted_idle",
            Self::EvictedStalled => "evicted_stalled",
            Self::Memory => "memory",
            Self::BodyTimeout => "body_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::UpgradeTimeout => "upgrade_timeout",
        }
    }

    /// Reports whether the connection goes on after all if a request has arrived in the meantime.
    pub(crate) fn spares_requests(self) -> bool {
        match self {
            Self::EvictedIdle | Self::IdleTimeout => true,
            Self::EvictedStalled | Self::Memory | Self::BodyTimeout | Self::UpgradeTimeout => false,
        }
    }
}

/// Counts streams that were ended because their receiver did not read.
#[derive(Debug, Clone)]
pub(crate) struct EndedStreams(pub(super) Family<ReasonLabels, Counter>);

impl Default for EndedStreams {
    fn default() -> Self {
        let streams = Self(Family::default());
        begin_with_zero(&streams.0, [EndReason::Memory, EndReason::BodyTimeout].map(EndReason::label));
        streams
    }
}

impl EndedStreams {
    pub(crate) fn ended(&self, reason: EndReason, streams: usize) {
        if streams > 0 {
            self.0.get_or_create(&ReasonLabels { reason: reason.label() }).inc_by(streams as u64);
        }
    }
}
