//! The meaning of Redis's errors. The script engine wraps some errors, differently in each release, so their
//! words are searched for in the whole text.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use rustls::AlertDescription;

use crate::failure::StoreFault;
use crate::fault_cause::FaultCause;

/// Returns the cause of an error.
pub(crate) fn classify(error: &RedisError) -> FaultCause {
    let text = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let contains = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error.kind() {
        ErrorKind::Io => classify_io(error),
        ErrorKind::AuthenticationFailed => FaultCause::AuthenticationFailed,
        // The client library drops the error code of a reply to SELECT and keeps only the text.
        _ if contains(&["NOAUTH", "WRONGPASS", "Authentication required"]) => {
            FaultCause::AuthenticationFailed
        }
        // The user has rights to the functions of another release.
        _ if contains(&["run the 'fcall"]) => FaultCause::FunctionMissing,
        _ if contains(&[
            "NOPERM",
            "ACL failure",
            "DENIED",
            "can't run this command",
            "o permissions to ",
        ]) =>
        {
            FaultCause::NotPermitted
        }
        _ if contains(&["OOM "]) => FaultCause::MemoryFull,
        _ if contains(&["READONLY"]) => FaultCause::ReadOnlyReplica,
        _ if contains(&["MISCONF", "NOREPLICAS"]) => FaultCause::WritesDisabled,
        ErrorKind::Server(ServerErrorKind::BusyLoading) => FaultCause::Loading,
        _ if contains(&["LOADING"]) => FaultCause::Loading,
        _ if contains(&["MASTERDOWN", "CLUSTERDOWN"]) => FaultCause::ClusterDown,
        _ if contains(&["max number of clients"]) => FaultCause::TooManyClients,
        _ if contains(&["BUSY "]) => FaultCause::Busy,
        _ if contains(&["Function not found"]) => FaultCause::FunctionMissing,
        _ if contains(&["unknown command", "Unknown Redis command", "Unknown command called"]) => {
            FaultCause::UnsupportedVersion
        }
        // A proxy tells so that its server is away: Envoy, and twemproxy.
        _ if contains(&["upstream failure", "no upstream host", "upstream protocol error"]) => {
            FaultCause::NoRoute
        }
        _ if contains(&[
            "Connection refused",
            "Connection timed out",
            "Connection reset by peer",
            "Host is down",
        ]) =>
        {
            FaultCause::NoRoute
        }
        ErrorKind::Server(ServerErrorKind::CrossSlot | ServerErrorKind::Moved) => FaultCause::SeveralShards,
        _ if contains(&["CROSSSLOT", "MOVED", "do not hash to the same slot"]) => FaultCause::SeveralShards,
        _ if contains(&["cluster support disabled"]) => FaultCause::NotACluster,
        _ if contains(&["DB index", "SELECT is not allowed"]) => FaultCause::NoSuchDatabase,
        _ => FaultCause::InvalidReply,
    }
}

/// Returns the cause of an error of the connection.
fn classify_io(error: &RedisError) -> FaultCause {
    if let Some(tls) = tls_error(error) {
        return match tls {
            rustls::Error::InvalidCertificate(_) => FaultCause::CertificateNotTrusted,
            rustls::Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied,
            ) => FaultCause::ClientCertificateRejected,
            _ => FaultCause::TlsFailed,
        };
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(error) = current.downcast_ref::<io::Error>() {
            return cause_of_io(error);
        }
        cause = inner(current);
    }
    FaultCause::ConnectionLost
}

/// Returns the cause of an I/O error.
pub(super) fn cause_of_io(error: &io::Error) -> FaultCause {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => FaultCause::ConnectionRefused,
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            FaultCause::NoRoute
        }
        io::ErrorKind::NotFound => FaultCause::NameNotResolved,
        _ => FaultCause::ConnectionLost,
    }
}

