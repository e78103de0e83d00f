//! The secret that keys are hashed with, so that an API key never reaches Redis, a log or a debug page.

use std::fmt;
use std::hash::Hasher as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// The secret that keys are hashed with. Every process that counts in the same store needs the same secret.
/// Serialized in base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    /// Creates a secret from 16 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Derives the secret of a namespace. Whoever knows it learns nothing about that of another.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Self {
        let hash = Sha256::new().chain_update(self.0).chain_update(namespace).finalize();
        // Half of the hash, so it cannot be extended to that of a longer name.
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        Self(bytes)
    }

    /// Returns a code of these texts that only those can make who know the secret. `kind` keeps apart what codes are for; those below
    /// 250 are for keys.
    #[must_use]
    pub fn code(&self, kind: u8, texts: &[&[u8]]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[kind]);
        texts.iter().for_each(|text| hasher.write(text));
        hasher.finish128().h1
    }

    /// Returns the bytes of the secret.
    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl TryFrom<String> for KeySecret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| "the key secret is not valid base64")?;
        bytes.try_into().map(Self).map_err(|_| "the key secret must be exactly 16 bytes in base64")
    }
}

impl From<KeySecret> for String {
    fn from(secret: KeySecret) -> Self {
        STANDARD.encode(secret.0)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_a_secret_of_its_own() {
        let secret = KeySecret::new([1; 16]);
        let [a, again, ab] = ["a", "a", "ab"].map(|namespace| secret.of_namespace(namespace));
        assert!(a == again && a != ab && a != secret);
        assert_ne!(KeySecret::new([2; 16]).of_namespace("a"), a);
    }

    #[test]
    fn a_secret_survives_serialization_and_is_not_printed() {
        let secret = KeySecret::new([1; 16]);
        assert_eq!(format!("{secret:?}"), "KeySecret(redacted)");
        assert_eq!(KeySecret::try_from(String::from(secret.clone())), Ok(secret));
    }
}
