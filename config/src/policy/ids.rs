//! Identifiers of a policy, of its versions, and of what it refers to.

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
        Self(hexadecimal(&Sha256::digest(json)[..16]))
    }
}

impl fmt::Display for PolicyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hash of content that sidecars fetch apart from the policy: the SHA-256 of its bytes, in 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct BlobHash(String);

impl BlobHash {
    /// Returns the hash of content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self(hexadecimal(&Sha256::digest(content)))
    }
}

/// A text that is no [`BlobHash`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash of content has 64 hexadecimal digits")]
pub struct InvalidBlobHash;

impl TryFrom<String> for BlobHash {
    type Error = InvalidBlobHash;

    fn try_from(text: String) -> Result<Self, InvalidBlobHash> {
        // It becomes the name of a file and a part of a path.
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(is_digit) { Ok(Self(text)) } else { Err(InvalidBlobHash) }
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
