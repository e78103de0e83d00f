//! The key of a request: the client that sent it, as a limit identifies clients. A key is a keyed hash of the
//! parts that the limit names. Each part is hashed with its kind and length, so that no two clients can
//! produce the same input. Operators see a client in words, of which only the parts that the policy calls public are shown.
//!
//! - `source`: the parts as policies have them. [`part`]: one part, with all that its kind needs; `path_templates`: the templates of paths.
//! - [`named_client`]: the client with the values that an operator names.

pub mod named_client;
pub mod part;
mod path_templates;
mod source;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

pub use self::part::{ClientName, ClientNaming, KeyContext, Unnamed};
use self::part::{MISSING, PreparedPart, network_name};
pub use self::source::{KeyPart, KeySource};
use crate::key_secret::KeySecret;
use crate::nack::Nack;
use crate::occurrences::Occurrences;
use crate::path::Readings;
use crate::request::{Part, RequestAttributes};

/// Treatment of a request that lacks a part of the key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnMissing {
    /// All such requests share one counter.
    #[default]
    Shared,
    /// The limit does not apply to the request, if it has the part in no spelling. Otherwise as `Shared`.
    Skip,
    /// The request is rejected.
    Deny,
}

/// The client that sent a request, as one limit identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Hash of the key. It selects the counter.
    Key(u128),
    /// A part of the key is missing, and the limit does not apply to such requests.
    Skip,
    /// A part of the key is missing, and the limit denies such requests.
    Deny,
}

/// Builds the keys of one limit.
#[derive(Debug)]
pub struct KeyBuilder {
    parts: Vec<PreparedPart>,
    /// How operators name the value of each part.
    names: Vec<ClientNaming>,
    on_missing: OnMissing,
    /// Indexes of the parts whose values operators may read.
    public: Vec<usize>,
    unclear: Arc<Occurrences>,
}

impl KeyBuilder {
    /// Creates a builder without tokens and habits. Fails if a header name or a prefix length is not valid.
    pub fn new(parts: &[KeySource], on_missing: OnMissing) -> Result<Self, Nack> {
        Self::of_policy(parts, on_missing, &KeyContext::default())
    }

    /// Creates a builder. Fails if a header name, a prefix length, a template or an expression is not valid, or if a kind of tokens is
    /// unknown.
    pub fn of_policy(
        parts: &[KeySource],
        on_missing: OnMissing,
        context: &KeyContext<'_>,
    ) -> Result<Self, Nack> {
        let names = parts.iter().map(ClientNaming::new).collect::<Result<Vec<_>, _>>()?;
        let sources = parts.iter().zip(&names).map(|(part, naming)| PreparedPart::new(part, naming, context));
        let parts = sources.collect::<Result<_, Nack>>()?;
        Ok(Self { parts, names, on_missing, public: Vec::new(), unclear: Arc::default() })
    }

    /// Reports whether a client can spell a part so that it is not clear.
    #[must_use]
    pub fn may_be_unclear(&self) -> bool {
        self.parts.iter().any(|part| match part {
            PreparedPart::Header(_)
            | PreparedPart::Cookie(_)
            | PreparedPart::Query(_)
            | PreparedPart::Expression { .. }
            | PreparedPart::JwtClaim { .. } => true,
            PreparedPart::Method
            | PreparedPart::Path(_)
            | PreparedPart::Host
            | PreparedPart::GrpcMethod
            | PreparedPart::PathTemplate(..)
            | PreparedPart::ClientIp { .. }
            | PreparedPart::Descriptor(_) => false,
        })
    }

    /// Returns the number of requests that had a part which is not clear.
    #[must_use]
    pub fn unclear(&self) -> &Arc<Occurrences> {
        &self.unclear
    }

