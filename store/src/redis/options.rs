//! Where the store is and how to reach it. [`RedisOptions::validate`] is the border: behind it everything is known to
//! be usable, and no message of it ever repeats a password.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, TlsCertificates};

/// A password. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// How to reach a Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS. May carry `USER:PASSWORD@`.
    pub url: String,
    /// The user; `default` if there is only a password.
    pub username: Option<String>,
    /// The password, unless the URL carries it.
    pub password: Option<Secret>,
    /// Certificate authorities in PEM that alone are trusted; without them the public ones.
    pub ca_pem: Option<Vec<u8>>,
    /// How long a check may take, waiting included. 1 ms to 10 s.
    pub latency_budget: Duration,
    /// What every key begins with. Up to 64 visible ASCII characters without braces.
    pub prefix: String,
    /// Over how many hash tags the keys are spread. All users of a Redis must agree on it.
    pub partitions: u16,
}

impl RedisOptions {
    /// The defaults: a budget of 50 ms, the prefix `sluice:`, 64 partitions.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password: None,
            ca_pem: None,
            latency_budget: Duration::from_millis(50),
            prefix: "sluice:".into(),
            partitions: 64,
        }
    }

    /// Checks every field.
    pub(super) fn validate(&self) -> Result<Target, OptionsError> {
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&self.latency_budget) {
            return Err(OptionsError::Budget(self.latency_budget));
        }
        let visible = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.bytes().all(visible) {
            return Err(OptionsError::Prefix(self.prefix.clone()));
        }
        if self.partitions == 0 {
            return Err(OptionsError::Partitions);
        }
        if !self.url.starts_with("redis://") && !self.url.starts_with("rediss://") {
            return Err(OptionsError::Scheme);
        }
        // What the URL's parser says names a part of the URL, never its content.
        let info = self.url.as_str().into_connection_info();
        let info = info.map_err(|error| OptionsError::Url(error.to_string()))?;
        let tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => return Err(OptionsError::Insecure),
            ConnectionAddr::TcpTls { .. } => true,
            _ => false,
        };
        let mut settings = info
            .redis_settings()
            .clone()
            // RESP2 and no CLIENT SETINFO: a user needs no right to HELLO and CLIENT.
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        if let Some(Secret(password)) = &self.password {
            if settings.password().is_some() {
                return Err(OptionsError::TwoPasswords);
            }
            settings = settings.set_password(password);
        }
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if settings.username().is_some() && settings.password().is_none() {
            return Err(OptionsError::NoPassword);
        }
        let address = info.addr().to_string();
        let info =
            info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(OptionsError::NoTlsProvider);
        }
        let client = match &self.ca_pem {
            Some(_) if !tls => return Err(OptionsError::CaWithoutTls),
            Some(pem) if !pem.windows(PEM_BEGIN.len()).any(|at| at == PEM_BEGIN) => {
                return Err(OptionsError::Ca("there is no certificate in it".into()));
            }
            Some(pem) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) };
                Client::build_with_tls(info, certificates)
                    .map_err(|error| OptionsError::Ca(error.to_string()))?
            }
            None => Client::open(info).map_err(|error| OptionsError::Url(error.to_string()))?,
        };
        Ok(Target { client, tls, address })
    }
}

const PEM_BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, username, password, ca_pem, latency_budget, prefix, partitions } = self;
        // What stands before the last @ may be a password, even in a URL that does not parse.
        let url = url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest);
        f.debug_struct("RedisOptions")
            .field("url", &url)
            .field("username", username)
            .field("password", password)
            .field("ca_pem", &ca_pem.as_ref().map(Vec::len))
            .field("latency_budget", latency_budget)
            .field("prefix", prefix)
            .field("partitions", partitions)
            .finish()
    }
}

/// A Redis that can be tried.
pub(super) struct Target {
    pub(super) client: Client,
    pub(super) tls: bool,
    /// `HOST:PORT`, for logs.
    pub(super) address: String,
}

