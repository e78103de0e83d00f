//! The store of `sluice run`, from its arguments.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_host::duration::duration;
use sluice_store::RedisOptions;
use sluice_store::redis::{ClientCertificate, MAX_PARTITIONS, OptionsError, Secret, StoreCredentials};

#[cfg(test)]
mod tests;

/// The arguments of the store. Their doc comments are the help text.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Store for the counters: memory, redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT or
    /// redis+sentinel://HOST:PORT,HOST:PORT/MASTER; rediss in place of redis means TLS; or unix:///PATH, the socket of a Redis
    /// on this machine. Set a URL with a
    /// password (USER:PASSWORD@) by the environment variable, because other users of the machine can read
    /// arguments
    #[arg(long, env = "SLUICE_STORE", value_name = "URL", default_value = "memory", hide_env_values = true)]
    store: StoreArg,
    /// File with the certificate authorities that sign the store's certificate, in PEM. Default: the public
    /// authorities
    #[arg(long, env = "SLUICE_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// File with a client certificate in PEM, for a store that requires one
    #[arg(long, env = "SLUICE_STORE_CERT", value_name = "FILE", requires = "store_key")]
    store_cert: Option<PathBuf>,
    /// File with the private key of the client certificate, in PEM
    #[arg(long, env = "SLUICE_STORE_KEY", value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// File with the password for the servers that hold counters, for a password that changes, such as a token: it is read for
    /// each connection, and sent on the open ones within seconds of a change. The user is USER@ in the URL
    #[arg(long, env = "SLUICE_STORE_PASSWORD_FILE", value_name = "FILE", requires = "key_secret_file")]
    store_password_file: Option<PathBuf>,
    /// Username for the sentinels, if they require one; USER:PASSWORD@ in the URL is for the servers that
    /// they watch
    #[arg(long, env = "SLUICE_STORE_SENTINEL_USERNAME", value_name = "NAME")]
    store_sentinel_username: Option<String>,
    /// File with the password for the sentinels, if they require one
    #[arg(long, env = "SLUICE_STORE_SENTINEL_PASSWORD_FILE", value_name = "FILE")]
    store_sentinel_password_file: Option<PathBuf>,
    /// File with the secret that client keys are hashed with, 16 bytes in base64; all processes that share a
    /// Redis need the same one. Default: derived from the Redis password. Set it if there is no password, for
    /// example with a client certificate: anyone can compute the default then and recognize clients in Redis.
    /// Not allowed with --store memory, where keys never leave the process
    #[arg(long, env = "SLUICE_KEY_SECRET_FILE", value_name = "FILE")]
    key_secret_file: Option<PathBuf>,
    /// Number of hash tags over which the keys in Redis are spread; for a cluster, 16 to 32 for each master.
    /// All processes that share a Redis need the same number. With another number, all counters start at zero
    #[arg(long, env = "SLUICE_STORE_PARTITIONS", value_name = "NUMBER", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARTITIONS)))]
    store_partitions: u16,
    /// Longest time that a check in Redis may take
    #[arg(long, env = "SLUICE_LATENCY_BUDGET", value_name = "DURATION", default_value = "50ms")]
    #[arg(value_parser = duration)]
    latency_budget: Duration,
}

/// `memory` or the URL of a Redis. It is never printed, because the URL may contain a password.
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
    // URLs are validated later. An error here would make clap print the whole URL.
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "memory" => Self::Memory,
            url => Self::Redis(url.to_owned()),
        })
    }
}

impl StoreArgs {
    /// Returns the store that the arguments describe, with the secret that keys are hashed with.
    pub(crate) fn choice(self) -> anyhow::Result<StoreChoice> {
        let Self {
            store,
            store_ca,
            store_cert,
            store_key,
            store_password_file,
            store_sentinel_username,
            store_sentinel_password_file,
            key_secret_file,
            store_partitions,
            latency_budget,
        } = self;
        let StoreArg::Redis(url) = store else {
            let only_for_redis = [
                ("--store-ca", store_ca.is_some()),
                ("--store-cert", store_cert.is_some()),
                ("--store-key", store_key.is_some()),
                ("--store-password-file", store_password_file.is_some()),
                ("--store-sentinel-username", store_sentinel_username.is_some()),
                ("--store-sentinel-password-file", store_sentinel_password_file.is_some()),
                ("--key-secret-file", key_secret_file.is_some()),
            ];
            let set: Vec<_> = only_for_redis.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
            ensure!(
                set.is_empty(),
                "{}: not allowed with --store memory (the default), where counters stay in this process: \
                 set --store to the URL of a Redis, or remove these arguments",
                set.join(", ")
            );
            return Ok(StoreChoice::Memory);
        };
        let redis = match RedisOptions::from_url(&url) {
            Err(OptionsError::Scheme) => bail!(
                "--store: must be memory, in lower case, or a URL that begins with redis://, \
                 redis+cluster:// or redis+sentinel://, with rediss in place of redis for TLS, or with unix:///"
            ),
            other => other.context("--store")?,
        };
        if redis.password.is_some() && std::env::args().any(|argument| argument.contains(&url)) {
            tracing::warn!(
                "--store has a password, and other users of this machine can read arguments: set SLUICE_STORE instead"
            );
        }
        let key_secret = match read("--key-secret-file", key_secret_file.as_deref())? {
            None => {
                let password = redis.password.as_ref().map_or("", Secret::expose);
                if password.is_empty() {
                    tracing::warn!(
                        "client keys are hashed with a secret that anyone can compute, because --store has \
                         no password: set --key-secret-file to a file with 16 random bytes in base64 \
                         (openssl rand -base64 16), the same for all processes that share this Redis"
                    );
                }
                derive(password)
            }
            Some(text) => KeySecret::try_from(text).map_err(|error| anyhow!("--key-secret-file: {error}"))?,
        };
        let certificate = read("--store-cert", store_cert.as_deref())?;
        let key = read("--store-key", store_key.as_deref())?;
        let sentinel_password =
            read("--store-sentinel-password-file", store_sentinel_password_file.as_deref())?;
        let credentials = StoreCredentials {
            sentinel_username: store_sentinel_username,
            sentinel_password: sentinel_password.map(|text| Secret::new(text.trim_end_matches(['\r', '\n']))),
            ca: read("--store-ca", store_ca.as_deref())?,
            client_certificate: certificate
                .zip(key)
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            ..StoreCredentials::default()
        };
        let redis = RedisOptions {
            latency_budget,
            partitions: store_partitions,
            password_file: store_password_file,
            ..redis
        };
        let redis = redis.with_credentials(credentials).context("--store")?;
        redis.check().context("--store")?;
        Ok(StoreChoice::Access(Box::new(StoreAccess { redis, key_secret })))
    }
}

/// Derives the secret that keys are hashed with. Every process with the same password derives the same one.
fn derive(password: &str) -> KeySecret {
    let digest = Sha256::new().chain_update("sluice run\0").chain_update(password).finalize();
    KeySecret::new(std::array::from_fn(|n| digest[n]))
}

/// Reads the file that an argument names.
fn read(argument: &str, file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let text =
        |file: &Path| std::fs::read_to_string(file).with_context(|| format!("{argument} {}", file.display()));
    file.map(text).transpose()
}
