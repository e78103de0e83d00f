//! The master of a name, from its sentinels:
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
//!
//! A sentinel may be wrong: one that was cut off names an old master, which may still live, and one that is configured for
//! other servers names a stranger. All sentinels are asked, the newest configuration epoch is believed first, and a server
//! is used only if it says that it is a master.
//!
//! [`watch`]: the watch for a change while a master is in use.

#[cfg(test)]
mod model;
pub(super) mod watch;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::time::timeout;

use super::fault::{FailureAt, ServerFailure, classify, loggable};
use super::open::{gather, open, try_open};
use super::target::{Target, TargetTemplate, split};
use super::verification::{Connected, Verification, verify_master};
use crate::fault_cause::FaultCause;
use crate::redis::script::send;

/// Maximum duration of a sentinel's reply once it is connected.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for which the other sentinels are waited for when the first one has answered.
const OTHERS: Duration = Duration::from_millis(100);

/// The sentinels of one master.
pub(crate) struct Sentinels {
    sentinels: Vec<Target>,
    /// Name of the master at the sentinels.
    name: String,
    template: TargetTemplate,
    /// Index of the sentinel that the watch asks, or listens to, next. It begins at a random one: thousands of processes do.
    next: AtomicUsize,
    /// The master that was used last, and its epoch.
    used: Mutex<Option<(String, u64)>>,
    /// Indexes of the sentinels that do not know the master, so that each is logged once.
    unknowing: Mutex<BTreeSet<usize>>,
    /// The disagreement that was logged last, so that it is logged once.
    logged: Mutex<String>,
    /// Whether it was logged that the sentinels' user may not listen.
    is_deaf: AtomicBool,
}

/// A server that is a master, and its connection.
pub(crate) struct NamedMaster {
    pub(crate) target: Arc<Target>,
    pub(crate) connection: MultiplexedConnection,
    /// Indexes of the sentinels that name it.
    pub(crate) sentinels: Vec<usize>,
}

/// Turns a connection to a master into the result of a search, or says why it cannot be used.
trait Finish {
    type Output;

    /// `failed` is the number of attempts that failed before.
    fn finish(
        &self,
        master: NamedMaster,
        failed: u32,
    ) -> impl Future<Output = Result<Self::Output, ServerFailure>> + Send;
}

impl Finish for Verification {
    type Output = Connected;

    async fn finish(&self, master: NamedMaster, failed: u32) -> Result<Connected, ServerFailure> {
        self.verify(master.target, master.connection, failed).await
    }
}

/// Accepts every master.
struct AnyMaster;

impl Finish for AnyMaster {
    type Output = NamedMaster;

