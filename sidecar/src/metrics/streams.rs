//! Streams of HTTP/2 that the sidecar ends while their connections go on.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::inbound::table::activity::EndReason;
use crate::metrics::labels::{ReasonLabels, begin_with_zero};

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
