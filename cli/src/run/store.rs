//! Where the counters of `sluice run` live, from its arguments.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::message::{ClientCertificate, StoreAccess};
use sluice_sidecar::StoreChoice;
use sluice_sidecar::process::args::duration;
use sluice_store::RedisOptions;
use sluice_store::redis::OptionsError;

/// The arguments that say where counters live.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where counters live: memory, redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT or
    /// redis+sentinel://HOST:PORT,HOST:PORT/MASTER, with rediss for TLS; a URL with USER:PASSWORD@ is better
    /// given by the environment, where other users of the machine do not see it
    #[arg(long, env = "SLUICE_STORE", value_name = "URL", default_value = "memory", hide_env_values = true)]
    store: StoreArg,
    /// A file with the certificate authorities in PEM that sign the store's certificate. By default the
    /// public ones
    #[arg(long, env = "SLUICE_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// A file with the certificate in PEM to show to a store that asks for one
    #[arg(long, env = "SLUICE_STORE_CERT", value_name = "FILE", requires = "store_key")]
    store_cert: Option<PathBuf>,
    /// A file with the key of that certificate, in PEM
    #[arg(long, env = "SLUICE_STORE_KEY", value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// The user at the sentinels, if they ask for one; USER:PASSWORD@ in the URL is for the servers behind
    /// them
    #[arg(long, env = "SLUICE_STORE_SENTINEL_USERNAME", value_name = "NAME")]
    store_sentinel_username: Option<String>,
    /// A file with the password at the sentinels, if they ask for one
    #[arg(long, env = "SLUICE_STORE_SENTINEL_PASSWORD_FILE", value_name = "FILE")]
    store_sentinel_password_file: Option<PathBuf>,
    /// A file with the secret that keys are hashed with, 16 bytes in base64: all processes that share a Redis
    /// share it. By default it is derived from the Redis password; give it if there is none, as with a client
    /// certificate: what everybody can derive hides no client in Redis. Refused with --store memory, where
    /// keys never leave the process
    #[arg(long, env = "SLUICE_KEY_SECRET_FILE", value_name = "FILE")]
    key_secret_file: Option<PathBuf>,
    /// How long a check may take in Redis
    #[arg(long, env = "SLUICE_LATENCY_BUDGET", default_value = "50ms", value_parser = duration)]
    latency_budget: Duration,
}

/// `memory` or a URL of Redis. Never printed: the URL may carry a password.
#[derive(Clone, PartialEq, Eq)]
enum StoreArg {
    Memory,
    Redis(String),
}

impl fmt::Debug for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
        })
    }
}

impl FromStr for StoreArg {
    // What is wrong with a URL is said later; here the whole of it would be printed.
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "memory" => Self::Memory,
            url => Self::Redis(url.to_owned()),
        })
    }
}

impl StoreArgs {
    /// The store, with the secret that keys are hashed with: the file's, or one that all who know the
    /// password derive alike.
    pub(crate) fn choice(self) -> anyhow::Result<StoreChoice> {
        let Self {
            store,
            store_ca,
            store_cert,
            store_key,
            store_sentinel_username,
            store_sentinel_password_file,
            key_secret_file,
            latency_budget,
        } = self;
        let StoreArg::Redis(url) = store else {
            let of_redis = [
                ("--store-ca", store_ca.is_some()),
                ("--store-cert", store_cert.is_some()),
                ("--store-key", store_key.is_some()),
                ("--store-sentinel-username", store_sentinel_username.is_some()),
                ("--store-sentinel-password-file", store_sentinel_password_file.is_some()),
                ("--key-secret-file", key_secret_file.is_some()),
            ];
            let given: Vec<_> = of_redis.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
            ensure!(
                given.is_empty(),
                "{}: no effect with --store memory (the default), where counters are this process's own: leave out, \
                 or give --store the URL of a Redis",
                given.join(", ")
            );
            return Ok(StoreChoice::Memory);
        };
        match RedisOptions::from_url(&url) {
            Err(OptionsError::Scheme) => bail!(
                "--store: it must be memory, in lower case, or begin with redis://, redis+cluster:// or \
                 redis+sentinel://, with rediss for TLS"
            ),
            other => other.context("--store")?,
        };
        let key_secret = match read("--key-secret-file", key_secret_file.as_deref())? {
            None => {
                let password = password(&url);
                if password.is_empty() {
                    tracing::warn!(
                        "without a Redis password the secret that keys are hashed with is one that everybody knows: \
                         give --key-secret-file a file with 16 random bytes in base64 (openssl rand -base64 16), \
                         the same to all processes that share this Redis"
                    );
                }
                derive(&password)
            }
            Some(text) => KeySecret::try_from(text).map_err(|error| anyhow!("--key-secret-file: {error}"))?,
        };
        let certificate = read("--store-cert", store_cert.as_deref())?;
        let key = read("--store-key", store_key.as_deref())?;
        let sentinel_password =
            read("--store-sentinel-password-file", store_sentinel_password_file.as_deref())?;
        Ok(StoreChoice::Access(Box::new(StoreAccess {
            url,
            username: None,
            password: None,
            sentinel_username: store_sentinel_username,
            sentinel_password: sentinel_password.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()),
            ca: read("--store-ca", store_ca.as_deref())?,
            client: certificate.zip(key).map(|(certificate, key)| ClientCertificate { certificate, key }),
            latency_budget_millis: u64::try_from(latency_budget.as_millis()).unwrap_or(u64::MAX),
            key_secret,
            prefix: "sluice:".into(),
        })))
    }
}

/// The text of an argument's file.
fn read(argument: &str, file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let text =
        |file: &Path| std::fs::read_to_string(file).with_context(|| format!("{argument} {}", file.display()));
    file.map(text).transpose()
}

