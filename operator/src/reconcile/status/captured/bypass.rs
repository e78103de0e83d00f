//! A route that the condition reports.

use sluice_crds::conditions::reasons;

/// The kind of a [`Bypass`], which becomes the reason of the condition. The first kind is reported first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Service,
    Pod,
    NetworkPolicy,
}

impl Kind {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Service => reasons::BYPASSED_BY_SERVICE,
            Self::Pod => reasons::BYPASSED_BY_POD,
            Self::NetworkPolicy => reasons::BLOCKED_BY_NETWORK_POLICY,
        }
    }
}

/// A route that bypasses the sidecars or that is blocked before them. Ordered as they are reported.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bypass {
    pub(super) kind: Kind,
    /// Sentences that name the objects and what to do.
    pub(super) text: String,
}
