//! Values that all workers of a store share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::metrics::MetricsRecorder;
use super::write::ScriptCall;
use crate::redis::connect::Redirect;
use crate::redis::script::{KeyNames, Scripts};

/// Values that all workers of a store share.
#[derive(Clone)]
pub(crate) struct PipelineSettings {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNames,
    /// A key that calls without an operation name. A cluster's servers do not have it, and managed users may not use it.
    pub(crate) probe_key: Option<Arc<str>>,
    pub(crate) budget: Duration,
    pub(crate) metrics: Arc<MetricsRecorder>,
    /// Handles redirections; `None` outside of a cluster.
    pub(crate) redirects: Option<Weak<dyn RedirectHandler>>,
}

impl PipelineSettings {
    /// Returns the cluster that handles redirections, if there is one.
    pub(super) fn redirect_handler(&self) -> Option<Arc<dyn RedirectHandler>> {
        self.redirects.as_ref().and_then(Weak::upgrade)
    }
}

/// A cluster, as the workers of its servers see it.
pub(crate) trait RedirectHandler: Send + Sync {
    /// Reads the cluster's hash slots again soon, because a server has failed.
    fn refresh_soon(&self);

    /// Sends a call again that the server at `from` redirected, and that had no effect there.
    fn redirect(self: Arc<Self>, redirect: Redirect, from: &str, call: ScriptCall);
}
