//! The layouts of a record.

/// Largest number of instants in the record of a log.
pub(crate) const MAX_INSTANTS: usize = 10_000;
/// Largest number of denials before a block. A record has fewer.
pub(crate) const MAX_DENIALS: usize = 1000;
/// Largest number of holders in the record of a concurrency limit.
pub(crate) const MAX_HOLDERS: usize = 1000;
/// Largest number of open reservations of a counter.
pub(crate) const MAX_RESERVATIONS: usize = 1000;

/// The layout of a record, as its tag names it. Codes are never reused. Algorithms that share a layout but do
/// not understand each other's numbers have different variants in their tags, from [`FirstRequest`] on.
///
/// [`FirstRequest`]: Kind::FirstRequest
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Windows of a sliding-window counter.
    Sliding = 1,
    /// One fixed window, aligned to the clock.
    Clock = 2,
    /// One fixed window, with a phase for each key.
    Spread = 3,
    /// One fixed window, opened by the first request.
    FirstRequest = 4,
    /// Instants of requests.
    Log = 5,
    /// The theoretical arrival time of a bucket.
    Arrival = 6,
    /// The next free time and the stored permits of a warm-up.
    WarmUp = 7,
    /// The overrun of a soft rate. It follows the record to which it belongs.
    Overrun = 8,
    /// Slots by holder.
    Holders = 9,
    /// The denials of a client, or the end of its block.
    Block = 10,
    /// Reservations that are not settled.
    Reservations = 11,
}

impl Kind {
    #[inline]
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    #[inline]
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Sliding,
            2 => Self::Clock,
            3 => Self::Spread,
            4 => Self::FirstRequest,
            5 => Self::Log,
            6 => Self::Arrival,
            7 => Self::WarmUp,
            8 => Self::Overrun,
            9 => Self::Holders,
            10 => Self::Block,
            11 => Self::Reservations,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn every_code_names_its_kind() {
        let kinds: Vec<Kind> = (0..16).filter_map(Kind::from_code).collect();
        assert_eq!(kinds.iter().map(|kind| kind.code()).collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
    }
}
