//! Requests that somebody else forwards: a gateway, or an application, shows the head, and names the policies that it asks about.

use std::time::{Duration, Instant};

use sluice_config::policy::AmbiguousPaths;
use sluice_config::{RequestAttributes, path};

use crate::answer::Answer;
use crate::engine::Engine;
use crate::limit::decide::decide;
use crate::limit::query::{Query, View};
use crate::limit::snapshot::Snapshot;
use crate::limit::verdict::{Reason, Verdict};

/// The policies that a request is checked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policies<'a> {
    /// All that there are.
    All,
    /// Those of a namespace.
    Namespace(&'a str),
    /// The one with this `NAMESPACE/NAME`.
    Named(&'a str),
}

/// The reason why a request is not checked by the policies that were named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotChecked {
    /// No policies have been received yet.
    #[error("no policies have been received yet")]
    NoPolicies,
    /// There is no such policy, or it is none of the caller's.
    #[error(
        "there is no policy {0:?} that you may ask about: name one as NAMESPACE/NAME that has Service in spec.enforcedBy"
    )]
    Policy(String),
    /// The path can be read in several ways, and a policy refuses such paths.
    #[error("the path can be read in several ways, and a policy refuses such paths")]
    AmbiguousPath,
}

impl Snapshot {
    /// Matches a request against the policies that were named.
    pub(crate) fn find_among<'r>(
        &self,
        view: View,
        policies: Policies<'_>,
        request: &impl Fn() -> RequestAttributes<'r>,
    ) -> Result<Query, NotChecked> {
        if self.denies_all {
            return Err(NotChecked::NoPolicies);
        }
        let one = match policies {
            Policies::Named(name) => {
                Some(self.by_name(name).ok_or_else(|| NotChecked::Policy(name.to_owned()))?)
            }
            Policies::All | Policies::Namespace(_) => None,
        };
        let prepared = |position: u16| &self.policies[usize::from(position)].prepared;
        let applies = |position: u16| match policies {
            Policies::All => true,
            Policies::Named(_) => Some(position) == one,
            Policies::Namespace(namespace) => prepared(position).namespace == namespace,
        };
        let refuses =
            |position: u16| applies(position) && prepared(position).ambiguous_paths == AmbiguousPaths::Reject;
        if self.rejects_ambiguous_paths
            && path::is_ambiguous(request().uri.path())
            && (0..).take(self.policies.len()).any(refuses)
        {
            return Err(NotChecked::AmbiguousPath);
        }
        Ok(Query::find_among(self, view, applies, request))
    }
}

impl Engine {
    /// Decides a request whose gateway waits for the answer before it forwards it. `turn` waits until so many counters may be asked, and
    /// returns what is held meanwhile, and the time that all calls to the store may take together. The answer holds nothing: limits
    /// that need more than the head are left to sidecars, or deny.
    ///
    /// # Errors
    /// The request is not checked by these policies.
    pub async fn decide_head<'r, T>(
        &self,
        policies: Policies<'_>,
        turn: impl AsyncFnOnce(usize) -> (T, Duration),
        request: impl Fn() -> RequestAttributes<'r>,
    ) -> Result<Answer, NotChecked> {
        let snapshot = self.publisher().current();
        let mut query = snapshot.find_among(View::Head, policies, &request)?;
        let verdict = match query.undecidable {
            Some(limit) => Verdict::denied(snapshot, Reason::Undecidable(limit)),
            None => {
                let (_turn, budget) = turn(query.counters().max(1)).await;
                query.deadline = Some(tokio::time::Instant::now() + budget);
                decide(snapshot, &mut query, self.publisher().slots()).await
            }
        };
        Ok(self.answer(verdict, Instant::now(), false, &request))
    }
}
