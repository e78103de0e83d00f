//! Identifiers of a policy and of its versions.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// UID of a policy object.
pub type PolicyUid = String;

/// Hash of a compiled policy: the first half of the SHA-256 of its JSON, in 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyHash(String);

impl PolicyHash {
    /// Returns the hash of a policy's JSON, computed over its exact bytes.
    #[must_use]
    pub fn of(json: &str) -> Self {
        use fmt::Write as _;
        let mut text = String::with_capacity(32);
        for byte in &Sha256::digest(json)[..16] {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }
}

impl fmt::Display for PolicyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
