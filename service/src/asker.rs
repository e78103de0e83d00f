//! Who asks, and what it may name.

use std::sync::Arc;

use http::HeaderMap;

use crate::callers::{Caller, Callers, NotPermitted, Sender};
use crate::work::Whose;

/// Who asks. It is identified once for all questions of a call.
pub(crate) struct Asker<'a> {
    whose: Whose,
    /// The caller with all that there are, if callers are checked.
    known: Option<(&'a Callers, Arc<Caller>)>,
}

impl<'a> Asker<'a> {
    /// Identifies a caller. Nobody else learns anything.
    pub(crate) fn identify(
        callers: Option<&'a Callers>,
        sender: &Sender,
        headers: &HeaderMap,
    ) -> Result<Self, NotPermitted> {
        let Some(callers) = callers else {
            return Ok(Self { whose: Whose::of(None, sender.peer.ip()), known: None });
        };
        let caller = callers.identify(&sender.names, headers)?;
        Ok(Self { whose: Whose::of(Some(&caller), sender.peer.ip()), known: Some((callers, caller)) })
    }

    /// Returns whose questions these are.
    pub(crate) fn whose(&self) -> Whose {
        self.whose
    }

    /// Reports whether the caller may name a namespace.
    pub(crate) fn may_name(&self, namespace: &str) -> bool {
        self.known.as_ref().is_none_or(|(callers, caller)| callers.check_namespace(caller, namespace).is_ok())
    }

    /// Returns the namespace of a caller that may name one alone.
    pub(crate) fn only_namespace(&self) -> Option<&str> {
        self.known.as_ref().and_then(|(_, caller)| caller.only_namespace())
    }
}