fn derive(password: &[u8]) -> KeySecret {
    let digest = Sha256::new().chain_update("sluice run\0").chain_update(password).finalize();
    KeySecret::new(std::array::from_fn(|n| digest[n]))
}

/// The password of a URL, its percent signs resolved; empty if it has none.
fn password(url: &str) -> Vec<u8> {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let user = authority.split('/').next().and_then(|authority| authority.rsplit_once('@'));
    let password = user.and_then(|(user, _)| user.split_once(':')).map_or("", |(_, password)| password);
    let (bytes, mut out, mut at) = (password.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let octet = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        out.push(octet.unwrap_or(bytes[at]));
        at += if octet.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        store: StoreArgs,
    }

    fn choice(arguments: &[&str]) -> anyhow::Result<StoreAccess> {
        let command = Command::try_parse_from([&["sluice"], arguments].concat())?;
        match command.store.choice()? {
            StoreChoice::Access(access) => Ok(*access),
            other => Err(anyhow!("{other:?}")),
        }
    }

    #[test]
    fn those_who_know_the_password_derive_one_secret() {
        let secret = |url: &str| choice(&["--store", url]).unwrap().key_secret;
        assert_eq!(secret("redis://:p%40ss@a:6379"), secret("rediss://default:p%40s%73@b:6380/1"));
        assert_eq!(secret("redis://:p%40ss@a"), secret("redis+cluster://u:p%40ss@a:1,b:2"));
        assert_eq!(secret("redis://:p%40ss@a"), secret("rediss+sentinel://u:p%40ss@a,b/main"));
        assert_ne!(secret("redis://:one@a:6379"), secret("redis://:two@a:6379"));
        assert_eq!(password("redis://a:6379/x@y"), b"");
    }

    #[test]
    fn a_store_is_memory_or_redis_and_its_url_is_not_shown() {
        assert!(choice(&[]).unwrap_err().to_string().contains("Memory"));
        let command = Command::try_parse_from(["sluice", "--store", "redis://:secret@a"]).unwrap();
        let text = format!("{:?} {:?}", command.store, choice(&["--store", "redis://:secret@a"]));
        assert!(!text.contains("secret@"), "{text}");
    }

    #[test]
    fn what_is_no_store_is_told_what_is_without_being_repeated() {
        for text in
            ["Memory", "MEMORY", "memory:", "", "hunter2@a:6379", "redis:hunter2@a", "valkey://:hunter2@a"]
        {
            let error = format!("{:#}", choice(&["--store", text]).unwrap_err());
            assert!(
                error.starts_with("--store: it must be memory, in lower case, or begin with redis://, "),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = format!("{:#}", choice(&["--store", "redis://:hunter2@a:1,b:2"]).unwrap_err());
        assert!(error.starts_with("--store: ") && error.contains("several servers"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn what_only_a_redis_needs_is_refused_with_memory() {
        let refused = |arguments: &[&str]| {
            let text = choice(arguments).unwrap_err().to_string();
            text.split_once(": no effect with --store memory").map(|(given, _)| given.to_owned())
        };
        // Not even read.
        assert_eq!(refused(&["--key-secret-file", "/nowhere"]).as_deref(), Some("--key-secret-file"));
        let memory = ["--store", "memory", "--store-ca", "a", "--store-cert", "b", "--store-key", "c"];
        assert_eq!(refused(&memory).as_deref(), Some("--store-ca, --store-cert, --store-key"));
        let sentinel = ["--store-sentinel-username", "a", "--store-sentinel-password-file", "b"];
        let both = "--store-sentinel-username, --store-sentinel-password-file";
        assert_eq!(refused(&sentinel).as_deref(), Some(both));
        assert_eq!(refused(&["--latency-budget", "1s"]), None);
    }

    #[test]
    fn a_secret_of_a_file_is_taken_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        let choice = || choice(&["--store", "redis://a", "--key-secret-file", file.to_str().unwrap()]);
        assert!(choice().unwrap_err().to_string().contains("--key-secret-file"));
        std::fs::write(&file, "AAAA\n").unwrap();
        assert!(choice().unwrap_err().to_string().contains("16 bytes"));
        std::fs::write(&file, "AAAAAAAAAAAAAAAAAAAAAA==\n").unwrap();
        assert_eq!(choice().unwrap().key_secret, KeySecret::new([0; 16]));
    }

    #[test]
    fn certificates_and_the_sentinels_password_come_from_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let [ca, cert, key, password] = [
            ("ca", "an authority"),
            ("cert", "a certificate"),
            ("key", "its key"),
            ("password", "hunter2\n"),
        ]
        .map(|(name, text)| file(name, text));
        let store = ["--store", "rediss+sentinel://a/main"];
        let files = ["--store-ca", &ca, "--store-cert", &cert, "--store-key", &key];
        let sentinel = ["--store-sentinel-username", "watcher", "--store-sentinel-password-file", &password];
        let access = choice(&[&store[..], &files, &sentinel].concat()).unwrap();
        let client = ClientCertificate { certificate: "a certificate".into(), key: "its key".into() };
        assert_eq!((access.ca.as_deref(), access.client), (Some("an authority"), Some(client)));
        assert_eq!(access.sentinel_username.as_deref(), Some("watcher"));
        assert_eq!(access.sentinel_password.as_deref(), Some("hunter2"));

        for one in [&files[2..4], &files[4..]] {
            let error = choice(&[&store[..], one].concat()).unwrap_err().to_string();
            assert!(error.contains("--store-key") && error.contains("--store-cert"), "{error}");
        }
        let error = choice(&[&store[..], &["--store-ca", "/nowhere"]].concat()).unwrap_err();
        assert!(error.to_string().contains("--store-ca /nowhere"), "{error}");
    }
}
