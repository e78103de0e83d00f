//! Which limits are about a request, and whose request it is: the question to the store.

use std::net::IpAddr;

use http::Request;
use sluice_config::key::Identity;
use sluice_config::policy::Mode;
use sluice_store::KeyHash;
use smallvec::SmallVec;

use crate::config::snapshot::{LimitAt, Snapshot};
use crate::limit::check::Question;

/// The question.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The limits that are enforced, in the order of `question`.
    pub(crate) enforced: SmallVec<[LimitAt; 2]>,
    /// All of their counters: admitted or denied together.
    pub(crate) question: Question,
    /// Some of the counters are places.
    pub(crate) places: bool,
    /// Adaptive limits, enforced or not.
    pub(crate) adaptive: SmallVec<[LimitAt; 1]>,
    /// The limits that only watch. Each is asked by itself: its denial must not keep an enforced one from counting.
    pub(crate) shadows: SmallVec<[(LimitAt, Question); 1]>,
    /// Limits that only watch and would deny for want of a key.
    pub(crate) shadow_missing: SmallVec<[LimitAt; 1]>,
    /// An enforced limit that denies because the request lacks what identifies its client.
    pub(crate) missing: Option<LimitAt>,
}

impl Asked {
    /// Asks all policies about a request.
    pub(crate) fn about<B>(snapshot: &Snapshot, request: &Request<B>, peer: IpAddr) -> Self {
        let mut asked = Self {
            enforced: SmallVec::new(),
            question: Question::new(snapshot.counting.as_ref()),
            places: false,
            adaptive: SmallVec::new(),
            shadows: SmallVec::new(),
            shadow_missing: SmallVec::new(),
            missing: None,
        };
        if snapshot.policies.is_empty() {
            return asked;
        }
        let request = sluice_config::RequestAttributes {
            method: request.method(),
            path: request.uri().path(),
            headers: request.headers(),
            peer,
        };
        let path = request.normal_path();
        for (p, policy) in snapshot.policies.iter().enumerate() {
            for (l, identity) in policy.prepared.identify(&request, &path, &snapshot.secret) {
                let limit = &policy.limits[l];
                let at = LimitAt { policy: p as u16, limit: l as u16, raised: limit.is_raised() };
                match (identity, limit.mode) {
                    (Identity::Skip, _) => {}
                    (Identity::Key(_), _) if limit.adaptive.is_some() => asked.adaptive.push(at),
                    (Identity::Key(key), mode) => {
                        let (numbers, key) = (snapshot.numbers(at), KeyHash(key));
                        if mode == Mode::Enforce {
                            asked.places |= limit.shared.is_some();
                            asked.enforced.push(at);
                            asked.question.push(numbers, key);
                        } else {
                            let mut question = Question::new(snapshot.counting.as_ref());
                            question.push(numbers, key);
                            asked.shadows.push((at, question));
                        }
                    }
                    (Identity::Deny, Mode::Enforce) => asked.missing = asked.missing.or(Some(at)),
                    (Identity::Deny, Mode::Shadow) => asked.shadow_missing.push(at),
                }
            }
        }
        asked
    }
}
