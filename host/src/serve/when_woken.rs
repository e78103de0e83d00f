//! A future that is polled when it is woken, and not whenever its task is.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

pin_project! {
    /// Polls a future when it is woken. What a connection waits for beside its requests costs them nothing so.
    pub(super) struct WhenWoken<F> {
        #[pin]
        future: F,
        state: Arc<State>,
        waker: Waker,
        // The task that is woken, as in the state.
        task: Waker,
    }
}

#[derive(Debug)]
struct State {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl State {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Release);
        self.task().wake_by_ref();
    }
}

impl<F> WhenWoken<F> {
    pub(super) fn new(future: F) -> Self {
        let task = Waker::noop();
        let state = Arc::new(State { is_woken: AtomicBool::new(true), task: Mutex::new(task.clone()) });
        Self { future, waker: state.clone().into(), state, task: task.clone() }
    }
}

impl<F: Future> Future for WhenWoken<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Before the flag is looked at, so that no wake is lost in between.
        if !this.task.will_wake(context.waker()) {
            this.task.clone_from(context.waker());
            this.state.task().clone_from(context.waker());
        }
        if !this.state.is_woken.load(Acquire) || !this.state.is_woken.swap(false, AcqRel) {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn it_is_polled_at_first_and_when_it_is_woken() {
        let (send, receive) = oneshot::channel();
        let mut polls = 0;
        let mut receive = Box::pin(receive);
        let counted = std::future::poll_fn(|context| {
            polls += 1;
            receive.as_mut().poll(context)
        });
        let mut future = Box::pin(WhenWoken::new(counted));
        for _ in 0..9 {
            assert!(future.as_mut().now_or_never().is_none());
        }
        send.send(5).unwrap();
        assert_eq!(future.as_mut().now_or_never(), Some(Ok(5)));
        drop(future);
        assert_eq!(polls, 2);
    }
}
