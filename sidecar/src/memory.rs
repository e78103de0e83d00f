//! The memory budget of the process: how much it may use before it stops to read from its sockets. It covers all
//! bytes that are unread or unsent, in HTTP/2 streams too, because it is measured and not estimated: a request costs
//! more memory than it has bytes, and protocols keep state of their own.
//!
//! The measurement follows the bytes that are read: after each [`STEP`] at most, the resident memory is read from
//! the kernel. When it exceeds the budget, reading stops until [`crate::process::pressure`] has made room.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use sluice_host::capacity;

/// Bytes that are read between two measurements. A header list takes up to a hundred times as much memory as it has
/// bytes, so this much can become 25 MiB at worst.
const STEP: i64 = 256 << 10;
/// Bytes of a small message.
const SMALL: usize = 8 << 10;
/// Memory that may still be used above what cannot be freed, such as the counters of a memory store.
const SLACK: u64 = 8 << 20;
/// Time for which freed memory is kept for reuse.
#[cfg(feature = "jemalloc")]
const DECAY: std::time::Duration = std::time::Duration::from_secs(1);
const PAGE: u64 = 4096;

/// The budget of this process.
pub(crate) static BUDGET: LazyLock<Budget> = LazyLock::new(Budget::new);

/// A budget of memory.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The budget that follows from the cgroup, in bytes.
    limit: u64,
    /// The budget that applies now: more than `limit` if the memory cannot be freed.
    current: AtomicU64,
    /// Bytes that may be read before the next measurement.
    left: AtomicI64,
    is_exceeded: AtomicBool,
    /// Whether the last measurement came near to the budget.
    is_scarce: AtomicBool,
    exceeded: Notify,
    resumed: Arc<Notify>,
    /// The process's memory in pages, as the kernel counts it.
    statm: Option<File>,
}

impl Budget {
    fn new() -> Self {
        let limit = capacity::memory_budget();
        Self {
            limit,
            current: AtomicU64::new(limit),
            left: AtomicI64::new(STEP),
            is_exceeded: AtomicBool::new(false),
            is_scarce: AtomicBool::new(false),
            exceeded: Notify::new(),
            resumed: Arc::default(),
            statm: File::open("/proc/self/statm").ok(),
        }
    }

    /// Counts bytes that were read from a socket, or that a connection takes from its beginning.
    pub(crate) fn read(&self, bytes: usize) {
        let bytes = bytes as i64;
        if self.left.fetch_sub(bytes, Ordering::Relaxed) > bytes {
            return;
        }
        self.left.store(STEP, Ordering::Relaxed);
        if self.excess() > 0 && !self.is_exceeded.swap(true, Ordering::SeqCst) {
            self.exceeded.notify_one();
        }
    }

    /// Measures the memory. Returns the number of bytes above the budget.
    pub(crate) fn excess(&self) -> u64 {
        let resident = self.resident();
        self.is_scarce.store(resident > self.limit / 4 * 3, Ordering::Relaxed);
        // What could not be freed may have been freed since.
        let limit = self.current.load(Ordering::Relaxed).min(resident + SLACK).max(self.limit);
        self.current.store(limit, Ordering::Relaxed);
        resident.saturating_sub(limit)
    }

    /// Reports whether the budget is nearly used up.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed)
    }

    /// Waits until the budget is exceeded. Reading stops until [`Self::resume`].
    pub(crate) async fn exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Lets all connections read again.
    pub(crate) fn resume(&self) {
        self.is_exceeded.store(false, Ordering::SeqCst);
        self.resumed.notify_waiters();
    }

    /// Waits until the budget permits another request.
    pub(crate) async fn ready(&self) {
        while self.is_exceeded.load(Ordering::Relaxed) {
            let mut resumed = pin!(self.resumed.notified());
            // Registered before the budget is looked at again, so that no resumption is missed.
            resumed.as_mut().enable();
            if self.is_exceeded.load(Ordering::SeqCst) {
                resumed.await;
            }
        }
    }

    /// Raises the budget that applies now, because nothing more can be freed.
    pub(crate) fn raise(&self) {
        self.current.store(self.resident() + SLACK, Ordering::Relaxed);
    }

    /// Returns the memory of the process in bytes, without files that are mapped. Zero where the kernel does not
    /// report it.
    pub(crate) fn resident(&self) -> u64 {
        let mut buffer = [0; 128];
        let Some(Ok(length)) = self.statm.as_ref().map(|file| file.read_at(&mut buffer, 0)) else { return 0 };
        let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
        let mut pages = text.split(' ').skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
        let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
        resident.saturating_sub(shared) * PAGE
    }
}

