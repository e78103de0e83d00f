//! Runtimes, and threads that have one of their own.
//!
//! Each runtime has a thread for what blocks, such as the resolver of names, from the start on: where the system permits no more
//! threads, or has no memory for one, a process that has started goes on. One that cannot start says so.

use std::io;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Time for which a thread for what blocks is kept: longer than any process runs. A burst starts a few.
const KEPT: Duration = Duration::from_secs(u32::MAX as u64);
const MAX_BLOCKING: usize = 16;

/// Longest time until the kernel forgets a thread.
const REAPED_WITHIN: Duration = Duration::from_secs(1);

/// Descriptors that a runtime needs, or a few more.
const DESCRIPTORS: usize = 10;

type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A thread with a runtime of its own.
#[derive(Debug)]
pub struct Worker {
    /// Its runtime, which ends after its work.
    pub runtime: Handle,
    work: mpsc::Sender<Work>,
    ended: oneshot::Receiver<()>,
}

impl Worker {
    /// Starts a thread that waits for its work.
    ///
    /// # Errors
    /// The system has no thread left, or no descriptor.
    pub fn start(number: usize) -> io::Result<Self> {
        let (work, received) = mpsc::channel::<Work>();
        let (end, ended) = oneshot::channel();
        let (start, started) = mpsc::channel();
        thread::Builder::new().name(format!("sluice-worker-{number}")).spawn(move || {
            let runtime = match runtime() {
                Ok(runtime) => runtime,
                Err(error) => return drop(start.send(Err(error))),
            };
            let _ = start.send(Ok(runtime.handle().clone()));
            if let Ok(work) = received.recv() {
                runtime.block_on(work());
            }
            runtime.shutdown_background();
            let _ = end.send(());
        })?;
        let runtime = started.recv().map_err(io::Error::other)??;
        Ok(Self { runtime, work, ended })
    }

    /// Makes the thread do its work. Must be called once.
    pub fn run<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce() -> F + Send + 'static) {
        // The thread ends only after its work, so it receives this.
        let _ = self.work.send(Box::new(|| Box::pin(work())));
    }

    /// Waits until the thread has ended.
    pub async fn ended(self) {
        let _ = self.ended.await;
    }
}

/// Creates the runtime of this thread.
///
/// # Errors
/// The system has no thread left, or no descriptor.
pub fn runtime() -> io::Result<Runtime> {
    build(&mut Builder::new_current_thread())
}

/// Creates a runtime with threads of its own.
///
/// # Errors
/// The system has no thread left, or no descriptor.
pub fn runtime_with_threads(number: usize) -> io::Result<Runtime> {
    build(Builder::new_multi_thread().worker_threads(number))
}

/// Starts a thread, which ends at once, for what would panic without one.
///
/// # Errors
/// The system has no thread left.
pub fn try_thread() -> io::Result<()> {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    thread::Builder::new().spawn(|| ())?.join().map_err(|_| io::Error::other("a thread has failed"))?;
    // The kernel counts a thread for a moment after it has been joined.
    let until = Instant::now() + REAPED_WITHIN;
    while threads() > before && Instant::now() < until {
        thread::yield_now();
    }
    Ok(())
}

fn build(builder: &mut Builder) -> io::Result<Runtime> {
    // A shell permits few of the descriptors that a process may have, because some programs cannot count further.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // A runtime panics if it does not get its first thread, or the descriptors of its signals.
    try_thread()?;
    drop((0..DESCRIPTORS / 2).map(|_| UnixStream::pair()).collect::<io::Result<Vec<_>>>()?);
    let runtime = builder.enable_all().thread_keep_alive(KEPT).max_blocking_threads(MAX_BLOCKING).build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_does_its_work_and_ends() {
        let worker = Worker::start(3).unwrap();
        let (done, is_done) = oneshot::channel();
        worker.run(move || async move {
            let name =
                tokio::task::spawn_blocking(|| 7).await.ok().zip(thread::current().name().map(str::to_owned));
            done.send(name).unwrap();
        });
        assert_eq!(is_done.await.unwrap(), Some((7, "sluice-worker-3".to_owned())));
        worker.ended().await;
        // Without work, it ends when it is dropped.
        let Worker { runtime: _, work, ended } = Worker::start(0).unwrap();
        drop(work);
        ended.await.unwrap();
    }
}
