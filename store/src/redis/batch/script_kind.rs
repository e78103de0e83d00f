//! Which of the two scripts decides an operation.

use super::operation::Operation;
use crate::check::Counter;

/// The script that decides the operations of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    /// The small script for plain checks. It may leave a check undecided.
    Plain,
    /// The script for all operations.
    #[default]
    General,
}

/// Reports whether the plain script may decide a check of this counter alone: it costs 1 and has a single rate,
/// which is a fixed window on the clock or a sliding window without sub-windows.
#[must_use]
pub fn is_plain(counter: &Counter) -> bool {
    match &counter.limit.rates[..] {
        [rate] => counter.cost == 1 && rate.script_arguments(0, 1).is_none(),
        _ => false,
    }
}

impl Operation {
    /// Returns the counter if the plain script may decide the operation.
    pub(crate) fn plain_counter(&self) -> Option<&Counter> {
        let counter = match self {
            Self::Check(check, _) => match &check[..] {
                [counter] => counter,
                _ => return None,
            },
            Self::Acquire(counter, ..) => counter,
            Self::Settle(..) => return None,
        };
        is_plain(counter).then_some(counter)
    }
}
