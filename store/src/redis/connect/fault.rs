//! The meaning of Redis's errors. The script engine wraps some errors, differently in each release, so their
//! words are searched for in the whole text.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::failure::StoreFault;

/// Maps an error to one of the few store faults.
pub(crate) fn classify(error: &RedisError) -> StoreFault {
    let text = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let contains = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error.kind() {
        ErrorKind::Io if is_tls(error) => StoreFault::Refused,
        ErrorKind::Io => StoreFault::Unreachable,
        ErrorKind::AuthenticationFailed => StoreFault::Refused,
        _ if contains(&[
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "ACL failure",
            "DENIED",
            "can't run this command",
        ]) =>
        {
            StoreFault::Refused
        }
        // The client library drops the error code of a reply to SELECT and keeps only the text.
        _ if contains(&["o permissions to ", "Authentication required"]) => StoreFault::Refused,
        _ if contains(&["OOM ", "READONLY", "MISCONF", "NOREPLICAS"]) => StoreFault::ReadOnly,
        _ if contains(&["LOADING", "MASTERDOWN", "CLUSTERDOWN", "max number of clients"]) => {
            StoreFault::Unreachable
        }
        _ if contains(&["BUSY "]) => StoreFault::Slow,
        _ => StoreFault::Nonsense,
    }
}

/// The failure of a server, with what the log adds to its fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerFailure {
    pub(crate) fault: StoreFault,
    /// Command that the user has no right to run, if Redis names it.
    forbidden: Option<String>,
    /// Whether the server is reading its data from disk, and will answer when it has.
    is_loading: bool,
}

impl ServerFailure {
    /// The failure that an error reports.
    pub(crate) fn from_error(error: &RedisError) -> Self {
        let fault = classify(error);
        let forbidden = error.detail().filter(|_| fault == StoreFault::Refused).and_then(command);
        let is_loading = error.code() == Some("LOADING")
            || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::BusyLoading));
        Self { fault, forbidden, is_loading }
    }

    /// Returns how often a connection with this failure is verified again before it is given up. A server that
    /// answers needs no new connection to recover, and thousands of them would slow it down. After a while the
    /// address may lead to another server.
    pub(super) fn waits(&self) -> u32 {
        match self.fault {
            _ if self.is_loading => 30,
            StoreFault::Slow | StoreFault::ReadOnly => 4,
            StoreFault::Unreachable
            | StoreFault::Refused
            | StoreFault::Nonsense
            | StoreFault::WrongType
            | StoreFault::Unconfigured => 0,
        }
    }
}

impl From<StoreFault> for ServerFailure {
    fn from(fault: StoreFault) -> Self {
        Self { fault, forbidden: None, is_loading: false }
    }
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.forbidden {
            Some(command) => write!(f, "its user has no right to run {command} (ACL SETUSER ... +{command})"),
            None if self.is_loading => f.write_str("it is reading its data from disk"),
            None => self.fault.fmt(f),
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

/// Reports whether either side rejected the other's certificate.
fn is_tls(error: &RedisError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if current.is::<rustls::Error>() {
            return true;
        }
        // `source` does not return what an I/O error or an `Arc` wraps.
        cause = if let Some(shared) = current.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**shared)
        } else if let Some(inner) = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner)
        } else {
            current.source()
        };
    }
    false
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
            assert_eq!(failure.to_string(), failure.fault.to_string());
        }
    }

    #[test]
    fn errors_map_to_faults_by_their_meaning() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, fault) in [
            (server("WRONGPASS", "invalid username-password pair"), StoreFault::Refused),
            (server("NOAUTH", "Authentication required."), StoreFault::Refused),
            (server("NOPERM", "this user has no permissions"), StoreFault::Refused),
            (server("ERR", "ACL failure in script: User x has no permissions"), StoreFault::Refused),
            (select_error("this user has no permissions to run the 'select' command"), StoreFault::Refused),
            (select_error("User x has no permissions to run the 'select' command"), StoreFault::Refused),
            (select_error("Authentication required."), StoreFault::Refused),
            (select_error("DB index is out of range"), StoreFault::Nonsense),
            (server("OOM", "command not allowed"), StoreFault::ReadOnly),
            (server("ERR", "Error running script: -OOM command not allowed"), StoreFault::ReadOnly),
            (server("READONLY", "You can't write against a read only replica."), StoreFault::ReadOnly),
            (server("MISCONF", "Redis is configured to save RDB snapshots"), StoreFault::ReadOnly),
            (server("LOADING", "Redis is loading the dataset in memory"), StoreFault::Unreachable),
            (server("BUSY", "Redis is busy running a script"), StoreFault::Slow),
            (server("ERR", "unknown command 'EVALSHA'"), StoreFault::Nonsense),
            (io::Error::from(io::ErrorKind::ConnectionRefused).into(), StoreFault::Unreachable),
            (
                io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError).into(),
                StoreFault::Refused,
            ),
        ] {
            assert_eq!(classify(&error), fault, "{error}");
        }
    }
}
