//! A server's address, with the means to connect to it. The servers of a cluster and the master behind
//! sentinels are discovered at run time by their addresses only; a [`TargetTemplate`] adds the credentials
//! and certificates.
//!
//! At most one lookup of a host name is in flight: an attempt to connect that gives up leaves it to the next attempt, so a silent name
//! server neither collects lookups nor loses their results. A password in a file may change: a token that expires, for example. It is read
//! for each connection, and sent on the open one when it changes.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisFuture, RedisResult};
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::fault::loggable;
use crate::redis::script::send;

/// A server to connect to.
pub(crate) struct Target {
    pub(crate) client: Client,
    pub(crate) tls: bool,
    /// `HOST:PORT`, or the path of a socket, for logs and for comparison with other servers.
    pub(crate) address: String,
    pub(super) resolver: Resolver,
    /// Where the password is, if it is not in `client`.
    pub(crate) login: Option<Arc<PasswordFile>>,
}

impl Target {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        let address = info.addr().to_string();
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        Ok(Self { client: Client::open(info)?, tls, address, resolver: Resolver::default(), login: None })
    }

    /// Returns how to reach other servers with the same credentials and certificates.
    pub(crate) fn template(&self) -> TargetTemplate {
        TargetTemplate { info: self.client.get_connection_info().clone(), login: self.login.clone() }
    }

    /// Returns the path of the server's socket, if it has one instead of an address.
    pub(super) fn socket(&self) -> Option<&Path> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Unix(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the addresses of the server.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                self.resolver.lookup(host, *port).await
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Credentials and certificates for servers whose addresses are discovered.
pub(crate) struct TargetTemplate {
    info: ConnectionInfo,
    login: Option<Arc<PasswordFile>>,
}

impl TargetTemplate {
    /// A template with everything but the address from `info`.
    pub(crate) fn new(info: ConnectionInfo) -> Self {
        Self { info, login: None }
    }

    /// Returns the template of the same servers, with the password in a file.
    pub(crate) fn with_login(self, login: PasswordFile) -> Self {
        Self { login: Some(Arc::new(login)), ..self }
    }

    /// Returns the server at this address, or `None` if the address is invalid.
    pub(crate) fn target(&self, host: &str, port: u16) -> Option<Target> {
        let host = host.to_owned();
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            // There is no other server to be discovered.
            ConnectionAddr::Unix(path) => ConnectionAddr::Unix(path.clone()),
            _ => ConnectionAddr::Tcp(host, port),
        };
        let target = Target::new(self.info.clone().set_addr(address)).ok()?;
        Some(Target { login: self.login.clone(), ..target })
    }
}

/// Splits `HOST:PORT`. The host may be an IPv6 address without brackets, or empty.
pub(crate) fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// Time for which addresses are used again. Attempts to connect are more frequent, and a cluster's name servers
/// should not receive a query for each attempt of each pod.
const REUSE: Duration = Duration::from_secs(2);

/// The result of a lookup, with its time.
#[derive(Debug, Clone)]
struct Resolved {
    addresses: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
    at: Instant,
}

impl Resolved {
    fn is_fresh(&self) -> bool {
        self.addresses.is_ok() && self.at.elapsed() < REUSE
    }
}

/// Finds the addresses of one host. Clones share the last lookup.
#[derive(Debug, Clone, Default)]
pub(super) struct Resolver {
    /// The last lookup, which is in flight as long as it has no result.
    last: Arc<Mutex<Option<watch::Receiver<Option<Resolved>>>>>,
}

