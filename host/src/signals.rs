//! Signals: SIGTERM and SIGINT end a process, and SIGHUP has it read its files again.
//!
//! A SIGHUP that comes because the terminal has gone ends it, so that nothing is left behind that nobody can stop. One that was
//! ignored at the start, as under `nohup`, stays ignored.

use std::fs::{self, File};
use std::future::pending;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// A second SIGTERM within this time of the order to end is no second order: `timeout` sends one to its child, and one to the group
/// of both.
const SAME_ORDER: Duration = Duration::from_secs(1);

/// Orders to read files again.
static RELOADS: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::channel(()).0);

/// The signals that a process handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if it was ignored at the start.
    hangup: Option<Signal>,
    has_terminal: bool,
    /// Time of the order to end.
    ordered: Option<Instant>,
}

impl Signals {
    /// Installs the handlers, so that the signals no longer end the process themselves.
    pub fn new() -> std::io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup,
            has_terminal: has_terminal(),
            ordered: None,
        })
    }

    /// Waits for the order to end, or for the next one. Passes the orders to read files again on, to each [`Reloads`].
    pub async fn end(&mut self) {
        loop {
            tokio::select! {
                // A SIGTERM that comes with a SIGINT is no second order.
                biased;
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => {
                    if self.ordered.is_none_or(|ordered| ordered.elapsed() >= SAME_ORDER) {
                        break;
                    }
                }
                () = next(self.hangup.as_mut()) => {
                    if self.has_terminal && !has_terminal() {
                        tracing::info!("the terminal has gone");
                        break;
                    }
                    // Without files that are followed, nobody listens.
                    match RELOADS.send(()) {
                        Ok(()) => tracing::info!("SIGHUP: files are read again"),
                        Err(_) => tracing::info!("SIGHUP has no effect: there are no files to read again"),
                    }
                }
            }
        }
        self.ordered.get_or_insert_with(Instant::now);
    }
}

async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// Reports whether the process has a terminal that can end it.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Reports whether the process was started with SIGHUP ignored. Only Linux tells.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, SignalKind::hangup().as_raw_value())
}

/// Reads whether a signal is ignored from `/proc/PID/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal - 1) & 1 == 1
}

/// The orders to read files again that come from now on.
#[derive(Debug)]
pub struct Reloads(watch::Receiver<()>);

impl Reloads {
    /// Begins to note orders.
    #[must_use]
    pub fn new() -> Self {
        Self(RELOADS.subscribe())
    }

    /// Waits until files are looked at the next time, which an order makes now. Returns whether there was one, so that what is
    /// found is told even if it is what was there before.
    pub async fn within(&mut self, interval: Duration) -> bool {
        timeout(interval, self.0.changed()).await.is_ok()
    }
}

impl Default for Reloads {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_ignored_if_its_bit_is_set() {
        for (mask, hangup, terminate) in [
            ("0000000000000001", true, false),
            ("fffffffffffffffe", false, true),
            ("0000000000001000", false, false),
        ] {
            let status = format!("Name:\tsluice\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
            assert_eq!((is_ignored(&status, 1), is_ignored(&status, 15)), (hangup, terminate), "{mask}");
        }
        assert!(!is_ignored("", 1));
    }
}
