//! Checks the treatment of requests that a limit denies.

use sluice_config::policy::OnLimit;
use sluice_config::prepared::rejection::{Rejection, mark_header};

use crate::checks::field::Field;

/// Largest `maxWait` of a queue, in milliseconds.
const MAX_WAIT_MILLIS: u64 = 300_000;

/// Checks the treatment of requests that a limit denies.
pub(crate) fn check(at: &Field<'_>, on_limit: &OnLimit) {
    let OnLimit { reject, queue, mark, block } = on_limit;
    if let Some(mark) = mark {
        let others = [("reject", reject.is_some()), ("queue", queue.is_some()), ("block", block.is_some())];
        for (name, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
            at.at(name).violation("is not allowed with mark, which lets every request pass: remove it");
        }
        at.at("mark.header").accept(mark_header(&mark.header));
    }
    if queue.is_some() && block.is_some() {
        at.at("block").violation("is not allowed with queue: remove one of them");
    }
    if *on_limit == OnLimit::default() {
        at.violation("at least one of reject, queue, mark, block must be set");
    }
    if let Some(Err(nack)) = reject.as_ref().map(Rejection::new) {
        // The error begins with the field.
        match nack.0.split_once(": ") {
            Some((field, problem)) => at.at("reject").at(field).violation(problem),
            None => at.at("reject").violation(nack),
        }
    }
    if let Some(queue) = queue {
        at.at("queue.maxWait").millis(queue.max_wait, MAX_WAIT_MILLIS);
    }
    if let Some(block) = block {
        let within = at.at("block.within").accept(block.within.period());
        if within.and(at.at("block.for").accept(block.duration.period())).is_some() {
            at.at("block.after").accept(block.rate());
        }
    }
}