/// The failure of a server, with what the log adds to its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerFailure {
    pub(crate) cause: FaultCause,
    /// Command that the user has no right to run, if Redis names it.
    forbidden: Option<String>,
    /// The words of Redis, as far as they can be logged.
    said: Option<String>,
}

impl ServerFailure {
    /// The failure that an error reports.
    pub(crate) fn from_error(error: &RedisError) -> Self {
        let cause = classify(error);
        let forbidden = error.detail().filter(|_| cause == FaultCause::NotPermitted).and_then(command);
        Self { cause, forbidden, said: said(error) }
    }

    /// The failure to connect to a socket. The system's words tell a wrong path from missing rights.
    pub(super) fn of_socket(error: &io::Error) -> Self {
        Self { cause: FaultCause::ConnectionRefused, forbidden: None, said: Some(error.kind().to_string()) }
    }

    /// Returns the kind of fault.
    pub(crate) fn fault(&self) -> StoreFault {
        self.cause.fault()
    }

    /// Reports whether the server is there, and only too busy to answer.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            self.cause,
            FaultCause::TooManyClients | FaultCause::Slow | FaultCause::Busy | FaultCause::Loading
        )
    }

    /// Reports whether a longer attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        self.is_busy() || matches!(self.cause, FaultCause::NoRoute | FaultCause::ConnectionLost)
    }

    /// Returns how often a connection with this failure is verified again before it is given up. A server that
    /// answers needs no new connection to recover, and thousands of them would slow it down. After a while the
    /// address may lead to another server.
    pub(super) fn waits(&self) -> u32 {
        match self.fault() {
            _ if self.cause == FaultCause::Loading => 30,
            StoreFault::Slow | StoreFault::ReadOnly => 4,
            StoreFault::Unreachable
            | StoreFault::Refused
            | StoreFault::Nonsense
            | StoreFault::WrongType
            | StoreFault::Unconfigured
            | StoreFault::Unknown => 0,
        }
    }
}

/// A failure, and the server that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureAt {
    /// `HOST:PORT` of the server, or of each sentinel if none names a master.
    pub(crate) address: String,
    pub(crate) failure: ServerFailure,
}

impl From<FaultCause> for ServerFailure {
    fn from(cause: FaultCause) -> Self {
        Self { cause, forbidden: None, said: None }
    }
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.forbidden {
            Some(command) => write!(f, "its user has no right to run {command} (ACL SETUSER ... +{command})"),
            None => {
                self.cause.fmt(f)?;
                self.said.as_ref().map_or(Ok(()), |said| write!(f, "; it said {said:?}"))
            }
        }
    }
}

/// Longest text of Redis that is logged.
const MOST_SAID: usize = 80;

/// Returns the words of Redis, as far as they can be logged: without the arguments of a command, and only the code of an error
/// of a login, whose text may have the password.
fn said(error: &RedisError) -> Option<String> {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::AuthenticationFailed | ErrorKind::Extension => {}
        // The client library keeps no kind of the reply to SELECT.
        _ if error.detail().is_some_and(|_| error.to_string().contains("refused to switch database")) => {}
        _ => return None,
    }
    // A text about rights has the name of the user.
    if classify(error) == FaultCause::NotPermitted {
        return None;
    }
    let code = error.code().unwrap_or_default();
    let text = format!("{code} {}", error.detail().unwrap_or_default());
    let (text, _) = text.split_once("with args").unwrap_or((&text, ""));
    // Older servers name the script and its line first.
    let text = match text.rsplit_once(": ") {
        Some((script, what)) if script.contains("@user_script") => what,
        _ => text,
    };
    let of_login = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        word.eq_ignore_ascii_case("auth") || word.eq_ignore_ascii_case("hello")
    };
    let is_of_login =
        error.kind() == ErrorKind::AuthenticationFailed || text.split_ascii_whitespace().any(of_login);
    let text = text.trim_matches([' ', ',']);
    let text = if is_of_login {
        let is_code = |word: &&str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase());
        text.split_ascii_whitespace().next().filter(is_code)?
    } else {
        text
    };
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let text: String = text.chars().take(MOST_SAID).map(printable).collect();
    (!text.is_empty()).then_some(text)
}

