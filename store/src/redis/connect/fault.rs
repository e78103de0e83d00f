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
        _ if contains(&["unknown command"]) => FaultCause::UnsupportedVersion,
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
}

impl ServerFailure {
    /// The failure that an error reports.
    pub(crate) fn from_error(error: &RedisError) -> Self {
        let cause = classify(error);
        let forbidden = error.detail().filter(|_| cause == FaultCause::NotPermitted).and_then(command);
        Self { cause, forbidden }
    }

    /// Returns the kind of fault.
    pub(crate) fn fault(&self) -> StoreFault {
        self.cause.fault()
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
            | StoreFault::Unconfigured => 0,
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
        Self { cause, forbidden: None }
    }
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.forbidden {
            Some(command) => write!(f, "its user has no right to run {command} (ACL SETUSER ... +{command})"),
            None => self.cause.fmt(f),
        }
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
            assert_eq!(failure.to_string(), failure.cause.to_string());
        }
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
            (select_error("DB index is out of range"), FaultCause::InvalidReply),
            (server("OOM", "command not allowed"), FaultCause::MemoryFull),
            (server("ERR", "Error running script: -OOM command not allowed"), FaultCause::MemoryFull),
            (server("READONLY", "You can't write against a read only replica."), FaultCause::ReadOnlyReplica),
            (server("MISCONF", "Redis is configured to save RDB snapshots"), FaultCause::WritesDisabled),
            (server("LOADING", "Redis is loading the dataset in memory"), FaultCause::Loading),
            (server("BUSY", "Redis is busy running a script"), FaultCause::Busy),
            (server("ERR", "unknown command 'EVALSHA'"), FaultCause::UnsupportedVersion),
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
