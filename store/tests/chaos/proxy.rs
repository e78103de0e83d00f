//! A proxy to Redis that injects faults. It recognizes commands and replies, and delays, drops, replaces or
//! damages them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_store::redis::Script;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Turns the numbers of a reply into other bytes.
pub(crate) type Damage = fn(&[i64]) -> Vec<u8>;

/// The treatment of commands and replies.
#[derive(Clone)]
pub(crate) enum Mode {
    Pass,
    /// Delays each command and each reply.
    Slow(Duration, Duration),
    /// Drops all data without closing connections. A connection that has lost data stays dead.
    Silent,
    /// Replies to each command without the server. An empty reply closes the connection.
    Reply(Vec<u8>),
    /// Passes half of a reply to checks, and no data after it.
    Cut,
    /// Damages the replies to checks. An empty result closes the connection.
    Damage(Damage),
}

/// The state that a proxy shares with its connections.
struct ProxyState {
    server: u16,
    mode: Mutex<Mode>,
    /// Number of connections so far, and of the first ones that are dead.
    connections: AtomicUsize,
    dead: AtomicUsize,
    /// Hashes of the shipped scripts, each with that of the script that replaces it.
    replaced: Vec<(String, String)>,
    /// Whether the source of a shipped script was sent although it is replaced.
    source_sent: AtomicBool,
}