    async fn finish(&self, master: NamedMaster, _failed: u32) -> Result<NamedMaster, ServerFailure> {
        Ok(master)
    }
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Target>, name: String, template: TargetTemplate) -> Self {
        let next = AtomicUsize::new(rand::random_range(0..sentinels.len().max(1)));
        Self {
            sentinels,
            name,
            template,
            next,
            used: Mutex::default(),
            unknowing: Mutex::default(),
            logged: Mutex::default(),
            is_deaf: AtomicBool::new(false),
        }
    }

    /// Returns the name of the master at the sentinels.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sentinels.
    pub(crate) fn targets(&self) -> &[Target] {
        &self.sentinels
    }

    /// Returns how to reach the servers that the sentinels name.
    pub(crate) fn template(&self) -> &TargetTemplate {
        &self.template
    }

    /// Finds the master and verifies its connection. `last` is the address of the server that was used before.
    pub(super) async fn connect(
        &self,
        last: Option<&str>,
        verification: &Verification,
        failed: u32,
    ) -> Result<Connected, FailureAt> {
        let named = candidates(&self.opinions(failed, Some(OTHERS)).await?, last);
        self.first_of(&named, &named, verification.budget, failed, verification).await
    }

    /// Connects to a master that is to be preferred to the one in use, if there is one. Nobody waits for it, so all sentinels are
    /// waited for. `is_told`: a sentinel has told of it.
    async fn replacement(
        &self,
        current: &str,
        is_told: bool,
        verification: &Verification,
    ) -> Option<Connected> {
        // As if attempts had failed before, but for sentinels that all processes ask at once: that takes more connections.
        let failed = u32::from(!is_told);
        let named = candidates(&self.opinions(failed, None).await.ok()?, Some(current));
        let in_use = self.used.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let epoch_in_use = in_use.filter(|(address, _)| address == current).map(|(_, epoch)| epoch);
        let preferred = replacements(&named, current, epoch_in_use);
        match self.first_of(&preferred, &named, verification.budget, failed, verification).await {
            Ok(connected) => {
                let (master, address) = (&self.name, &connected.target.address);
                tracing::warn!(
                    master,
                    from = current,
                    to = address,
                    is_told,
                    "the sentinels have another master"
                );
                Some(connected)
            }
            Err(_) => {
                self.log_disagreement(&named, current);
                None
            }
        }
    }

    /// Finds the master, for an administrator.
    pub(crate) async fn master(&self, reply_timeout: Duration) -> Result<NamedMaster, FailureAt> {
        // As if attempts had failed before: nobody waits for this one.
        let failed = 1;
        let named = candidates(&self.opinions(failed, None).await?, None);
        self.first_of(&named, &named, reply_timeout, failed, &AnyMaster).await
    }

    /// Returns the first of these candidates that says that it is a master and that `finish` accepts. The error is that of
    /// the first candidate. `named` are all servers that the sentinels name.
    async fn first_of<F: Finish>(
        &self,
        candidates: &[Candidate],
        named: &[Candidate],
        reply_timeout: Duration,
        failed: u32,
        finish: &F,
    ) -> Result<F::Output, FailureAt> {
        let mut error = None;
        let mut confirmed = None;
        for candidate in candidates {
            // An old master that still lives is worse than none.
            if confirmed.is_some_and(|newer: &Candidate| newer.is_newer_than(candidate)) {
                break;
            }
            let mut opened = self.open(candidate, reply_timeout, failed).await;
            // A master that many processes reach at once is slow. An older one must not be used for that.
            if failed == 0 && candidates.len() > 1 && opened.as_ref().is_err_and(ServerFailure::may_pass) {
                opened = self.open(candidate, reply_timeout, 1).await;
            }
            let failure = match opened {
                Ok(master) => match finish.finish(master, failed).await {
                    Ok(finished) => {
                        let used = candidate.epoch.map(|epoch| (candidate.address.clone(), epoch));
                        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = used;
                        self.log_disagreement(named, &candidate.address);
                        return Ok(finished);
                    }
                    Err(failure) => {
                        confirmed = confirmed.or(Some(candidate));
                        failure
                    }
                },
                Err(failure) => {
                    if failure.is_busy() {
                        confirmed = confirmed.or(Some(candidate));
                    }
                    failure
                }
            };
            tracing::debug!(address = candidate.address, %failure, "this server cannot be used as the master");
            error.get_or_insert(FailureAt { address: candidate.address.clone(), failure });
        }
        Err(error.unwrap_or_else(|| self.none(FaultCause::NoRoute)))
    }

    /// Connects to a server that sentinels name, and checks that it is a master.
    async fn open(
        &self,
        candidate: &Candidate,
        reply_timeout: Duration,
        failed: u32,
    ) -> Result<NamedMaster, ServerFailure> {
        let address = split(&candidate.address);
        let target = address.and_then(|(host, port)| self.template.target(host, port));
        let target = Arc::new(target.ok_or(FaultCause::InvalidReply)?);
        let mut connection = try_open(&target, failed).await?;
        verify_master(&mut connection, reply_timeout).await?;
        Ok(NamedMaster { target, connection, sentinels: candidate.sentinels.clone() })
    }

    /// Returns the opinions of the sentinels that answer: of all, or of the first one and those that answer in this time after
    /// it.
    async fn opinions(&self, failed: u32, others: Option<Duration>) -> Result<Vec<Opinion>, FailureAt> {
        let asked = (0..self.sentinels.len()).map(|sentinel| self.ask(sentinel, failed)).collect();
        let mut opinions = gather(asked, others).await.map_err(|cause| self.none(cause))?;
        // The order of the sentinels, and not that of their answers.
        opinions.sort_by_key(|opinion| opinion.sentinel);
        Ok(opinions)
    }

    /// Asks the next sentinel. Reports whether it names this server, or nothing.
    async fn next_agrees(&self, current: &str) -> bool {
        let next = self.next.fetch_add(1, Relaxed) % self.sentinels.len().max(1);
        self.ask(next, 0).await.map_or(true, |opinion| opinion.master == current)
    }

    /// Asks one sentinel.
    async fn ask(&self, at: usize, failed: u32) -> Result<Opinion, FaultCause> {
        let sentinel = self.sentinels.get(at).ok_or(FaultCause::NoRoute)?;
        let connection = open(sentinel, failed).await?;
        let both = async {
            let (address, details) = ("GET-MASTER-ADDR-BY-NAME", "MASTER");
            tokio::join!(self.command(connection.clone(), address), self.command(connection.clone(), details))
        };
        let Ok((address, details)) = timeout(REPLY_TIMEOUT, both).await else { return Err(FaultCause::Slow) };
        let address = address.map_err(|error| {
            tracing::debug!(
                address = sentinel.address,
                error = loggable(&error),
                "a sentinel returned an error"
            );
            match classify(&error) {
                FaultCause::UnsupportedVersion => FaultCause::NotASentinel,
                cause => cause,
            }
        })?;
        let mut unknowing = self.unknowing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unknowing = address == Value::Nil;
        let changed = if is_unknowing { unknowing.insert(at) } else { unknowing.remove(&at) };
        drop(unknowing);
        if is_unknowing && changed {
            tracing::warn!(
                address = sentinel.address,
                master = self.name,
                "a sentinel does not know the master by this name"
            );
        }
        let master = read_address(&address).ok_or(FaultCause::InvalidReply)?;
        Ok(Opinion { sentinel: at, master, epoch: read_epoch(details) })
    }

    /// Sends a command about the master to a sentinel.
    async fn command(&self, mut connection: MultiplexedConnection, name: &str) -> RedisResult<Value> {
        let mut command = redis::cmd("SENTINEL");
        command.arg(name).arg(&self.name);
        send(&mut connection, &command).await
    }

    /// The failure of all sentinels.
    fn none(&self, cause: FaultCause) -> FailureAt {
        let addresses: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address.as_str()).collect();
        FailureAt { address: addresses.join(","), failure: cause.into() }
    }

    /// Logs that the sentinels name different servers, once for each such state.
    fn log_disagreement(&self, named: &[Candidate], used: &str) {
        let mut text = String::new();
        if named.len() > 1 || named.iter().any(|candidate| candidate.address != used) {
            for Candidate { address, epoch, sentinels } in named {
                let said: Vec<_> = sentinels
                    .iter()
                    .filter_map(|&at| Some(self.sentinels.get(at)?.address.as_str()))
                    .collect();
                let separator = if text.is_empty() { "" } else { "; " };
                let epoch = epoch.map_or("unknown epoch".to_owned(), |epoch| format!("epoch {epoch}"));
                let _ = write!(text, "{separator}{address} ({epoch}, named by {})", said.join(" and "));
            }
        }
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let state = format!("{used} {text}");
        if *logged == state {
            return;
        }
        if !text.is_empty() {
            tracing::warn!(master = self.name, used, "the sentinels disagree about the master: {text}");
        }
        *logged = state;
    }
}

