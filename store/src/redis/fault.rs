//! What an error of Redis means. Some errors come wrapped by the script engine, differently in each release, so their
//! words are looked for wherever they stand.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::failure::StoreFault;

/// Sorts an error into the few faults that a store can have.
pub(super) fn classify(error: &RedisError) -> StoreFault {
    let text = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error.kind() {
        ErrorKind::Io if is_tls(error) => StoreFault::Refused,
        ErrorKind::Io => StoreFault::Unreachable,
        ErrorKind::AuthenticationFailed => StoreFault::Refused,
        _ if says(&["NOAUTH", "WRONGPASS", "NOPERM", "ACL failure", "DENIED", "can't run this command"]) => {
            StoreFault::Refused
        }
        // Of what SELECT is answered the client library keeps the sentence, but not the code before it.
        _ if says(&["o permissions to ", "Authentication required"]) => StoreFault::Refused,
        _ if says(&["OOM ", "READONLY", "MISCONF", "NOREPLICAS"]) => StoreFault::ReadOnly,
        _ if says(&["LOADING", "MASTERDOWN", "CLUSTERDOWN", "max number of clients"]) => {
            StoreFault::Unreachable
        }
        _ if says(&["BUSY "]) => StoreFault::Slow,
        _ => StoreFault::Nonsense,
    }
}

/// What is wrong with a server, as its log says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) fault: StoreFault,
    /// The command to which the user has no right, if it is that and Redis names it.
    lacks: Option<String>,
}

impl Trouble {
    /// Reads it from an error.
    pub(super) fn of(error: &RedisError) -> Self {
        let fault = classify(error);
        let lacks = error.detail().filter(|_| fault == StoreFault::Refused).and_then(command);
        Self { fault, lacks }
    }
}

impl From<StoreFault> for Trouble {
    fn from(fault: StoreFault) -> Self {
        Self { fault, lacks: None }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lacks {
            Some(command) => write!(f, "its user has no right to run {command} (ACL SETUSER ... +{command})"),
            None => self.fault.fmt(f),
        }
    }
}

/// The command of `... has no permissions to run the 'cluster|slots' command`.
fn command(detail: &str) -> Option<String> {
    let (_, rest) = detail.split_once("permissions to run the '")?;
    let (command, _) = rest.split_once('\'')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "|._-".contains(c);
    (!command.is_empty() && command.len() <= 64 && command.chars().all(plain)).then(|| command.to_owned())
}

/// Why a cluster's server did not obey a call that another one may obey, or the same one soon. Nothing was done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot belongs to the server at this address.
    Moved(String),
    /// The slot is moving to the server at this address, and the keys are there already.
    Ask(String),
    /// The slot is moving, and only some of the keys are here.
    TryAgain,
    /// Nobody serves the slot.
    Down,
}

impl Redirect {
    /// Reads it from an error.
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        let address = || error.redirect_node().map(|(address, _)| address.to_owned());
        let ErrorKind::Server(kind) = error.kind() else { return None };
        match kind {
            ServerErrorKind::Moved => address().map(Self::Moved),
            ServerErrorKind::Ask => address().map(Self::Ask),
            ServerErrorKind::TryAgain => Some(Self::TryAgain),
            ServerErrorKind::ClusterDown => Some(Self::Down),
            // A key went away while the script ran.
            _ if error.detail().is_some_and(|detail| detail.contains("access a non local key")) => {
                Some(Self::TryAgain)
            }
            _ => None,
        }
    }
}

/// Whether the other side's certificate, or ours, was not accepted.
fn is_tls(error: &RedisError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if current.is::<rustls::Error>() {
            return true;
        }
        // An I/O error and an `Arc` hide from `source` what they are made of.
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

    /// As the client library makes it of what SELECT is answered.
    fn selecting(detail: &str) -> RedisError {
        let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
        (kind, "Redis server refused to switch database", detail.to_owned()).into()
    }

    #[test]
    fn a_missing_right_is_named_if_redis_names_it() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, named) in [
            (selecting("this user has no permissions to run the 'select' command"), "+select)"),
            (
                server("NOPERM", "this user has no permissions to run the 'cluster|slots' command"),
                "+cluster|slots)",
            ),
            (
                server("ERR", "ACL failure in script: User x has no permissions to run the 'mget' command"),
                "+mget)",
            ),
        ] {
            let said = Trouble::of(&error).to_string();
            assert!(said.ends_with(named), "{said}");
        }
        for error in [
            server("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            server("NOPERM", "this user has no permissions to run the 'a\nb' command"),
            server("NOPERM", "this user has no permissions to run the 'select"),
            server("WRONGPASS", "invalid username-password pair"),
        ] {
            let trouble = Trouble::of(&error);
            assert_eq!(trouble.to_string(), trouble.fault.to_string());
        }
    }

    #[test]
    fn errors_are_sorted_by_what_they_mean() {
        let server = |code: &str, detail: &str| redis::make_extension_error(code.into(), Some(detail.into()));
        for (error, fault) in [
            (server("WRONGPASS", "invalid username-password pair"), StoreFault::Refused),
            (server("NOAUTH", "Authentication required."), StoreFault::Refused),
            (server("NOPERM", "this user has no permissions"), StoreFault::Refused),
            (server("ERR", "ACL failure in script: User x has no permissions"), StoreFault::Refused),
            (selecting("this user has no permissions to run the 'select' command"), StoreFault::Refused),
            (selecting("User x has no permissions to run the 'select' command"), StoreFault::Refused),
            (selecting("Authentication required."), StoreFault::Refused),
            (selecting("DB index is out of range"), StoreFault::Nonsense),
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
