//! Where the store is and how to reach it. [`RedisOptions::validate`] is the border: behind it everything is known to
//! be usable, and no message of it ever repeats a password or a key.

use std::fmt;
use std::time::Duration;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, TlsCertificates};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::target::{Reach, Target};
use super::url::{parse, parse_all};

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

/// Which servers hold the counters. A URL is `redis://HOST:PORT`, or `rediss://` for TLS, and may carry
/// `USER:PASSWORD@`.
#[derive(Clone)]
pub enum Topology {
    /// One server, at all times the same.
    Standalone {
        /// Its URL; `/DATABASE` may follow.
        url: String,
    },
    /// The master among a few servers that Redis Sentinel watches. Its database is 0.
    Sentinel {
        /// The sentinels' URLs, with the port (26379 by custom). Credentials in them are those of the sentinels.
        urls: Vec<String>,
        /// The name by which the sentinels know the master.
        master: String,
        /// The user at the sentinels; `default` if there is only a password.
        username: Option<String>,
        /// The password at the sentinels.
        password: Option<Secret>,
    },
    /// A Redis Cluster: the masters hold the slots of the keys among them.
    Cluster {
        /// The URLs of some of its servers; the others are learnt from them. Credentials in them hold for all servers,
        /// so they must be the same.
        urls: Vec<String>,
    },
}

/// The certificate that this client shows, and its key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate and those between it and its authority, in PEM.
    pub certificate_pem: Vec<u8>,
    /// The key, in PEM. It is never printed.
    pub key_pem: Vec<u8>,
}

impl ClientCertificate {
    /// Sees that both can be read and belong together. What is wrong never repeats what was read.
    fn validate(&self, provider: &CryptoProvider) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate_pem).collect();
        let chain = chain.map_err(|_| "its certificate is no PEM")?;
        if chain.is_empty() {
            return Err("there is no certificate in it".into());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key_pem).map_err(|_| "its key is no PEM")?;
        match CertifiedKey::from_der(chain, key, provider) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err("its key belongs to another certificate".into()),
            Err(_) => Err("its certificate or its key is damaged or of an unknown kind".into()),
        }
    }
}

/// How to reach a Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// Which servers.
    pub topology: Topology,
    /// The user at the servers that hold counters; `default` if there is only a password.
    pub username: Option<String>,
    /// The password there, unless the URL carries it.
    pub password: Option<Secret>,
    /// Certificate authorities in PEM that alone are trusted; without them the public ones.
    pub ca_pem: Option<Vec<u8>>,
    /// What this client shows to servers that ask for a certificate.
    pub client_certificate: Option<ClientCertificate>,
    /// How long a check may take, waiting included. 1 ms to 10 s.
    pub latency_budget: Duration,
    /// What every key begins with. Up to 64 visible ASCII characters without braces.
    pub prefix: String,
    /// Over how many hash tags the keys are spread. All users of a Redis must agree on it.
    pub partitions: u16,
}

/// Usable options.
pub(super) enum Plan {
    Standalone(Target),
    Sentinel { sentinels: Vec<Target>, master: String, reach: Reach },
    Cluster { seeds: Vec<Target>, reach: Reach },
}

impl RedisOptions {
    /// One server, with the defaults: a budget of 50 ms, the prefix `sluice:`, 64 partitions.
    pub fn new(url: impl Into<String>) -> Self {
        Self::with(Topology::Standalone { url: url.into() })
    }

    /// The master of this name that these sentinels know, with the defaults.
    pub fn sentinel(urls: impl IntoIterator<Item = impl Into<String>>, master: impl Into<String>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self::with(Topology::Sentinel { urls, master: master.into(), username: None, password: None })
    }