/// Options that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Not called within a tokio runtime.
    #[error("the Redis store was started outside of a tokio runtime: start it within one")]
    NoRuntime,
    /// Not a URL of Redis.
    #[error("the store's url must begin with redis:// or, for TLS, rediss://")]
    Scheme,
    /// A URL with something wrong in it.
    #[error("the store's url cannot be used ({0}): write redis://HOST:PORT, special characters as %XX")]
    Url(String),
    /// `#insecure`.
    #[error("the store's url ends in #insecure, which would trust anybody: give the authority's certificate")]
    Insecure,
    /// The password is given twice.
    #[error("the store's password is given both in its url and beside it: remove one")]
    TwoPasswords,
    /// A user without a password.
    #[error("the store's username is given without a password: add the password or remove the username")]
    NoPassword,
    /// The certificate authority cannot be read.
    #[error("the store's certificate authority cannot be used ({0}): give certificates in PEM")]
    Ca(String),
    /// A certificate authority for a connection without TLS.
    #[error(
        "the store has a certificate authority but its url is not rediss://: change the url, or remove it"
    )]
    CaWithoutTls,
    /// No cryptography for TLS.
    #[error("the store uses TLS and this process has no rustls default provider: install one at its start")]
    NoTlsProvider,
    /// The latency budget is out of range.
    #[error("the store's latency budget is {0:?}: it must be from 1 ms to 10 s")]
    Budget(Duration),
    /// The prefix cannot stand in keys.
    #[error("the store's key prefix is {0:?}: it must be 1 to 64 visible ASCII characters without {{ and }}")]
    Prefix(String),
    /// No partitions.
    #[error("the store has 0 partitions: it must have at least 1")]
    Partitions,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(options: &RedisOptions) -> OptionsError {
        let error = options.validate().err().unwrap();
        for text in [format!("{error} {error:?}"), format!("{options:?}")] {
            assert!(!text.contains("hunter2"), "a message repeats the password: {text}");
        }
        error
    }

    #[test]
    fn options_that_cannot_work_are_refused_without_repeating_the_password() {
        let with = |change: fn(&mut RedisOptions)| {
            let mut options = RedisOptions::new("redis://user:hunter2@localhost:6379");
            change(&mut options);
            error(&options)
        };
        assert_eq!(with(|o| o.url = "http://user:hunter2@localhost".into()), OptionsError::Scheme);
        assert!(matches!(with(|o| o.url = "redis://user:hunter2@:x:y".into()), OptionsError::Url(_)));
        assert!(matches!(with(|o| o.url = "redis://user:hunter2@localhost/db".into()), OptionsError::Url(_)));
        assert!(matches!(with(|o| o.url = "redis://u:hunter2@host:port".into()), OptionsError::Url(_)));
        assert_eq!(with(|o| o.password = Some(Secret::new("hunter2"))), OptionsError::TwoPasswords);
        assert_eq!(
            with(|o| (o.url, o.username) = ("redis://localhost".into(), Some("me".into()))),
            OptionsError::NoPassword
        );
        assert_eq!(with(|o| o.ca_pem = Some(vec![1])), OptionsError::CaWithoutTls);
        assert_eq!(with(|o| o.latency_budget = Duration::ZERO), OptionsError::Budget(Duration::ZERO));
        assert_eq!(with(|o| o.prefix = "a{b".into()), OptionsError::Prefix("a{b".into()));
        assert_eq!(with(|o| o.partitions = 0), OptionsError::Partitions);
        assert_eq!(with(|o| o.url = "rediss://localhost#insecure".into()), OptionsError::Insecure);
        assert_eq!(with(|o| o.url = "rediss://localhost".into()), OptionsError::NoTlsProvider);
    }

    #[test]
    fn options_that_can_work_are_taken() {
        let mut options = RedisOptions::new("redis://localhost/3");
        options.password = Some(Secret::new("hunter2"));
        let target = options.validate().ok().unwrap();
        assert_eq!((target.address.as_str(), target.tls), ("localhost:6379", false));
        let info = target.client.get_connection_info().redis_settings().clone();
        assert_eq!((info.db(), info.password(), info.username()), (3, Some("hunter2"), None));
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
