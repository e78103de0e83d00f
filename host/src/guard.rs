//! Keeps a panic from ending more than the request, or the connection, that it is about. A panic anywhere else ends the
//! process, which starts again: a sidecar without one of its tasks would be worse than none.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use prometheus_client::metrics::counter::Counter;

thread_local! {
    /// Whether this thread polls a guarded future.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// The future has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

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

pin_project! {
    /// A future whose panic is its result.
    pub struct Guard<F> {
        #[pin]
        future: F,
    }
}

/// Runs a future, and returns whether it has panicked. It must be dropped then, which frees what it holds. An async
/// function would take the memory of the future twice.
pub fn guard<F: Future>(future: F) -> Guard<F> {
    Guard { future }
}

impl<F: Future> Future for Guard<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        let _guarded = Guarded::begin();
        // A panic leaves nothing behind that others see in between: their locks are consistent between any two statements.
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    }
}

pin_project! {
    /// A guarded task, whose panic is counted.
    struct Counted<F> {
        #[pin]
        guard: Guard<F>,
        panics: Counter,
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.guard.poll(context).map(|result| {
            if let Err(Panicked) = result {
                this.panics.inc();
            }
        })
    }
}

/// Spawns a task, and counts its panic.
pub fn spawn<F: Future<Output: Send> + Send + 'static>(future: F, panics: Counter) {
    tokio::spawn(Counted { guard: guard(future), panics });
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
                    let name = "guard::tests::a_panic_elsewhere_ends_the_process";
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