    /// The cluster that these servers belong to, with the defaults.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::with(Topology::Cluster { urls: urls.into_iter().map(Into::into).collect() })
    }

    fn with(topology: Topology) -> Self {
        Self {
            topology,
            username: None,
            password: None,
            ca_pem: None,
            client_certificate: None,
            latency_budget: Duration::from_millis(50),
            prefix: "sluice:".into(),
            partitions: 64,
        }
    }

    /// Sees that they can be used, so far as that can be told without asking anybody. For `rediss` the process must have
    /// installed rustls's default provider.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.validate().map(drop)
    }

    /// Checks every field.
    pub(super) fn validate(&self) -> Result<Plan, OptionsError> {
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
        match &self.topology {
            Topology::Standalone { url } => {
                let info = signed_in(parse(url)?, self.username.as_deref(), self.password.as_ref())?;
                Ok(Plan::Standalone(target(self.with_tls(info)?)?))
            }
            Topology::Sentinel { urls, master, username, password } => {
                if master.is_empty() || master.bytes().any(|b| !b.is_ascii_graphic()) {
                    return Err(OptionsError::Master(master.clone()));
                }
                let mut sentinels = Vec::new();
                for info in parse_all(urls)? {
                    let info = signed_in(info, username.as_deref(), password.as_ref())?;
                    sentinels.push(target(self.with_tls(info)?)?);
                }
                let first = parse(urls.first().ok_or(OptionsError::NoUrl)?)?;
                // The sentinels' credentials are not the master's.
                let settings = plain(first.redis_settings());
                let info = first.set_redis_settings(settings);
                let info = signed_in(info, self.username.as_deref(), self.password.as_ref())?;
                Ok(Plan::Sentinel {
                    sentinels,
                    master: master.clone(),
                    reach: Reach::new(self.with_tls(info)?),
                })
            }
            Topology::Cluster { urls } => {
                let mut seeds = Vec::new();
                for info in parse_all(urls)? {
                    let info = signed_in(info, self.username.as_deref(), self.password.as_ref())?;
                    seeds.push(self.with_tls(info)?);
                }
                let first = seeds.first().ok_or(OptionsError::NoUrl)?.clone();
                let who = |info: &ConnectionInfo| {
                    let settings = info.redis_settings();
                    (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
                };
                if seeds.iter().any(|seed| who(seed) != who(&first)) {
                    return Err(OptionsError::Differ);
                }
                let seeds = seeds.into_iter().map(target).collect::<Result<_, _>>()?;
                Ok(Plan::Cluster { seeds, reach: Reach::new(first) })
            }
        }
    }

    /// Adds the certificates to an address that uses TLS, and refuses them for one that does not.
    fn with_tls(&self, info: ConnectionInfo) -> Result<ConnectionInfo, OptionsError> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return match (&self.ca_pem, &self.client_certificate) {
                (Some(_), _) => Err(OptionsError::CaWithoutTls),
                (None, Some(_)) => Err(OptionsError::ClientWithoutTls),
                (None, None) => Ok(info),
            };
        }
        let Some(provider) = CryptoProvider::get_default() else { return Err(OptionsError::NoTlsProvider) };
        if self.ca_pem.as_ref().is_some_and(|pem| !pem.windows(PEM_BEGIN.len()).any(|at| at == PEM_BEGIN)) {
            return Err(OptionsError::Ca("there is no certificate in it".into()));
        }
        if let Some(client) = &self.client_certificate {
            client.validate(provider).map_err(OptionsError::ClientCertificate)?;
        }
        // One at a time, so that the error names the right one.
        let build = |root_cert, client_tls| {
            Client::build_with_tls(info.clone(), TlsCertificates { client_tls, root_cert })
        };
        build(self.ca_pem.clone(), None).map_err(|error| OptionsError::Ca(error.to_string()))?;
        let client_tls = self.client_certificate.as_ref().map(|client| ClientTlsConfig {
            client_cert: client.certificate_pem.clone(),
            client_key: client.key_pem.clone(),
        });
        let client = build(self.ca_pem.clone(), client_tls)
            .map_err(|error| OptionsError::ClientCertificate(error.to_string()))?;
        Ok(client.get_connection_info().clone())
    }
}

const PEM_BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

fn target(info: ConnectionInfo) -> Result<Target, OptionsError> {
    Target::new(info).map_err(|error| OptionsError::Url(error.to_string()))
}

/// The same without user and password.
fn plain(settings: &redis::RedisConnectionInfo) -> redis::RedisConnectionInfo {
    redis::RedisConnectionInfo::default()
        .set_db(settings.db())
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name()
}