impl Resolver {
    /// Returns the addresses of a host; none is an error.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut lookup = self.current(host, port);
        let ended = || io::Error::other("the lookup of the host name was ended");
        let resolved = lookup.wait_for(Option::is_some).await.map_err(|_| ended())?.clone();
        match resolved.ok_or_else(ended)?.addresses {
            Ok(addresses) if addresses.is_empty() => {
                Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"))
            }
            Ok(addresses) => Ok(addresses),
            Err((kind, text)) => Err(io::Error::new(kind, text)),
        }
    }

    /// Returns the last lookup if it is in flight or fresh, and starts another one otherwise.
    fn current(&self, host: &str, port: u16) -> watch::Receiver<Option<Resolved>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lookup) = &*last {
            let is_fresh = lookup.borrow().as_ref().map(Resolved::is_fresh);
            // A lookup without a result has ended if its sender is gone.
            if is_fresh.unwrap_or_else(|| lookup.has_changed().is_ok()) {
                return lookup.clone();
            }
        }
        let (result, lookup) = watch::channel(None);
        let host = host.to_owned();
        tokio::spawn(async move {
            let addresses = lookup_host((host, port)).await;
            // The kind of these errors would otherwise depend on the system's resolver.
            let not_found = |error: io::Error| (io::ErrorKind::NotFound, error.to_string());
            let addresses = addresses.map(Iterator::collect).map_err(not_found);
            result.send_replace(Some(Resolved { addresses, at: Instant::now() }));
        });
        *last = Some(lookup.clone());
        lookup
    }
}

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let addresses = self.lookup(host, port).await?;
            Ok(Box::new(addresses.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

/// Interval at which the file of an open connection is read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Longest reply of a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The file with the password of a user.
pub(crate) struct PasswordFile {
    path: PathBuf,
    /// `default` if there is none.
    username: Option<String>,
    /// Whether the file could not be read the last time, so that it is logged once.
    is_unreadable: AtomicBool,
}

impl PasswordFile {
    pub(crate) fn new(path: PathBuf, username: Option<String>) -> Self {
        Self { path, username, is_unreadable: AtomicBool::new(false) }
    }

    /// Reads the password, without the newline at its end.
    pub(crate) fn read_now(&self) -> io::Result<String> {
        std::fs::read_to_string(&self.path).map(|text| without_newline(&text))
    }

    async fn read(&self) -> io::Result<String> {
        let read = tokio::fs::read_to_string(&self.path).await.map(|text| without_newline(&text));
        let was_unreadable = self.is_unreadable.swap(read.is_err(), Relaxed);
        if let Err(error) = &read
            && !was_unreadable
        {
            tracing::warn!(%error, file = %self.path.display(), "cannot read the file with the password of Redis");
        }
        read
    }

    /// Returns a client with the password of this moment.
    pub(super) async fn client(&self, client: &Client) -> io::Result<Client> {
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_password(self.read().await?);
        Client::open(info.set_redis_settings(settings)).map_err(|error| io::Error::other(loggable(&error)))
    }
}

fn without_newline(text: &str) -> String {
    text.trim_end_matches(['\r', '\n']).to_owned()
}

/// A background task that logs in again when the password changes. Dropping it ends the task.
pub(crate) struct LoginWatch(AbortHandle);

impl LoginWatch {
    pub(crate) fn start(login: Arc<PasswordFile>, connection: &MultiplexedConnection) -> Self {
        let mut connection = connection.clone();
        let task = tokio::spawn(async move {
            // It may have changed since it was read for the connection.
            let mut sent = None;
            loop {
                if let Ok(password) = login.read().await
                    && sent.as_ref() != Some(&password)
                {
                    match log_in(&mut connection, &login, &password).await {
                        Ok(()) => sent = Some(password),
                        Err(error) => {
                            tracing::warn!(
                                error,
                                "Redis does not accept the password in the file as it is now"
                            );
                            // Not again with the same one.
                            sent = Some(password);
                        }
                    }
                }
                sleep(INTERVAL).await;
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for LoginWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends AUTH over an open connection.
async fn log_in(
    connection: &mut MultiplexedConnection,
    login: &PasswordFile,
    password: &str,
) -> Result<(), String> {
    let mut command = redis::cmd("AUTH");
    command.arg(login.username.as_deref()).arg(password);
    let reply: RedisResult<_> = match timeout(REPLY_TIMEOUT, send(connection, &command)).await {
        Ok(reply) => reply.map(drop),
        Err(_) => return Err("it does not answer".to_owned()),
    };
    reply.map_err(|error| loggable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_at_its_last_colon() {
        assert_eq!(split("10.0.0.1:6379"), Some(("10.0.0.1", 6379)));
        assert_eq!(split("fd00::1:6379"), Some(("fd00::1", 6379)));
        assert_eq!(split(":6379"), Some(("", 6379)));
        assert_eq!(split("10.0.0.1"), None);
        assert_eq!(split("10.0.0.1:x"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_used_again_for_a_short_time_and_failures_never() {
        let resolver = Resolver::default();
        let started = |resolver: &Resolver| resolver.last.lock().unwrap().clone().unwrap();
        assert_eq!(resolver.lookup("127.0.0.1", 7).await.unwrap(), [([127, 0, 0, 1], 7).into()]);
        let first = started(&resolver);
        resolver.lookup("127.0.0.1", 7).await.unwrap();
        assert!(first.same_channel(&started(&resolver)));
        tokio::time::advance(REUSE).await;
        resolver.lookup("127.0.0.1", 7).await.unwrap();
        assert!(!first.same_channel(&started(&resolver)));
        // Not a valid name, so no name server is asked.
        let resolver = Resolver::default();
        resolver.lookup("a..b", 7).await.unwrap_err();
        let first = started(&resolver);
        resolver.lookup("a..b", 7).await.unwrap_err();
        assert!(!first.same_channel(&started(&resolver)));
    }

    #[tokio::test]
    async fn an_attempt_that_gives_up_leaves_its_lookup_to_the_next_one() {
        let resolver = Resolver::default();
        let (result, lookup) = watch::channel(None);
        *resolver.last.lock().unwrap() = Some(lookup);
        let given_up = tokio::time::timeout(Duration::from_millis(1), resolver.lookup("a", 7)).await;
        assert!(given_up.is_err());
        let addresses = Ok(vec![([127, 0, 0, 1], 7).into()]);
        result.send_replace(Some(Resolved { addresses, at: Instant::now() }));
        assert_eq!(resolver.lookup("a", 7).await.unwrap().len(), 1);
    }
}
