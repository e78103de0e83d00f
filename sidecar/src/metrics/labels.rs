//! The labels of metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The release of the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: &'static str,
}

/// The reason for an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: &'static str,
}

/// Lets a counter for each reason begin with 0: Prometheus does not see the first increase of a counter that appears with it.
pub(super) fn begin_with_zero(
    counters: &Family<ReasonLabels, Counter>,
    reasons: impl IntoIterator<Item = &'static str>,
) {
    for reason in reasons {
        drop(counters.get_or_create(&ReasonLabels { reason }));
    }
}
