//! Keeps a panic from ending more than the request, or the connection, that it is about. A panic anywhere else ends the
//! process, which starts again: a sidecar without one of its tasks would be worse than none.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

thread_local! {
    /// Whether this thread polls a guarded future.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// The future has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// The time in which a guarded future is polled.
struct Guarded {
    before: bool,
}

impl Guarded {
    fn begin() -> Self {
        Self { before: IS_GUARDED.replace(true) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        IS_GUARDED.set(self.before);
    }
}

/// Runs a future, and returns whether it has panicked. It is dropped then, which frees what it holds.
pub(crate) async fn guard<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    // A panic leaves nothing behind that others see in between: their locks are consistent between any two statements.
    poll_fn(|context| {
        let _guarded = Guarded::begin();
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

/// Makes a panic end the process after it is reported, unless it is in a guarded future. Call this once, at the start.
pub fn abort_on_other_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !IS_GUARDED.get() {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_panic_ends_the_guarded_future_only() {
        async fn divide(by: u32) -> u32 {
            tokio::task::yield_now().await;
            6_u32.checked_div(by).expect("a divisor")
        }
        assert_eq!(guard(divide(2)).await, Ok(3));
        assert_eq!(guard(divide(0)).await, Err(Panicked));
        let outer = guard(async {
            let inner = guard(divide(0)).await;
            (inner, IS_GUARDED.get())
        });
        assert_eq!(outer.await, Ok((Err(Panicked), true)));
        assert!(!IS_GUARDED.get());
    }

    /// Runs this test again, as a process that panics.
    #[test]
    fn a_panic_elsewhere_ends_the_process() {
        const MODE: &str = "SLUICE_TEST_PANIC";
        match std::env::var(MODE).as_deref() {
            Ok(mode) => {
                abort_on_other_panics();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let guarded = mode == "guarded";
                    let task = tokio::spawn(async move {
                        let panics = async { panic!("on purpose") };
                        if guarded { guard(panics).await.unwrap_err() } else { panics.await }
                    });
                    assert_eq!(task.await.unwrap(), Panicked);
                });
            }
            Err(_) => {
                for (mode, survives) in [("guarded", true), ("not", false)] {
                    let mut child = Command::new(std::env::current_exe().unwrap());
                    let name = "inbound::guard::tests::a_panic_elsewhere_ends_the_process";
                    let output =
                        child.args(["--exact", name, "--nocapture"]).env(MODE, mode).output().unwrap();
                    assert_eq!(output.status.success(), survives, "{mode}");
                    let text = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(text.contains("on purpose"), "{text}");
                }
            }
        }
    }
}
