//! Checks priorities: requests that an adaptive limit sheds last.

use sluice_config::policy::{MAX_RESERVES, Priority};

use crate::checks::field::Field;
use crate::policy::matches;
use crate::policy::selection::check_when;

/// Checks the priorities of a policy.
pub(super) fn check(at: &Field<'_>, priorities: &[Priority]) {
    let sum: u32 = priorities.iter().map(|priority| priority.reserve_percent).sum();
    if sum > MAX_RESERVES {
        at.violation(format_args!(
            "reserve {sum} percent together: the requests without a priority need at least {}, so at most {MAX_RESERVES} are allowed",
            100 - MAX_RESERVES
        ));
    }
    for (n, priority) in priorities.iter().enumerate() {
        let at = at.entry(n);
        if priority.matches.is_empty() && priority.when.is_none() {
            at.at("matches").violation("is required unless `when` is set");
        }
        matches::check_all(&at.at("matches"), &priority.matches);
        check_when(&at.at("when"), priority.when.as_ref());
    }
}
