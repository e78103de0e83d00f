//! A way to Redis that can be spoilt: it knows where commands and replies end, and delays, swallows, replaces or
//! garbles them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_store::redis::CHECK_LUA;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Makes other bytes of a reply's numbers.
pub(crate) type Garble = fn(&[i64]) -> Vec<u8>;

/// What becomes of commands and replies.
#[derive(Clone)]
pub(crate) enum Mode {
    Pass,
    /// Each command, each reply waits for so long before it goes on.
    Slow(Duration, Duration),
    /// Nothing comes through and nothing is closed. A connection that has lost a byte so stays dead.
    Silent,
    /// The server is not asked: this is the answer to each command; an empty one closes the connection.
    CheckResponse(Vec<u8>),
    /// The server is asked; of a reply to checks half comes through, and nothing after it.
    Cut,
    /// The server is asked; replies to checks are garbled; an empty one closes the connection.
    Garble(Garble),
}

struct Way {
    server: u16,
    mode: Mutex<Mode>,
    /// Connections so far, and how many of the first are dead.
    connections: AtomicUsize,
    dead: AtomicUsize,
    /// The hash of the shipped script, and what stands in its place.
    script: Option<(String, String)>,
    /// Whether the shipped script's text came through although another stands in its place.
    loaded: AtomicBool,
}

/// A proxy on a free port; ended on drop.
pub(crate) struct Proxy {
    port: u16,
    way: Arc<Way>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A way to the server on this port of 127.0.0.1.
    pub(crate) fn to(server: u16) -> Self {
        Self::start(server, None)
    }

    /// A way on which another script, which the server knows by this hash, is called instead of the shipped one.
    pub(crate) fn with_script(server: u16, hash: String) -> Self {
        let shipped = redis::Script::new(CHECK_LUA).get_hash().to_owned();
        assert_eq!(shipped.len(), hash.len());
        Self::start(server, Some((shipped, hash)))
    }

    fn start(server: u16, script: Option<(String, String)>) -> Self {
        let way = Arc::new(Way {
            server,
            mode: Mutex::new(Mode::Pass),
            connections: AtomicUsize::new(0),
            dead: AtomicUsize::new(0),
            script,
            loaded: AtomicBool::new(false),
        });
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel();
        let serving = way.clone();
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
        Self { port, way, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Once this returns, every command and every reply that comes is treated so.
    pub(crate) fn set(&self, mode: Mode) {
        *self.way.mode.lock().unwrap() = mode;
    }

    /// From now on nothing comes through the connections that there are, and they stay open; new ones work.
    pub(crate) fn forget_connections(&self) {
        self.way.dead.store(self.way.connections.load(SeqCst), SeqCst);
    }

    /// Asserts that only the script in the shipped one's place was called.
    pub(crate) fn assert_script_replaced(&self) {
        assert!(!self.way.loaded.load(SeqCst), "the shipped script was called by its text");
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

impl Way {
    fn mode(&self) -> Mode {
        self.mode.lock().unwrap().clone()
    }
}

/// One connection.
struct Relay {
    id: usize,
    way: Arc<Way>,
    swallowed: AtomicBool,
    client: tokio::sync::Mutex<OwnedWriteHalf>,
}

async fn relay(client: TcpStream, id: usize, way: Arc<Way>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", way.server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((commands, client), (replies, server)) = (client.into_split(), server.into_split());
    let relay = Relay { id, way, swallowed: AtomicBool::new(false), client: tokio::sync::Mutex::new(client) };
    tokio::select! {
        _ = relay.commands(commands, server) => {}
        _ = relay.replies(replies) => {}
    }
}

impl Relay {
    /// What to do with the next bytes.
    fn mode(&self) -> Mode {
        let mode = self.way.mode();
        if self.id < self.way.dead.load(SeqCst) || self.swallowed.load(SeqCst) { Mode::Silent } else { mode }
    }

    async fn commands(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let mut bytes = vec![];
        loop {
            let mut command = frame(&mut from, &mut bytes).await?;
            if let Some((shipped, other)) = &self.way.script {
                let head = &command[..command.len().min(80)];
                if let Some(at) = head.windows(40).position(|bytes| bytes == shipped.as_bytes()) {
                    command[at..at + 40].copy_from_slice(other.as_bytes());
                } else if head.windows(9).any(|bytes| bytes == b"$4\r\nEVAL\r") {
                    self.way.loaded.store(true, SeqCst);
                }
            }
            match self.mode() {
                Mode::Silent => self.swallowed.store(true, SeqCst),
                Mode::CheckResponse(bytes) if bytes.is_empty() => return None,
                Mode::CheckResponse(bytes) => self.client.lock().await.write_all(&bytes).await.ok()?,
                Mode::Slow(delay, _) => {
                    tokio::time::sleep(delay).await;
                    to.write_all(&command).await.ok()?;
                }
                Mode::Pass | Mode::Cut | Mode::Garble(_) => to.write_all(&command).await.ok()?,
            }
        }
    }

    async fn replies(&self, mut from: OwnedReadHalf) -> Option<()> {
        let mut bytes = vec![];
        loop {
            let Some(mut reply) = frame(&mut from, &mut bytes).await else {
                // The client of a dead connection does not learn that the server has gone.
                while matches!(self.mode(), Mode::Silent) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return None;
            };
            match self.mode() {
                Mode::Silent => {
                    self.swallowed.store(true, SeqCst);
                    continue;
                }
                Mode::Slow(_, delay) => tokio::time::sleep(delay).await,
                Mode::Cut => {
                    if decision(&reply).is_some() {
                        reply.truncate(reply.len() / 2);
                        self.swallowed.store(true, SeqCst);
                    }
                }
                Mode::Garble(garble) => {
                    if let Some(numbers) = decision(&reply) {
                        reply = garble(&numbers);
                    }
                    if reply.is_empty() {
                        return None;
                    }
                }
                Mode::Pass | Mode::CheckResponse(_) => {}
            }
            self.client.lock().await.write_all(&reply).await.ok()?;
        }
    }
}

/// Reads one command or reply; `None` at the end.
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

/// How long the first RESP2 value is, if it is complete.
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

/// The numbers of a reply that decides checks; one that only tells the time is none.
fn decision(reply: &[u8]) -> Option<Vec<i64>> {
    let mut lines = std::str::from_utf8(reply).ok()?.split("\r\n");
    lines.next()?.strip_prefix('*')?;
    let numbers: Option<Vec<_>> =
        lines.filter(|line| !line.is_empty()).map(|line| line.strip_prefix(':')?.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() > 1)
}
