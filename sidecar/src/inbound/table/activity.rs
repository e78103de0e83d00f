//! The state of one client connection: the requests in flight, the bytes that move, and since when nothing has. The
//! tasks of the connection write it, mostly with plain stores; [`super::ConnectionTable`] reads it once a second
//! and when connections or memory run out.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::clock::now;
use crate::http2::stalled::StalledStreams;
use crate::memory::BUDGET;
use crate::metrics::ended::EndReason;

/// Estimated memory of a request in flight, in bytes.
pub(super) const REQUEST_WEIGHT: u64 = 8 << 10;
/// More concurrent requests of a connection count in the memory budget: a few bytes of HTTP/2 make many of them.
const FEW_REQUESTS: u32 = 8;

/// The protocol of a connection as far as its timeouts are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// HTTP/1, or not known yet. Its task has timers of its own for heads.
    Http1 = 0,
    Http2,
    Upgraded,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(super) peer: IpAddr,
    stage: AtomicU8,
    had_request: AtomicBool,
    /// Requests whose response has not ended.
    exchanges: AtomicU32,
    /// Bodies for which the client is waited for, with a timeout.
    waiting: AtomicU32,
    /// Request bodies of gRPC for which the client is waited for. A stream may be silent for as long as both sides
    /// like.
    waiting_grpc: AtomicU32,
    /// Whether the client's socket accepts no more bytes.
    write_blocked: AtomicBool,
    /// Bytes of bodies (HTTP/2), or all bytes.
    moved: AtomicU64,
    /// Bytes that were read from the client.
    received: AtomicU64,
    /// Bytes that were read from the client, without the bodies that were passed on. Only an estimate: heads and
    /// frames count until no request is in flight.
    unread: AtomicI64,
    /// Time of the connection's start or of the end of its last request, in microseconds.
    idle_since: AtomicU64,
    /// Counts the seconds of the sweep. The limits on HTTP/2 control frames are per second.
    second: AtomicU32,
    end: AtomicU8,
    ended: Notify,
    /// Streams of HTTP/2 whose receiver does not read.
    stalled: Arc<StalledStreams>,
}

impl Activity {
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            peer,
            stage: AtomicU8::new(Stage::Http1 as u8),
            had_request: AtomicBool::new(false),
            exchanges: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            waiting_grpc: AtomicU32::new(0),
            write_blocked: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            received: AtomicU64::new(0),
            unread: AtomicI64::new(0),
            idle_since: AtomicU64::new(now()),
            second: AtomicU32::new(0),
            end: AtomicU8::new(0),
            ended: Notify::new(),
            stalled: Arc::default(),
        })
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            stage if stage == Stage::Http2 as u8 => Stage::Http2,
            stage if stage == Stage::Upgraded as u8 => Stage::Upgraded,
            _ => Stage::Http1,
        }
    }

    /// Counts bytes that the client has sent.
    pub(crate) fn received(&self, bytes: usize) {
        // Only the task of the connection writes it.
        self.received.store(self.bytes_received() + bytes as u64, Ordering::Relaxed);
        self.unread.fetch_add(bytes as i64, Ordering::Relaxed);
        if self.stage.load(Ordering::Relaxed) != Stage::Http2 as u8 {
            self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Returns the number of bytes that the client has sent.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Counts bytes that the client's socket has accepted.
    pub(crate) fn sent(&self, bytes: usize) {
        if self.write_blocked.load(Ordering::Relaxed) {
            self.write_blocked.store(false, Ordering::Relaxed);
        }
        if self.stage.load(Ordering::Relaxed) != Stage::Http2 as u8 {
            self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Notes that the client's socket accepts no more bytes for now.
    pub(crate) fn write_blocked(&self) {
        self.write_blocked.store(true, Ordering::Relaxed);
    }

    /// Returns a number that changes once a second.
    pub(crate) fn second(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    pub(super) fn next_second(&self) {
        self.second.store(self.second().wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn begin_exchange(&self) {
        if self.exchanges.fetch_add(1, Ordering::Relaxed) >= FEW_REQUESTS {
            BUDGET.read(REQUEST_WEIGHT as usize);
        }
        if !self.had_request.load(Ordering::Relaxed) {
            self.had_request.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn end_exchange(&self) {
        if self.exchanges.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.idle_since.store(now(), Ordering::Relaxed);
            self.unread.store(0, Ordering::Relaxed);
        }
    }

    /// Counts bytes of a request's body that went on to the application.
    pub(super) fn forwarded(&self, bytes: usize) {
        self.unread.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of a response's body that the protocol has taken over.
    pub(super) fn responded(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn counter(&self, is_grpc: bool) -> &AtomicU32 {
        if is_grpc { &self.waiting_grpc } else { &self.waiting }
    }

    /// Returns the streams of the connection whose receiver does not read.
    pub(crate) fn stalled(&self) -> &Arc<StalledStreams> {
        &self.stalled
    }

    pub(super) fn had_request(&self) -> bool {
        self.had_request.load(Ordering::Relaxed)
    }

    pub(super) fn exchanges(&self) -> u32 {
        self.exchanges.load(Ordering::Relaxed)
    }

    pub(super) fn idle_since(&self) -> u64 {
        self.idle_since.load(Ordering::Relaxed)
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(super) fn unread(&self) -> u64 {
        self.unread.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Reports whether a request is in flight, or the client has not read a response yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.exchanges() > 0 || self.write_blocked.load(Ordering::Relaxed) || self.stage() == Stage::Upgraded
    }

    /// Reports whether a body waits for the client. If nothing moves on an HTTP/2 connection while one does, its other
    /// streams may wait for the application because the client has used up a window that they share.
    pub(super) fn waits_for_client(&self, with_grpc: bool) -> bool {
        let grpc = if with_grpc { self.waiting_grpc.load(Ordering::Relaxed) } else { 0 };
        let waiting = self.waiting.load(Ordering::Relaxed) + grpc;
        self.write_blocked.load(Ordering::Relaxed) || waiting > 0
    }

    /// Makes the tasks of the connection end it. Returns whether it was not about to end already.
    pub(super) fn end(&self, reason: EndReason) -> bool {
        let first = self.end.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            self.ended.notify_one();
        }
        first
    }

    /// Reports whether the connection is about to end.
    pub(super) fn is_ending(&self) -> bool {
        self.end.load(Ordering::Relaxed) != 0
    }

    /// Reports whether the sidecar ends the connection in the middle of what the client does not read.
    pub(crate) fn is_cut_off(&self) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        let reason = EndReason::ALL.into_iter().find(|reason| *reason as u8 == end);
        reason.is_some_and(|reason| !reason.spares_requests()) && self.write_blocked.load(Ordering::Relaxed)
    }

    /// Takes the end back, because a request has arrived in the meantime.
    pub(crate) fn go_on(&self) {
        self.end.store(0, Ordering::Relaxed);
    }

    /// Waits until the sidecar ends the connection.
    pub(crate) async fn ended(&self) -> EndReason {
        loop {
            self.ended.notified().await;
            let end = self.end.load(Ordering::Relaxed);
            if let Some(reason) = EndReason::ALL.into_iter().find(|reason| *reason as u8 == end) {
                return reason;
            }
        }
    }
}
