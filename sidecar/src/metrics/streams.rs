//! Streams of HTTP/2 that the sidecar ends while their connections go on.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::inbound::table::activity::EndReason;
use crate::metrics::labels::ReasonLabels;

/// Counts streams that were ended because their receiver did not read.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndedStreams(pub(super) Family<ReasonLabels, Counter>);

impl EndedStreams {
    pub(crate) fn ended(&self, reason: EndReason, streams: usize) {
        if streams > 0 {
            self.0.get_or_create(&ReasonLabels { reason: reason.label() }).inc_by(streams as u64);
        }
    }
}
