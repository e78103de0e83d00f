//! Descriptors of gateways: a rule for each, one check for all of them, and a status for each.
//!
//! - A descriptor that costs one hit, as each does without a word about hits, is asked for: all of a question are charged, or none.
//! - More hits report what was used already. They are charged whether or not there is room: a budget would never end otherwise.
//! - No hits look at a counter, which denies while nothing is left. Negative hits give back.
//! - A limit whose cost the response has, and one on concurrent requests, reserve: the answer has an id, by which the report at the
//!   end settles the reservation. Hits are then what was used.

mod group;
mod question;

use std::sync::Arc;

use sluice_config::descriptor::describe;

use crate::answer::Refused;
use crate::denial::headers::verdict_headers;
use crate::descriptors::group::group;
pub use crate::descriptors::question::{Answer, Descriptor, Hits, OverrideRate, Question};
use crate::engine::Engine;
use crate::question::asking::{Asking, Findings};
use crate::question::counters::{Groups, MAX_CHECKED};
pub use crate::question::{CurrentLimit, Outcome, Status};

/// Keys of pairs whose values operators may read: they are no secrets of clients.
const PUBLIC_KEYS: [&[u8]; 4] =
    [b"remote_address", b"masked_remote_address", b"generic_key", b"destination_cluster"];

impl Engine {
    /// Decides a question of a gateway. Domains and rules that are not known deny nothing.
    ///
    /// # Errors
    /// No rules have been received yet, and all questions are refused until then.
    pub async fn check(&self, question: &Question<'_>) -> Result<Answer, Refused> {
        let snapshot = self.publisher().current();
        if snapshot.denies_all {
            return Err(Refused::NoPolicies);
        }
        let mut findings = Findings::new(question.descriptors.len());
        let mut is_known_domain = false;
        let mut groups = Groups::default();
        if let Some(domain) = snapshot.domain(question.domain) {
            is_known_domain = true;
            groups = group(question, &snapshot, domain, &mut findings.statuses);
        }
        if let Some(limits) = snapshot.described(question.domain) {
            is_known_domain = true;
            groups.add_limits(question, &snapshot, limits, &mut findings.statuses);
        }
        if groups.len() > MAX_CHECKED {
            return Err(Refused::TooManyLimits);
        }
        let without_hits = groups.without_hits;
        let client = |position: usize| -> Arc<str> {
            let descriptor = question.descriptors.get(position);
            describe(descriptor.map_or(&[], |one| &one.pairs[..]), |key| PUBLIC_KEYS.contains(&key)).into()
        };
        let asking = Asking {
            engine: self,
            snapshot: &snapshot,
            is_shadow: question.is_shadow,
            headers: question.headers,
            client: &client,
        };
        let verdict = asking.decide(groups, question.budget, &mut findings).await;
        Ok(Answer {
            headers: verdict_headers(&verdict),
            charged: verdict.charged_mark(),
            reservation: findings.reservation(),
            reserved: findings.reserved(),
            without_hits,
            settled: findings.settled,
            is_known_domain,
            store_failure: findings.store_failure,
            statuses: findings.statuses,
        })
    }
}