/// Returns the text of an error as far as it can be logged.
pub(crate) fn loggable(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::Io => error.to_string(),
        _ => said(error).unwrap_or_else(|| classify(error).to_string()),
    }
}

/// Extracts the command from `... has no permissions to run the 'cluster|slots' command`.
fn command(detail: &str) -> Option<String> {
    let (_, rest) = detail.split_once("permissions to run the '")?;
    let (command, _) = rest.split_once('\'')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "|._-".contains(c);
    (!command.is_empty() && command.len() <= 64 && command.chars().all(plain)).then(|| command.to_owned())
}

/// The reason why a server of a cluster did not run a call. The call had no effect, and may succeed on
/// another server or a moment later.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The hash slot belongs to the server at this address.
    Moved(String),
    /// The hash slot is moving to the server at this address, and the keys are there already.
    Ask(String),
    /// The hash slot is moving, and only some of the keys are still on this server.
    TryAgain,
    /// No server serves the hash slot.
    Down,
}

impl Redirect {
    /// The redirection that an error reports, if it reports one.
    pub(crate) fn from_error(error: &RedisError) -> Option<Self> {
        let address = || error.redirect_node().map(|(address, _)| address.to_owned());
        let ErrorKind::Server(kind) = error.kind() else { return None };
        match kind {
            ServerErrorKind::Moved => address().map(Self::Moved),
            ServerErrorKind::Ask => address().map(Self::Ask),
            ServerErrorKind::TryAgain => Some(Self::TryAgain),
            ServerErrorKind::ClusterDown => Some(Self::Down),
            // A key moved away while the script ran.
            _ if error.detail().is_some_and(|detail| detail.contains("access a non local key")) => {
                Some(Self::TryAgain)
            }
            _ => None,
        }
    }
}

/// Returns the TLS error behind an error.
fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(tls) = current.downcast_ref() {
            return Some(tls);
        }
        cause = inner(current);
    }
    None
}

