//! Who asks, and what it may name.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use sluice_engine::checks::CheckError;

use crate::callers::{Caller, Callers, NotPermitted, Sender};
use crate::checks::problem::Problem;
use crate::work::Whose;

/// Who asks. It is identified once for all checks of a body.
pub(super) struct Asker<'a> {
    whose: Whose,
    /// The caller with all that there are, if callers are checked.
    known: Option<(&'a Callers, Arc<Caller>)>,
}

impl<'a> Asker<'a> {
    /// Identifies a caller. Nobody else learns anything.
    pub(super) fn identify(
        callers: Option<&'a Callers>,
        sender: &Sender,
        headers: &HeaderMap,
    ) -> Result<Self, Problem> {
        let Some(callers) = callers else {
            return Ok(Self { whose: Whose::of(None, sender.peer.ip()), known: None });
        };
        let caller = callers.identify(&sender.names, headers).map_err(|refused| of_refusal(&refused))?;
        Ok(Self { whose: Whose::of(Some(&caller), sender.peer.ip()), known: Some((callers, caller)) })
    }

    /// Returns whose questions these are.
    pub(super) fn whose(&self) -> Whose {
        self.whose
    }

    /// Reports whether the caller may name a namespace.
    pub(super) fn may_name(&self, namespace: &str) -> bool {
        self.known.as_ref().is_none_or(|(callers, caller)| callers.check_namespace(caller, namespace).is_ok())
    }

    /// Fails if the caller may not name a policy, as if there were none: it must not learn what there is.
    pub(super) fn may_name_policy(&self, policy: &str) -> Result<(), Problem> {
        let namespace = policy.split_once('/').map_or(policy, |(namespace, _)| namespace);
        if self.may_name(namespace) {
            return Ok(());
        }
        let error = CheckError::Policy(policy.to_owned());
        Err(Problem::of_field("/policy", error.to_string()).with(StatusCode::NOT_FOUND))
    }
}

fn of_refusal(refused: &NotPermitted) -> Problem {
    let status = match refused {
        NotPermitted::Unidentified | NotPermitted::Token => StatusCode::UNAUTHORIZED,
        NotPermitted::WithoutKeys => StatusCode::SERVICE_UNAVAILABLE,
        NotPermitted::Unknown(_) | NotPermitted::Domain { .. } | NotPermitted::Namespace { .. } => {
            StatusCode::FORBIDDEN
        }
    };
    Problem::new(status, refused.to_string())
}