/// The part of a socket in the budget.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    /// Bytes that may be read after each write, whether the budget is exceeded or not.
    share: usize,
    /// Bytes read since the last write.
    since_write: usize,
    /// Set while the budget is exceeded.
    resumed: Option<Pin<Box<OwnedNotified>>>,
}

impl ReadBudget {
    /// Creates the part of an HTTP/1 connection. The heads and small bodies of other clients pass while a few use up
    /// the memory: their bytes are bounded by the number of connections.
    pub(crate) fn http1() -> Self {
        Self { share: SMALL, since_write: 0, resumed: None }
    }

    /// Creates the part of an HTTP/2 connection, on which a few bytes make many requests.
    pub(crate) fn http2() -> Self {
        Self { share: 0, since_write: 0, resumed: None }
    }

    /// Waits until the budget permits to read.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !BUDGET.is_exceeded.load(Ordering::Relaxed) || self.since_write < self.share {
                if self.resumed.is_some() {
                    self.resumed = None;
                }
                return Poll::Ready(());
            }
            let resumed =
                self.resumed.get_or_insert_with(|| Box::pin(BUDGET.resumed.clone().notified_owned()));
            // Registered before the budget is looked at again, so that no resumption is missed.
            if resumed.as_mut().poll(cx).is_pending() && BUDGET.is_exceeded.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            self.resumed = None;
        }
    }

    /// Notes that bytes were written.
    pub(crate) fn written(&mut self) {
        self.since_write = 0;
    }

    /// Counts bytes that were read.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.since_write = self.since_write.saturating_add(bytes);
        BUDGET.read(bytes);
    }
}

/// Returns freed memory to the system, and makes the allocator do the same from now on after [`DECAY`]. Without
/// jemalloc as the allocator this does nothing.
#[cfg(feature = "jemalloc")]
pub(crate) fn release_free() {
    use tikv_jemalloc_ctl::{Access as _, AsName as _, arenas};

    let decay = isize::try_from(DECAY.as_millis()).unwrap_or(isize::MAX);
    // The errors are those of arenas that do not exist.
    let _ = b"arenas.dirty_decay_ms\0"[..].name().write(decay);
    for arena in 0..arenas::narenas::read().unwrap_or(0) {
        let name = format!("arena.{arena}.dirty_decay_ms\0");
        // A decay of zero returns everything at once.
        let _ = name.as_str().name().write(0_isize).and_then(|()| name.as_str().name().write(decay));
    }
}

/// Does nothing: there is no allocator to tell.
#[cfg(not(feature = "jemalloc"))]
pub(crate) fn release_free() {}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64) -> Budget {
        Budget { limit, current: AtomicU64::new(limit), ..Budget::new() }
    }

    #[test]
    fn memory_above_the_budget_is_noticed_after_a_step() {
        let budget = budget(1);
        budget.read(STEP as usize - 1);
        assert!(!budget.is_exceeded.load(Ordering::Relaxed));
        budget.read(1);
        assert!(budget.is_exceeded.load(Ordering::Relaxed));
        budget.resume();
        assert!(!budget.is_exceeded.load(Ordering::Relaxed));
    }

    #[test]
    fn memory_that_cannot_be_freed_raises_the_budget_until_it_is_freed() {
        let budget = budget(1);
        assert!(budget.excess() > 0);
        budget.raise();
        assert_eq!(budget.excess(), 0);
        assert!(budget.current.load(Ordering::Relaxed) <= budget.resident() + 2 * SLACK);
        let large = Budget { limit: 1 << 50, current: AtomicU64::new(1 << 51), ..Budget::new() };
        assert_eq!(large.excess(), 0);
        assert_eq!(large.current.load(Ordering::Relaxed), 1 << 50);
    }
}