/// Adds user and password to what the URL says.
fn signed_in(
    info: ConnectionInfo,
    username: Option<&str>,
    password: Option<&Secret>,
) -> Result<ConnectionInfo, OptionsError> {
    let mut settings = info.redis_settings().clone();
    if let Some(Secret(password)) = password {
        if settings.password().is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        settings = settings.set_password(password);
    }
    if let Some(username) = username {
        settings = settings.set_username(username);
    }
    if settings.username().is_some() && settings.password().is_none() {
        return Err(OptionsError::NoPassword);
    }
    Ok(info.set_redis_settings(settings))
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What stands before the last @ may be a password, even in a URL that does not parse.
        let bare = |url: &String| url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest).to_owned();
        let all = |urls: &[String]| urls.iter().map(bare).collect::<Vec<_>>();
        match self {
            Self::Standalone { url } => f.debug_struct("Standalone").field("url", &bare(url)).finish(),
            Self::Sentinel { urls, master, username, password } => f
                .debug_struct("Sentinel")
                .field("urls", &all(urls))
                .field("master", master)
                .field("username", username)
                .field("password", password)
                .finish(),
            Self::Cluster { urls } => f.debug_struct("Cluster").field("urls", &all(urls)).finish(),
        }
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { certificate_pem, key_pem: _ } = self;
        f.debug_struct("ClientCertificate")
            .field("certificate_pem", &certificate_pem.len())
            .field("key_pem", &"(secret)")
            .finish()
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topology,
            username,
            password,
            ca_pem,
            client_certificate,
            latency_budget,
            prefix,
            partitions,
        } = self;
        f.debug_struct("RedisOptions")
            .field("topology", topology)
            .field("username", username)
            .field("password", password)
            .field("ca_pem", &ca_pem.as_ref().map(Vec::len))
            .field("client_certificate", client_certificate)
            .field("latency_budget", latency_budget)
            .field("prefix", prefix)
            .field("partitions", partitions)
            .finish()
    }
}