/// Reads the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn read_address(reply: &Value) -> Option<String> {
    let Value::Array(cells) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &cells[..] else { return None };
    let (host, port) = (std::str::from_utf8(host).ok()?, std::str::from_utf8(port).ok()?);
    let port: u16 = port.parse().ok()?;
    Some(format!("{host}:{port}"))
}

/// Reads the configuration epoch from the reply to `SENTINEL MASTER`, for which a user may have no right.
fn read_epoch(reply: RedisResult<Value>) -> Option<u64> {
    let Ok(Value::Array(fields)) = reply else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    let at = fields.iter().position(|field| text(field).as_deref() == Some("config-epoch"))?;
    text(fields.get(at + 1)?)?.parse().ok()
}

/// The answer of one sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Opinion {
    /// Index of the sentinel.
    sentinel: usize,
    /// `HOST:PORT` of the master.
    master: String,
    /// Its configuration epoch, which every failover increases. `None` without the right to read it.
    epoch: Option<u64>,
}

/// A server that sentinels name as the master.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    /// `HOST:PORT`.
    address: String,
    /// Newest epoch with which a sentinel names it.
    epoch: Option<u64>,
    /// Indexes of the sentinels that name it.
    sentinels: Vec<usize>,
}

/// Returns the servers that sentinels name, the most credible one first: the one with the newest configuration epoch, never
/// the one that most sentinels name. Where the epochs do not decide, the server in use stays. If it is not among them, the
/// order of the addresses decides, which is the same in all processes.
fn candidates(opinions: &[Opinion], current: Option<&str>) -> Vec<Candidate> {
    let mut found = Vec::<Candidate>::new();
    for Opinion { sentinel, master, epoch } in opinions {
        match found.iter_mut().find(|candidate| candidate.address == *master) {
            Some(candidate) => {
                candidate.epoch = candidate.epoch.max(*epoch);
                candidate.sentinels.push(*sentinel);
            }
            None => {
                found.push(Candidate { address: master.clone(), epoch: *epoch, sentinels: vec![*sentinel] });
            }
        }
    }
    // An unknown epoch can be compared with none.
    let epochs_decide = found.iter().all(|candidate| candidate.epoch.is_some());
    found.sort_by_cached_key(|Candidate { address, epoch, .. }| {
        let epoch = epoch.filter(|_| epochs_decide);
        (Reverse(epoch), current != Some(address), address.clone())
    });
    found
}