    /// Reports whether the client's address is a part of the key.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.parts.iter().any(PreparedPart::needs_address)
    }

    /// Reports whether an expression is a part of the key.
    #[must_use]
    pub fn has_expression(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, PreparedPart::Expression { .. }))
    }

    /// Returns the key of a request, which is the same for all spellings of a value. A part is unclear if applications could read
    /// different values: a client who could choose which of two values counts could choose its counter. Such a request counts
    /// with those that lack the part, and is never skipped.
    #[must_use]
    pub fn identify(
        &self,
        secret: &KeySecret,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> Identity {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        let mut is_unclear = false;
        for part in &self.parts {
            let write = |kind, value: &[u8]| {
                let has_effort = request.effort.read(value.len(), true);
                if has_effort {
                    write_part(&mut hasher, kind, value);
                }
                has_effort
            };
            match part.read(request, path, || address, write) {
                Part::Value(has_effort) => is_unclear |= !has_effort,
                Part::Unclear => is_unclear = true,
                Part::Missing => {
                    return match self.on_missing {
                        OnMissing::Shared => Identity::Key(self.shared_key(secret)),
                        OnMissing::Skip => Identity::Skip,
                        OnMissing::Deny => Identity::Deny,
                    };
                }
            }
        }
        if is_unclear && request.counts_errors {
            self.unclear.count();
        }
        match self.on_missing {
            _ if !is_unclear => Identity::Key(hasher.finish128().as_u128()),
            OnMissing::Shared | OnMissing::Skip => Identity::Key(self.shared_key(secret)),
            OnMissing::Deny => Identity::Deny,
        }
    }

    /// Passes the text of the first part of a request's key to `read`, as overrides name clients, and returns the result.
    /// Returns `None` if the part is missing or unclear. `address` returns the client's address.
    pub fn read_client<R>(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let part = self.parts.first()?;
        match part {
            PreparedPart::ClientIp { .. } => {
                let network = part.network(address())?;
                Some(read(network_name(network).as_bytes()))
            }
            _ => part.read(request, path, address, |_, text| read(text)).value(),
        }
    }

    /// Reports whether a text by which overrides name a client passes a test, in any way in which some application could read the first
    /// part of the key beside the normal one. What nobody can read whole passes. `is_clear` tells whether the part is clear.
    pub fn any_other_client(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: impl FnMut() -> IpAddr,
        is_clear: bool,
        test: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        self.parts.first().is_some_and(|part| part.any_reading(request, path, address, is_clear, test))
    }

    /// Returns the key of all requests that lack a part.
    #[must_use]
    pub fn shared_key(&self, secret: &KeySecret) -> u128 {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        write_part(&mut hasher, MISSING, &[]);
        hasher.finish128().as_u128()
    }
}

fn write_part(hasher: &mut SipHasher24, kind: u8, bytes: &[u8]) {
    hasher.write(&[kind]);
    hasher.write(&(bytes.len() as u64).to_le_bytes());
    hasher.write(bytes);
}

/// Longest text of a value, in characters.
const MAX_VALUE: usize = 64;

impl KeyBuilder {
    /// Returns the builder with these parts public, by their indexes.
    #[must_use]
    pub fn with_public(self, public: Vec<usize>) -> Self {
        Self { public, ..self }
    }

    /// Describes the client of a request: `header x-tenant=acme, clientIP=192.0.2.0/24`. The value of a part that is not public
    /// is `hidden`.
    #[must_use]
    pub fn describe(&self, request: &RequestAttributes<'_>, path: &Readings<'_>, address: IpAddr) -> String {
        self.describe_with(|part, text| match part.network(address) {
            Some(network) if network.prefix_len() == network.max_prefix_len() => {
                let _ = write!(text, "{}", network.addr());
            }
            Some(network) => {
                let _ = write!(text, "{network}");
            }
            None => match part.read(request, path, || address, |_, value| write_value(text, value)) {
                Part::Value(()) => {}
                Part::Missing => text.push_str("missing"),
                Part::Unclear => text.push_str("unclear"),
            },
        })
    }

    /// Describes all clients, if no part of the key is public: `header x-tenant=hidden`.
    #[must_use]
    pub fn describe_all(&self) -> Option<String> {
        self.public.is_empty().then(|| self.describe_with(|_, _| {}))
    }

    /// Describes a client. `write` appends the value of a public part.
    fn describe_with(&self, mut write: impl FnMut(&PreparedPart, &mut String)) -> String {
        let mut text = String::new();
        for (n, part) in self.parts.iter().enumerate() {
            if n > 0 {
                text.push_str(", ");
            }
            part.write_label(&mut text);
            text.push('=');
            if self.public.contains(&n) {
                write(part, &mut text);
            } else {
                text.push_str("hidden");
            }
        }
        if self.parts.is_empty() {
            text.push_str("all clients");
        }
        text
    }
}

/// Appends a value that a client may have chosen: a part of it, without control characters.
fn write_value(text: &mut String, value: &[u8]) {
    let value = String::from_utf8_lossy(value);
    text.extend(value.chars().take(MAX_VALUE).flat_map(char::escape_debug));
    if value.chars().nth(MAX_VALUE).is_some() {
        text.push_str("...");
    }
}
