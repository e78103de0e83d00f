//! The requests of a connection, from their heads to the ends of their answers, and the bytes that they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::{Connection, NoRoom, now};

/// So many requests of a connection at a time have bytes that are free: of their heads, and of their bodies. The others count as so many.
const FEW_REQUESTS: u32 = 4;
const FREE_HEAD: usize = 4 << 10;
const FREE_BODY: usize = 4 << 10;
const REQUEST_BYTES: usize = 4 << 10;

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum RequestPhase {
    Receiving,
    Answering,
    Sending,
}

/// A request in flight, from its head to the end of its answer.
#[derive(Debug)]
pub(in crate::serve) struct Exchange {
    connection: Arc<Connection>,
    phase: AtomicU8,
    free: usize,
    bytes: AtomicUsize,
}

impl Exchange {
    /// Begins with a head of so many bytes.
    pub(in crate::serve) fn begin(
        connection: &Arc<Connection>,
        is_complete: bool,
        bytes: usize,
    ) -> (Self, Result<(), NoRoom>) {
        let phase = if is_complete { RequestPhase::Answering } else { RequestPhase::Receiving };
        let in_flight = [&connection.receiving, &connection.answering, &connection.sending];
        let is_free = in_flight.iter().map(|count| count.load(Relaxed)).sum::<u32>() < FEW_REQUESTS;
        let exchange = Self {
            connection: connection.clone(),
            phase: AtomicU8::new(phase as u8),
            free: if is_free { FREE_BODY } else { 0 },
            bytes: AtomicUsize::new(0),
        };
        connection.count(phase as u8).fetch_add(1, Relaxed);
        exchange.hand_over(true);
        if !connection.had_request.load(Relaxed) && !connection.had_request.swap(true, Relaxed) {
            connection.begun.notify_one();
        }
        let counted = if is_free { bytes.saturating_sub(FREE_HEAD) } else { bytes + REQUEST_BYTES };
        let taken = exchange.take(counted);
        (exchange, taken)
    }

    /// Returns the number of bytes of the body that are free.
    pub(in crate::serve) fn free(&self) -> usize {
        self.free
    }

    /// Takes room for bytes of the request.
    pub(in crate::serve) fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        if bytes > 0 {
            self.connection.take(bytes)?;
            self.bytes.fetch_add(bytes, Relaxed);
        }
        Ok(())
    }

    /// Counts a panic of what answers it.
    pub(in crate::serve) fn note_panic(&self) {
        self.connection.table.metrics.panics.inc();
    }

    /// Notes that bytes of the request were handed over, and whether more are to come.
    pub(in crate::serve) fn hand_over(&self, goes_on: bool) {
        self.connection.handed_over.fetch_add(1, Relaxed);
        if goes_on {
            self.go();
        }
    }

    /// Notes that the request, or its answer, goes on.
    pub(in crate::serve) fn go(&self) {
        self.connection.since.store(now(), Relaxed);
    }

    /// Notes whether the answer waits for the client to read.
    pub(in crate::serve) fn set_unread(&self, before: bool, unread: bool) {
        match (before, unread) {
            (false, true) => drop(self.connection.unread.fetch_add(1, Relaxed)),
            (true, false) => drop(self.connection.unread.fetch_sub(1, Relaxed)),
            (true, true) | (false, false) => {}
        }
    }

    /// Reports whether the answer is being sent.
    pub(in crate::serve) fn is_sending(&self) -> bool {
        self.phase.load(Relaxed) == RequestPhase::Sending as u8
    }

    /// Notes that the request is complete, or nobody wants the rest.
    pub(in crate::serve) fn complete(&self) {
        self.go_on(RequestPhase::Receiving, RequestPhase::Answering);
    }

    /// Notes that the answer is being sent.
    pub(in crate::serve) fn send(&self) {
        self.go_on(RequestPhase::Answering, RequestPhase::Sending);
    }

    fn go_on(&self, from: RequestPhase, to: RequestPhase) {
        if self.phase.compare_exchange(from as u8, to as u8, Relaxed, Relaxed).is_ok() {
            self.connection.count(from as u8).fetch_sub(1, Relaxed);
            self.connection.count(to as u8).fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.count(self.phase.load(Relaxed)).fetch_sub(1, Relaxed);
        connection.release(self.bytes.load(Relaxed));
        if !connection.is_busy() {
            connection.since.store(now(), Relaxed);
        }
    }
}

impl Connection {
    fn count(&self, phase: u8) -> &AtomicU32 {
        match phase {
            phase if phase == RequestPhase::Receiving as u8 => &self.receiving,
            phase if phase == RequestPhase::Answering as u8 => &self.answering,
            _ => &self.sending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::serve::table::{Maxima, PortMetrics, Table};

    #[tokio::test(start_paused = true)]
    async fn many_requests_of_a_connection_have_nothing_for_free() {
        let table = Table::new(Maxima::new(9, 3 * REQUEST_BYTES), PortMetrics::default());
        let place = table.place(Ipv4Addr::LOCALHOST.into()).await.unwrap();
        let begin = || Exchange::begin(&place.0, false, FREE_HEAD);
        let few: Vec<_> = (0..FEW_REQUESTS).map(|_| begin()).collect();
        assert!(few.iter().all(|(_, room)| room.is_ok()));
        assert_eq!(table.bytes.load(Relaxed), 0);
        let more = begin();
        assert_eq!((more.1, more.0.free()), (Ok(()), 0));
        assert_eq!(table.bytes.load(Relaxed), FREE_HEAD + REQUEST_BYTES);
        assert_eq!(begin().1, Err(NoRoom));
        drop((few, more));
        assert_eq!(table.bytes.load(Relaxed), 0);
    }
}