/// Returns the error behind an error. `source` does not return what an I/O error or an `Arc` wraps.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        Some(&**shared)
    } else if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner)
    } else {
        error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that the client library returns for an error reply to SELECT.
    fn select_error(detail: &str) -> RedisError {
        let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
        (kind, "Redis server refused to switch database", detail.to_owned()).into()
    }

    #[test]
    fn a_missing_right_is_named_when_redis_names_it() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, named) in [
            (select_error("this user has no permissions to run the 'select' command"), "+select)"),
            (
                server("NOPERM", "this user has no permissions to run the 'cluster|slots' command"),
                "+cluster|slots)",
            ),
            (
                server("ERR", "ACL failure in script: User x has no permissions to run the 'mget' command"),
                "+mget)",
            ),
        ] {
            let text = ServerFailure::from_error(&error).to_string();
            assert!(text.ends_with(named), "{text}");
        }
        for error in [
            server("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            server("NOPERM", "this user has no permissions to run the 'a\nb' command"),
            server("NOPERM", "this user has no permissions to run the 'select"),
            server("WRONGPASS", "invalid username-password pair"),
        ] {
            let failure = ServerFailure::from_error(&error);
            assert!(failure.forbidden.is_none());
        }
    }

    #[test]
    fn the_words_of_redis_are_kept_without_what_is_secret() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, words) in [
            (
                server("ERR", "unknown command 'EVALSHA', with args beginning with: 'abc' 'sluice:key'"),
                Some("ERR unknown command 'EVALSHA'"),
            ),
            (server("ERR", "unknown command `AUTH`, with args beginning with: `hunter2`"), Some("ERR")),
            (server("ERR", "AUTH hunter2 called without any password configured"), Some("ERR")),
            (server("ERR", "unknown command 'HELLO', hunter2"), Some("ERR")),
            (
                server("WRONGPASS", "invalid username-password pair"),
                Some("WRONGPASS invalid username-password pair"),
            ),
            (server("ERR", "a\u{1b}[2J\r\nb\u{e9}"), Some("ERR a?[2J??b?")),
            (
                (ErrorKind::AuthenticationFailed, "Password authentication failed", "hunter2".to_owned())
                    .into(),
                None,
            ),
            (select_error("DB index is out of range"), Some("ERR DB index is out of range")),
            (
                server(
                    "ERR",
                    "Error running script (call to f_1): @user_script:7: @user_script: 7: Unknown Redis command called",
                ),
                Some("Unknown Redis command called"),
            ),
            (io::Error::from(io::ErrorKind::ConnectionRefused).into(), None),
        ] {
            assert_eq!(said(&error).as_deref(), words, "{error}");
        }
        assert_eq!(said(&server("ERR", &"x".repeat(1000))).unwrap().len(), MOST_SAID);
        let failure = ServerFailure::from_error(&server("ERR", "no \"such\" thing"));
        assert_eq!(failure.to_string(), r#"its replies are invalid; it said "ERR no \"such\" thing""#);
        let rights = server("NOPERM", "User hunter2 has no permissions to run the 'get' command");
        assert!(!ServerFailure::from_error(&rights).to_string().contains("hunter2"));
    }

    #[test]
    fn errors_map_to_causes_by_their_meaning() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, cause) in [
            (server("WRONGPASS", "invalid username-password pair"), FaultCause::AuthenticationFailed),
            (server("NOAUTH", "Authentication required."), FaultCause::AuthenticationFailed),
            (server("NOPERM", "this user has no permissions"), FaultCause::NotPermitted),
            (server("ERR", "ACL failure in script: User x has no permissions"), FaultCause::NotPermitted),
            (
                select_error("this user has no permissions to run the 'select' command"),
                FaultCause::NotPermitted,
            ),
            (select_error("User x has no permissions to run the 'select' command"), FaultCause::NotPermitted),
            (select_error("Authentication required."), FaultCause::AuthenticationFailed),
            (select_error("DB index is out of range"), FaultCause::NoSuchDatabase),
            (server("OOM", "command not allowed"), FaultCause::MemoryFull),
            (server("ERR", "Error running script: -OOM command not allowed"), FaultCause::MemoryFull),
            (server("READONLY", "You can't write against a read only replica."), FaultCause::ReadOnlyReplica),
            (server("MISCONF", "Redis is configured to save RDB snapshots"), FaultCause::WritesDisabled),
            (server("LOADING", "Redis is loading the dataset in memory"), FaultCause::Loading),
            (server("BUSY", "Redis is busy running a script"), FaultCause::Busy),
            (server("ERR", "unknown command 'EVALSHA'"), FaultCause::UnsupportedVersion),
            (
                server("ERR", "user_script:9: Unknown Redis command called from script script: f_1"),
                FaultCause::UnsupportedVersion,
            ),
            (server("CROSSSLOT", "Keys in request don't hash to the same slot"), FaultCause::SeveralShards),
            // A proxy whose server is away: Envoy, and twemproxy.
            (server("upstream", "failure"), FaultCause::NoRoute),
            (server("no", "upstream host"), FaultCause::NoRoute),
            (server("ERR", "Connection refused"), FaultCause::NoRoute),
            (server("ERR", "Connection timed out"), FaultCause::NoRoute),
            (server("ERR", "This instance has cluster support disabled"), FaultCause::NotACluster),
            (server("ERR", "Function not found"), FaultCause::FunctionMissing),
            (io::Error::from(io::ErrorKind::ConnectionRefused).into(), FaultCause::ConnectionRefused),
            (
                io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError).into(),
                FaultCause::TlsFailed,
            ),
        ] {
            assert_eq!(classify(&error), cause, "{error}");
        }
    }
}
