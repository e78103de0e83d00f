//! Where the counters of `sluice run` live, from one argument.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::message::StoreAccess;
use sluice_sidecar::StoreChoice;

/// `memory` or a URL of Redis. Never printed: the URL may carry a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreArg {
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
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "memory" => Ok(Self::Memory),
            url if url.starts_with("redis://") || url.starts_with("rediss://") => {
                Ok(Self::Redis(url.to_owned()))
            }
            _ => Err("memory, redis://HOST:PORT or rediss://HOST:PORT is needed"),
        }
    }
}

impl StoreArg {
    /// The store, with the secret that keys are hashed with: the file's, or one that all who know the password
    /// derive alike.
    pub(crate) fn choice(self, secret: Option<&Path>, budget: Duration) -> anyhow::Result<StoreChoice> {
        let Self::Redis(url) = self else { return Ok(StoreChoice::Memory) };
        let key_secret = match secret {
            None => derive(&password(&url)),
            Some(file) => {
                let name = file.display();
                let text =
                    std::fs::read_to_string(file).with_context(|| format!("--key-secret-file {name}"))?;
                KeySecret::try_from(text).map_err(|error| anyhow!("--key-secret-file {name}: {error}"))?
            }
        };
        let latency_budget_millis = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        Ok(StoreChoice::new(Some(StoreAccess {
            url,
            username: None,
            password: None,
            ca: None,
            latency_budget_millis,
            key_secret,
            prefix: "sluice:".into(),
        })))
    }
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
    use super::*;

    #[test]
    fn those_who_know_the_password_derive_one_secret() {
        let secret = |url: &str| match StoreArg::from_str(url).unwrap().choice(None, Duration::ZERO).unwrap()
        {
            StoreChoice::Access(access) => access.key_secret,
            other => panic!("{other:?}"),
        };
        assert_eq!(secret("redis://:p%40ss@a:6379"), secret("rediss://default:p%40s%73@b:6380/1"));
        assert_ne!(secret("redis://:one@a:6379"), secret("redis://:two@a:6379"));
        assert_eq!(password("redis://a:6379/x@y"), b"");
    }

    #[test]
    fn a_store_is_memory_or_redis_and_its_url_is_not_shown() {
        assert_eq!("memory".parse(), Ok(StoreArg::Memory));
        assert!("postgres://a".parse::<StoreArg>().is_err());
        let redis: StoreArg = "redis://:secret@a".parse().unwrap();
        assert!(!format!("{redis:?}").contains("secret"));
    }

    #[test]
    fn a_secret_of_a_file_is_taken_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        let choice = || StoreArg::Redis("redis://a".into()).choice(Some(&file), Duration::ZERO);
        assert!(choice().unwrap_err().to_string().contains("--key-secret-file"));
        std::fs::write(&file, "AAAA\n").unwrap();
        assert!(choice().unwrap_err().to_string().contains("16 bytes"));
        std::fs::write(&file, "AAAAAAAAAAAAAAAAAAAAAA==\n").unwrap();
        let StoreChoice::Access(access) = choice().unwrap() else { panic!() };
        assert_eq!(access.key_secret, KeySecret::new([0; 16]));
    }
}
