//! The samples since the last change of the limit.

/// The smallest number of responses that fill a window. Otherwise as many as the limit fill it.
pub(super) const FEWEST: u32 = 30;

/// The smallest number of clients that are many. One client may have several addresses.
const FEWEST_CLIENTS: f64 = 3.0;

/// A window of samples, as an algorithm sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowSummary {
    /// Mean round trip of the window in microseconds, at least 1. `None` if every request was dropped.
    pub round_trip_us: Option<f64>,
    /// Round trip without a queue in microseconds, at least 1.
    pub baseline_us: f64,
    /// Whether many clients lost requests: more than one for a hundred requests. Or whether most requests were dropped.
    pub dropped: bool,
    /// Whether at least half of the limit was in use at some time in the window. If not, the limit did not
    /// hold the traffic back, and an algorithm must not raise it.
    pub saturated: bool,
}

/// The samples of one window. First come the responses that were still affected by the limit before it, which
/// do not count, then those that count.
///
/// The first part ends when half a limit of requests that started in this window have been answered, which
/// takes one and a half round trips. From then on every response counts, whenever its request started.
/// Counting only requests that started in the window would favor the quick ones, which return first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SampleWindow {
    pub(super) opened_us: u64,
    /// Number of samples that count.
    pub(super) count: u32,
    /// Most requests in flight that any of them saw.
    pub(super) peak: u32,
    /// Responses to requests that started in this window, until the first part ends.
    settled: u32,
    drops: u32,
    /// The clients that lost requests.
    droppers: Clients,
    sum: f64,
    squares: f64,
}

impl SampleWindow {
    pub(super) fn open(now_us: u64) -> Self {
        Self { opened_us: now_us, ..Self::default() }
    }

    /// Reports whether the response to a request that started at `started_us` counts.
    pub(super) fn settles(&mut self, started_us: u64, limit: u32) -> bool {
        let settled = self.settled >= limit.div_ceil(2);
        self.settled += u32::from(!settled && started_us >= self.opened_us);
        settled
    }

    /// Adds a sample: its round trip, which is clipped, or the client whose request was dropped.
    pub(super) fn add(&mut self, end: Result<f64, u64>, in_flight: u32) {
        self.count += 1;
        self.peak = self.peak.max(in_flight);
        match end {
            Ok(us) => {
                self.sum += us;
                self.squares += us * us;
            }
            Err(client) => {
                self.drops += 1;
                self.droppers.add(client);
            }
        }
    }

    /// Reports whether the mean is known to `precision`, its standard error as a share of the mean. At `most`
    /// samples the window is full in any case.
    pub(super) fn is_full(&self, limit: u32, precision: f64, most: u32) -> bool {
        self.count >= limit.max(FEWEST)
            && (self.count >= most || self.mean_us().is_none_or(|mean| self.error_us() <= precision * mean))
    }

    /// Returns the standard error of the mean.
    pub(super) fn error_us(&self) -> f64 {
        let responses = f64::from(self.count - self.drops).max(1.0);
        let mean = self.sum / responses;
        ((self.squares / responses - mean * mean).max(0.0) / responses).sqrt()
    }

    pub(super) fn mean_us(&self) -> Option<f64> {
        let responses = self.count - self.drops;
        (responses > 0).then(|| self.sum / f64::from(responses))
    }

    /// Reports whether so many requests were dropped that the server is overloaded. One lost request in thousands is no overload. Nor
    /// are all that one client lost: it may have asked for what the server answers by closing the connection, and must not lower the
    /// limit for everybody. When most requests are lost, nobody has to be told apart.
    pub(super) fn dropped(&self) -> bool {
        let clients = self.droppers.count();
        clients + 0.5 >= FEWEST_CLIENTS && clients * 100.0 > f64::from(self.count)
            || self.drops > self.count / 2
    }
}

/// Number of bits of [`Clients`].
const BITS: u64 = 1024;

/// A number of distinct clients, by linear counting (K.-Y. Whang et al., "A Linear-Time Probabilistic Counting Algorithm for
/// Database Applications", 1990). It is right to a few percent up to some thousands.
#[derive(Debug, Clone, PartialEq)]
struct Clients([u64; (BITS / 64) as usize]);

impl Default for Clients {
    fn default() -> Self {
        Self([0; (BITS / 64) as usize])
    }
}

impl Clients {
    fn add(&mut self, hash: u64) {
        let bit = hash % BITS;
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn count(&self) -> f64 {
        let unset: u32 = self.0.iter().map(|bits| bits.count_zeros()).sum();
        let bits = BITS as f64;
        if unset == 0 { f64::INFINITY } else { bits * (bits / f64::from(unset)).ln() }
    }
}
