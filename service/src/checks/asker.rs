//! Who asks, and what it may name.

use http::{HeaderMap, StatusCode};
use sluice_engine::checks::CheckError;

use crate::callers::{Callers, NotPermitted};
use crate::checks::problem::Problem;

/// Who asks.
pub(super) struct Asker<'a> {
    pub(super) callers: Option<&'a Callers>,
    pub(super) names: &'a [String],
    pub(super) headers: &'a HeaderMap,
}

impl Asker<'_> {
    /// Fails if the caller is not known. Nobody else learns anything.
    pub(super) fn identified(&self) -> Result<(), Problem> {
        match self.callers {
            Some(callers) => {
                callers.identify(self.names, self.headers).map_err(|refused| of_refusal(&refused))
            }
            None => Ok(()),
        }
    }

    /// Fails if the caller may not name a namespace: with a problem if it is not known, and else without one, because it must not
    /// learn what there is.
    pub(super) fn may_name(&self, namespace: &str) -> Result<(), Option<Problem>> {
        let Some(callers) = self.callers else { return Ok(()) };
        callers.check_namespace(self.names, self.headers, namespace).map_err(|refused| match refused {
            NotPermitted::Namespace { .. } => None,
            refused => Some(of_refusal(&refused)),
        })
    }

    pub(super) fn may_name_policy(&self, policy: &str) -> Result<(), Problem> {
        let namespace = policy.split_once('/').map_or(policy, |(namespace, _)| namespace);
        self.may_name(namespace).map_err(|hidden| {
            hidden.unwrap_or_else(|| {
                let error = CheckError::Policy(policy.to_owned());
                Problem::of_field("/policy", error.to_string()).with(StatusCode::NOT_FOUND)
            })
        })
    }
}

fn of_refusal(refused: &NotPermitted) -> Problem {
    let status = match refused {
        NotPermitted::Unidentified | NotPermitted::Token => StatusCode::UNAUTHORIZED,
        NotPermitted::Unknown(_) | NotPermitted::Domain { .. } | NotPermitted::Namespace { .. } => {
            StatusCode::FORBIDDEN
        }
    };
    Problem::new(status, refused.to_string())
}