/// Returns those of the named servers that may replace the one in use, which works: they stand before it, and are no older
/// masters than it was when it was chosen.
fn replacements(named: &[Candidate], current: &str, epoch_in_use: Option<u64>) -> Vec<Candidate> {
    let is_older = |candidate: &&Candidate| {
        candidate.epoch.zip(epoch_in_use).is_some_and(|(epoch, in_use)| epoch < in_use)
    };
    let preferred = named.iter().take_while(|candidate| candidate.address != current);
    preferred.filter(|candidate| !is_older(candidate)).cloned().collect()
}

impl Candidate {
    /// Reports whether another candidate is an older master.
    fn is_newer_than(&self, other: &Self) -> bool {
        self.epoch.zip(other.epoch).is_some_and(|(this, other)| this > other)
    }
}

/// The server, with the epoch by which it can be compared.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            Some(epoch) => write!(f, "{} (epoch {epoch})", self.address),
            None => f.write_str(&self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opinion(sentinel: usize, master: &str, epoch: Option<u64>) -> Opinion {
        Opinion { sentinel, master: master.into(), epoch }
    }

    fn order(opinions: &[Opinion], current: Option<&str>) -> Vec<String> {
        candidates(opinions, current).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_newest_epoch_is_believed_and_not_the_majority() {
        let opinions = [opinion(0, "a:1", Some(3)), opinion(1, "a:1", Some(3)), opinion(2, "b:1", Some(4))];
        for current in [None, Some("a:1"), Some("b:1"), Some("c:1")] {
            assert_eq!(order(&opinions, current), ["b:1 (epoch 4)", "a:1 (epoch 3)"]);
        }
        assert_eq!(candidates(&opinions, None)[1].sentinels, [0, 1]);
    }

    #[test]
    fn where_epochs_do_not_decide_the_server_in_use_stays() {
        for (left, right) in [(Some(3), Some(3)), (None, Some(9)), (Some(9), None), (None, None)] {
            let opinions = [opinion(0, "b:1", left), opinion(1, "a:1", right)];
            let first = |current| candidates(&opinions, current)[0].address.clone();
            assert_eq!(first(Some("b:1")), "b:1");
            assert_eq!(first(Some("a:1")), "a:1");
            assert_eq!((first(None), first(Some("c:1"))), ("a:1".into(), "a:1".into()));
        }
    }

    proptest! {
        /// Processes that hear the same sentinels, in any order, use the same one if the epochs decide or none is in use.
        #[test]
        fn all_processes_believe_the_same(
            said in prop::collection::vec((0..4u8, prop::option::of(0..4u64)), 1..6),
            turn in 0..6usize,
            current in prop::option::of(0..4u8),
        ) {
            let name = |server: u8| format!("{server}:1");
            let mut opinions: Vec<_> =
                said.iter().enumerate().map(|(at, (server, epoch))| opinion(at, &name(*server), *epoch)).collect();
            let first = candidates(&opinions, None);
            let middle = turn % opinions.len();
            opinions.rotate_left(middle);
            let again = candidates(&opinions, None);
            prop_assert_eq!(&first[0].address, &again[0].address);
            let current = current.map(name);
            let other = candidates(&opinions, current.as_deref());
            let all_known = first.iter().all(|candidate| candidate.epoch.is_some());
            let decided = first.len() < 2 || all_known && first[0].is_newer_than(&first[1]);
            if decided {
                prop_assert_eq!(&first[0].address, &other[0].address);
            }
        }
    }
}
