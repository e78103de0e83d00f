//! The secret that keys are hashed with, derived from the Redis password.

use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;

/// Derives the secret. Every process with the same password derives the same secret.
pub(super) fn derive(password: &[u8]) -> KeySecret {
    let digest = Sha256::new().chain_update("sluice run\0").chain_update(password).finalize();
    KeySecret::new(std::array::from_fn(|n| digest[n]))
}

/// Returns the password of a URL with percent-encoding decoded; empty if the URL has none.
pub(super) fn password(url: &str) -> Vec<u8> {
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
    fn a_url_without_userinfo_has_no_password() {
        assert_eq!(password("redis://a:6379/x@y"), b"");
    }
}