/// Options that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Not called within a tokio runtime.
    #[error("the Redis store was started outside of a tokio runtime: start it within one")]
    NoRuntime,
    /// Not a URL of Redis.
    #[error(
        "the store's url must begin with redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS"
    )]
    Scheme,
    /// A URL with something wrong in it.
    #[error("the store's url cannot be used: {0}; special characters in it are written as %XX")]
    Url(String),
    /// A URL of one server with several.
    #[error("the store's url has several servers: begin it with redis+cluster:// or redis+sentinel://")]
    Several,
    /// A cluster or sentinels without a single URL.
    #[error("the store has no url: give at least one, better three")]
    NoUrl,
    /// URLs that do not belong together.
    #[error("the store's urls differ in scheme, user or password: give all of them the same")]
    Differ,
    /// A database where there is only one.
    #[error("the store's url names a database: a cluster and sentinels have only 0, leave it out")]
    Database,
    /// The master's name cannot be one.
    #[error(
        "the store's master name is {0:?}: give the one that `sentinel monitor` was given, in a url after the sentinels"
    )]
    Master(String),
    /// `#insecure`.
    #[error("the store's url ends in #insecure, which would trust anybody: give the authority's certificate")]
    Insecure,
    /// The password is given twice.
    #[error("the store's password is given both in its url and beside it: remove one")]
    TwoPasswords,
    /// A user without a password.
    #[error("the store's username is given without a password: add the password or remove the username")]
    NoPassword,
    /// A user or a password for sentinels where there are none.
    #[error("the store has a user or a password for sentinels but its url is not of sentinels: remove them")]
    NoSentinels,
    /// The certificate authority cannot be read.
    #[error("the store's certificate authority cannot be used ({0}): give certificates in PEM")]
    Ca(String),
    /// A certificate authority for a connection without TLS.
    #[error(
        "the store has a certificate authority but its url does not begin with rediss: change the url, or remove it"
    )]
    CaWithoutTls,
    /// The client's certificate or its key cannot be read.
    #[error("the store's client certificate cannot be used ({0}): give certificate and key in PEM")]
    ClientCertificate(String),
    /// A client's certificate for a connection without TLS.
    #[error(
        "the store has a client certificate but its url does not begin with rediss: change the url, or remove it"
    )]
    ClientWithoutTls,
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
        let url = |url: &str| error(&RedisOptions::new(url));
        assert_eq!(url("http://user:hunter2@localhost"), OptionsError::Scheme);
        assert!(matches!(url("redis://user:hunter2@:x:y"), OptionsError::Url(_)));
        assert!(matches!(url("redis://user:hunter2@localhost/db"), OptionsError::Url(_)));
        assert!(matches!(url("redis://u:hunter2@host:port"), OptionsError::Url(_)));
        assert!(!url("redis://u:1?protocol=hunter3@host").to_string().contains("hunter3"));
        assert_eq!(url("rediss://localhost#insecure"), OptionsError::Insecure);
        assert_eq!(url("rediss://localhost"), OptionsError::NoTlsProvider);
        let with = |change: fn(&mut RedisOptions)| {
            let mut options = RedisOptions::new("redis://user:hunter2@localhost:6379");
            change(&mut options);
            error(&options)
        };
        assert_eq!(with(|o| o.password = Some(Secret::new("hunter2"))), OptionsError::TwoPasswords);
        assert_eq!(
            with(|o| *o = RedisOptions { username: Some("me".into()), ..RedisOptions::new("redis://h") }),
            OptionsError::NoPassword
        );
        let client = ClientCertificate { certificate_pem: vec![1], key_pem: b"hunter2".into() };
        let options = RedisOptions { client_certificate: Some(client), ..RedisOptions::new("redis://h") };
        assert_eq!(error(&options), OptionsError::ClientWithoutTls);
        assert_eq!(with(|o| o.ca_pem = Some(vec![1])), OptionsError::CaWithoutTls);
        assert_eq!(with(|o| o.latency_budget = Duration::ZERO), OptionsError::Budget(Duration::ZERO));
        assert_eq!(with(|o| o.prefix = "a{b".into()), OptionsError::Prefix("a{b".into()));
        assert_eq!(with(|o| o.partitions = 0), OptionsError::Partitions);
    }

    #[test]
    fn options_of_several_servers_that_cannot_work_are_refused_without_repeating_the_password() {
        let cluster = |urls: &[&str]| error(&RedisOptions::cluster(urls.iter().copied()));
        assert_eq!(cluster(&[]), OptionsError::NoUrl);
        assert_eq!(cluster(&["redis://:hunter2@a", "http://b"]), OptionsError::Scheme);
        assert_eq!(cluster(&["redis://:hunter2@a", "redis://b"]), OptionsError::Differ);
        assert_eq!(cluster(&["redis://a", "rediss://b"]), OptionsError::Differ);
        assert_eq!(cluster(&["redis://:hunter2@a/1"]), OptionsError::Database);
        let sentinel =
            |urls: &[&str], master: &str| error(&RedisOptions::sentinel(urls.iter().copied(), master));
        assert_eq!(sentinel(&[], "main"), OptionsError::NoUrl);
        assert_eq!(sentinel(&["redis://:hunter2@a"], ""), OptionsError::Master(String::new()));
        assert_eq!(sentinel(&["redis://:hunter2@a/1"], "main"), OptionsError::Database);
        let mut options = RedisOptions::sentinel(["redis://a"], "main");
        let own = Topology::Sentinel {
            urls: vec!["redis://:hunter2@a".into()],
            master: "main".into(),
            username: None,
            password: Some(Secret::new("hunter2")),
        };
        options.topology = own;
        assert_eq!(error(&options), OptionsError::TwoPasswords);
    }

    #[test]
    fn options_that_can_work_are_taken() {
        let mut options = RedisOptions::new("redis://localhost/3");
        options.password = Some(Secret::new("hunter2"));
        let Ok(Plan::Standalone(target)) = options.validate() else { panic!("options are refused") };
        assert_eq!((target.address.as_str(), target.tls), ("localhost:6379", false));
        let info = target.client.get_connection_info().redis_settings().clone();
        assert_eq!((info.db(), info.password(), info.username()), (3, Some("hunter2"), None));
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[test]
    fn options_keep_the_credentials_of_sentinels_and_of_the_master_apart() {
        let mut options = RedisOptions::sentinel(
            ["redis://watch:hunter2@a:26379", "redis://watch:hunter2@b:26379"],
            "main",
        );
        (options.username, options.password) = (Some("sluice".into()), Some(Secret::new("hunter3")));
        let Ok(Plan::Sentinel { sentinels, master, reach }) = options.validate() else {
            panic!("options are refused")
        };
        assert_eq!((sentinels.len(), sentinels[1].address.as_str(), master.as_str()), (2, "b:26379", "main"));
        let who = |target: &Target| {
            let settings = target.client.get_connection_info().redis_settings().clone();
            (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        assert_eq!(who(&sentinels[0]), (Some("watch".into()), Some("hunter2".into())));
        let master = reach.at("10.0.0.1", 6379).unwrap();
        assert_eq!(who(&master), (Some("sluice".into()), Some("hunter3".into())));
        options.password = None;
        assert_eq!(error(&options), OptionsError::NoPassword);
    }
}
