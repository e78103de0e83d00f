//! The streams of a client's connection, both ways, whose receiver does not read. When memory runs out, the one that holds most is
//! ended, and not its neighbours.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use h2::FlowControl;
use slab::Slab;

use crate::clock;
use crate::http2::STREAM_WINDOW;

/// The stalled streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct StalledStreams {
    streams: Mutex<Slab<Stalled>>,
    /// Whether the client has left.
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Stalled {
    /// Bytes that were read and not sent.
    pending: usize,
    /// The stream that they come from, which holds more.
    source: Option<FlowControl>,
    /// Time since when nothing was taken, in microseconds.
    since: u64,
    /// Whether the stream goes on when the client has left.
    outlives_client: bool,
    waker: Option<Waker>,
    is_shed: bool,
}

impl Stalled {
    fn bytes(&self) -> u64 {
        let unread = self.source.as_ref().map_or(0, FlowControl::used_capacity);
        // A stream stalls when its window or its buffer is full, and the buffer has the size of the window.
        (self.pending + unread) as u64 + u64::from(STREAM_WINDOW)
    }

    fn shed(&mut self) {
        self.is_shed = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A stalled stream, until it goes on or ends.
#[derive(Debug)]
pub(crate) struct Stall<'a> {
    streams: &'a StalledStreams,
    index: usize,
}

impl StalledStreams {
    fn lock(&self) -> MutexGuard<'_, Slab<Stalled>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a stream stalls with `pending` bytes of what comes from `source`.
    pub(crate) fn begin(
        &self,
        pending: usize,
        source: Option<FlowControl>,
        outlives_client: bool,
    ) -> Stall<'_> {
        let since = clock::now();
        let stalled = Stalled { pending, source, since, outlives_client, waker: None, is_shed: false };
        Stall { streams: self, index: self.lock().insert(stalled) }
    }

    /// Ends the streams, and those that stall later, because the client has left.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.lock()
            .iter_mut()
            .filter(|(_, stream)| !stream.outlives_client)
            .for_each(|(_, stream)| stream.shed());
    }

    /// Returns the bytes that each stream holds which is not about to end.
    pub(crate) fn held(&self) -> Vec<(usize, u64)> {
        let streams = self.lock();
        streams
            .iter()
            .filter(|(_, stream)| !stream.is_shed)
            .map(|(index, stream)| (index, stream.bytes()))
            .collect()
    }

    /// Ends a stream, unless it has gone on. Reports whether it does.
    pub(crate) fn shed(&self, index: usize) -> bool {
        let mut streams = self.lock();
        let stream = streams.get_mut(index).filter(|stream| !stream.is_shed);
        stream.map(Stalled::shed).is_some()
    }

    /// Ends the streams of which nothing was taken since then, in microseconds. Returns how many they are.
    pub(crate) fn shed_before(&self, since: u64) -> usize {
        let mut streams = self.lock();
        let old = streams.iter_mut().filter(|(_, stream)| !stream.is_shed && stream.since <= since);
        old.map(|(_, stream)| stream.shed()).count()
    }
}

impl Stall<'_> {
    /// Reports whether the stream must end. Wakes the task when it must.
    pub(crate) fn is_shed(&mut self, cx: &Context<'_>) -> bool {
        let mut streams = self.streams.lock();
        let Some(stream) = streams.get_mut(self.index) else { return false };
        if !stream.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            stream.waker = Some(cx.waker().clone());
        }
        stream.is_shed || !stream.outlives_client && self.streams.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        // Outside of the lock, because the last handle of a stream locks its connection.
        let stalled = self.streams.lock().try_remove(self.index);
        drop(stalled);
    }
}