/// A proxy on a free port. Dropping it ends its connections.
pub(crate) struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to the server on this port of 127.0.0.1.
    pub(crate) fn to(server: u16) -> Self {
        Self::start(server, vec![])
    }

    /// Starts a proxy that calls the scripts with these hashes, which the server knows, instead of the shipped
    /// ones.
    pub(crate) fn with_scripts(server: u16, hashes: [String; Script::ALL.len()]) -> Self {
        let shipped = Script::ALL.map(|script| redis::Script::new(script.source()).get_hash().to_owned());
        Self::start(server, shipped.into_iter().zip(hashes).collect())
    }

    fn start(server: u16, replaced: Vec<(String, String)>) -> Self {
        let state = Arc::new(ProxyState {
            server,
            mode: Mutex::new(Mode::Pass),
            connections: AtomicUsize::new(0),
            dead: AtomicUsize::new(0),
            replaced,
            source_sent: AtomicBool::new(false),
        });
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel();
        let serving = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let accepting = async {
                    loop {
                        let (client, _) = listener.accept().await.unwrap();
                        let id = serving.connections.fetch_add(1, SeqCst);
                        tokio::spawn(relay(client, id, serving.clone()));
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, state, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the treatment of all further commands and replies.
    pub(crate) fn set(&self, mode: Mode) {
        *self.state.mode.lock().unwrap() = mode;
    }

    /// Drops all further data of the present connections without closing them. New connections work.
    pub(crate) fn forget_connections(&self) {
        self.state.dead.store(self.state.connections.load(SeqCst), SeqCst);
    }

    /// Asserts that only the replacements of the scripts were called.
    pub(crate) fn assert_scripts_replaced(&self) {
        assert!(!self.state.source_sent.load(SeqCst), "a shipped script was called by its source");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ProxyState {
    fn mode(&self) -> Mode {
        self.mode.lock().unwrap().clone()
    }
}

/// One connection.
struct Relay {
    id: usize,
    state: Arc<ProxyState>,
    dropped: AtomicBool,
    client: tokio::sync::Mutex<OwnedWriteHalf>,
}

async fn relay(client: TcpStream, id: usize, state: Arc<ProxyState>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", state.server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((commands, client), (replies, server)) = (client.into_split(), server.into_split());
    let relay = Relay { id, state, dropped: AtomicBool::new(false), client: tokio::sync::Mutex::new(client) };
    tokio::select! {
        _ = relay.commands(commands, server) => {}
        _ = relay.replies(replies) => {}
    }
}

impl Relay {
    /// Returns the treatment of the next data.
    fn mode(&self) -> Mode {
        let mode = self.state.mode();
        if self.id < self.state.dead.load(SeqCst) || self.dropped.load(SeqCst) { Mode::Silent } else { mode }
    }

    async fn commands(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let mut bytes = vec![];
        loop {
            let mut command = frame(&mut from, &mut bytes).await?;
            for (shipped, other) in &self.state.replaced {
                let head = &command[..command.len().min(80)];
                if let Some(at) = head.windows(40).position(|bytes| bytes == shipped.as_bytes()) {
                    command[at..at + 40].copy_from_slice(other.as_bytes());
                } else if head.windows(9).any(|bytes| bytes == b"$4\r\nEVAL\r")
                    // A new connection looks for several shards with scripts of its own.
                    && !head.windows(7).any(|bytes| bytes == b"KEYS[2]")
                {
                    self.state.source_sent.store(true, SeqCst);
                }
            }
            match self.mode() {
                Mode::Silent => self.dropped.store(true, SeqCst),
                Mode::Reply(bytes) if bytes.is_empty() => return None,
                Mode::Reply(bytes) => self.client.lock().await.write_all(&bytes).await.ok()?,
                Mode::Slow(delay, _) => {
                    tokio::time::sleep(delay).await;
                    to.write_all(&command).await.ok()?;
                }
                Mode::Pass | Mode::Cut | Mode::Damage(_) => to.write_all(&command).await.ok()?,
            }
        }
    }

    async fn replies(&self, mut from: OwnedReadHalf) -> Option<()> {
        let mut bytes = vec![];
        loop {
            let Some(mut reply) = frame(&mut from, &mut bytes).await else {
                // A dead connection stays open even when the server closes its side.
                while matches!(self.mode(), Mode::Silent) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return None;
            };
            match self.mode() {
                Mode::Silent => {
                    self.dropped.store(true, SeqCst);
                    continue;
                }
                Mode::Slow(_, delay) => tokio::time::sleep(delay).await,
                Mode::Cut => {
                    if decision_of(&reply).is_some() {
                        reply.truncate(reply.len() / 2);
                        self.dropped.store(true, SeqCst);
                    }
                }
                Mode::Damage(damage) => {
                    if let Some(numbers) = decision_of(&reply) {
                        reply = damage(&numbers);
                    }
                    if reply.is_empty() {
                        return None;
                    }
                }
                Mode::Pass | Mode::Reply(_) => {}
            }
            self.client.lock().await.write_all(&reply).await.ok()?;
        }
    }
}

/// Reads one command or reply, or returns `None` at the end of the connection.
async fn frame(from: &mut OwnedReadHalf, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = length(bytes) {
            return Some(bytes.drain(..length).collect());
        }
        if from.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Returns the length of the first RESP2 value, if it is complete.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let number = || std::str::from_utf8(&bytes[1..line]).unwrap().parse::<i64>().unwrap();
    let mut at = line + 2;
    match bytes[0] {
        b'$' if number() >= 0 => at += number() as usize + 2,
        b'*' => {
            for _ in 0..number() {
                at += length(bytes.get(at..)?)?;
            }
        }
        _ => {}
    }
    (at <= bytes.len()).then_some(at)
}

/// Returns the numbers of a reply to checks, or `None` if it contains only the time.
fn decision_of(reply: &[u8]) -> Option<Vec<i64>> {
    // The reply to a single check: four signed integers of 7 bytes each.
    if let Some(bytes) = reply.strip_prefix(b"$28\r\n").and_then(|bytes| bytes.get(..28)) {
        let integer = |bytes: &[u8]| {
            let sign = if bytes[6] < 128 { 0 } else { 255 };
            i64::from_le_bytes(std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(sign)))
        };
        return Some(bytes.chunks(7).map(integer).collect());
    }
    let mut lines = std::str::from_utf8(reply).ok()?.split("\r\n");
    lines.next()?.strip_prefix('*')?;
    let numbers: Option<Vec<_>> =
        lines.filter(|line| !line.is_empty()).map(|line| line.strip_prefix(':')?.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() > 1)
}
