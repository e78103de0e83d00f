//! The attributes of a request that limits look at. What has to be parsed is parsed once, when it is first needed.
//!
//! - [`field_name`]: names of headers, parameters and cookies, and which of them are alike.
//! - `fields`: the query and the cookies, in an index. [`values`]: what stands under one name.
//! - [`text`]: spellings of a value.

use std::cell::{Cell, OnceCell};
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, FORWARDED, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use smallvec::SmallVec;

use self::fields::{Fields, FoldedHeaders};
use self::text::{trimmed, without_encoded_words};
use self::values::{FoundValues, MAX_VALUES};
use crate::effort::{Effort, LOOK_UP, note};
use crate::overrides::{ClientDigest, client_digest};
use crate::path::{Readings, behind_path};

pub use self::field_name::{FieldName, Habit, HeaderField};
pub use self::values::{Part, Values};

pub mod field_name;
mod fields;
pub mod text;
pub mod values;

/// The headers in which proxies report hosts.
static REPORTED_HOSTS: LazyLock<[HeaderField; 3]> = LazyLock::new(|| {
    ["x-forwarded-host", "forwarded", "x-forwarded-server"]
        .map(|name| HeaderField::new(HeaderName::from_static(name)))
});

/// The attributes of a request that limits look at.
#[derive(Debug)]
pub struct RequestAttributes<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Target of the request as the client wrote it.
    pub uri: &'a Uri,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Headers in which proxies report addresses of clients, as the request came. A client must not hide its address by a list of the
    /// fields that are not forwarded.
    pub address_headers: &'a HeaderMap,
    /// Address of the peer that opened the connection.
    pub peer: IpAddr,
    /// Address of the client that the peer has reported at the beginning of the connection.
    pub proxied: Option<IpAddr>,
    /// Length of the body in bytes, if it is known before the body; 0 without a body.
    pub body_bytes: Option<u64>,
    /// Whether errors that the request causes are counted. They are not if an operator only asks about a request.
    pub counts_errors: bool,
    /// The effort that is left.
    pub effort: Effort,
    /// The last text that was hashed to find an override, by its length and a quick hash, and its digest.
    digest: Cell<Option<(usize, u64, ClientDigest)>>,
    query: OnceCell<Fields<'a>>,
    cookies: OnceCell<Fields<'a>>,
    /// The names of headers, if there are names that some server takes for others.
    folded_headers: OnceCell<Option<FoldedHeaders<'a>>>,
    /// The names of headers in any case, for policies with such names.
    all_folded_headers: OnceCell<FoldedHeaders<'a>>,
}

impl<'a> RequestAttributes<'a> {
    /// Returns the attributes of a request without a body from a peer.
    #[must_use]
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap, peer: IpAddr) -> Self {
        Self {
            method,
            uri,
            headers,
            address_headers: headers,
            peer,
            proxied: None,
            body_bytes: Some(0),
            counts_errors: true,
            effort: Effort::default(),
            digest: Cell::new(None),
            query: OnceCell::new(),
            cookies: OnceCell::new(),
            folded_headers: OnceCell::new(),
            all_folded_headers: OnceCell::new(),
        }
    }

    /// Returns the attributes with other headers in which proxies report addresses, if there are some.
    #[must_use]
    pub fn with_addresses(self, headers: Option<&'a HeaderMap>) -> Self {
        Self { address_headers: headers.unwrap_or(self.address_headers), ..self }
    }

    /// Returns the digest by which overrides know a client, if there is enough effort for it. Limits with the same key hash a text once.
    /// `is_first` tells whether a plain request would have such a text too.
    pub(crate) fn client_digest(&self, client: &[u8], is_first: bool) -> Option<ClientDigest> {
        let (length, hash) = (client.len(), field_name::hash(client));
        if let Some((.., digest)) = self.digest.get().filter(|(of, known, _)| (*of, *known) == (length, hash))
        {
            return Some(digest);
        }
        let digest = self.effort.hash(length, is_first).then(|| client_digest(client))?;
        self.digest.set(Some((length, hash, digest)));
        Some(digest)
    }

    /// Adds one to the number of requests that have caused an error.
    pub(crate) fn count_error(&self, errors: &AtomicU64) {
        if self.counts_errors {
            errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the readings of the path. Callers compute them once per request.
    #[must_use]
    pub fn path_readings(&self) -> Readings<'a> {
        Readings::of(self.uri.path())
    }

    /// Reports whether the request is a preflight, which has no body: a browser asks whether a script of another site may
    /// send a request.
    #[must_use]
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.body_bytes == Some(0)
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Returns the host, without a port and a last dot, in the case in which the client wrote it. In HTTP/2 it is in
    /// the target.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        let authority = match self.uri.authority() {
            Some(authority) => authority.as_str(),
            None => std::str::from_utf8(self.headers.get(HOST).map(HeaderValue::as_bytes)?).ok()?,
        };
        Some(host_of(authority))
    }

    /// Reports whether a further host, by which an application may take itself to be asked, passes a test: one that a proxy reports,
    /// whoever has written it, or a name in brackets. They are for limits alone, because a client can choose them.
    pub(crate) fn any_reported_host(&self, mut test: impl FnMut(&str) -> bool) -> bool {
        let mut passes = |host: &[u8]| {
            std::str::from_utf8(host).is_ok_and(|host| {
                let host = host_of(host.trim().trim_matches('"'));
                test(host.trim_start_matches('[').trim_end_matches(']'))
            })
        };
        let is_bracketed = self.host().filter(|host| host.starts_with('['));
        is_bracketed.is_some_and(|host| passes(host.as_bytes()))
            || REPORTED_HOSTS.iter().any(|field| {
                self.header(field).any_reading(|list| {
                    if *field.name() != FORWARDED {
                        return passes(list);
                    }
                    list.split(|byte| matches!(byte, b';' | b',')).any(|pair| {
                        let pair = pair.trim_ascii();
                        let (name, value) = pair.split_at_checked(5).unwrap_or((pair, &[]));
                        name.eq_ignore_ascii_case(b"host=") && passes(value)
                    })
                })
            })
    }

    /// Returns the values of a header, also under names that some server takes for this one.
    #[must_use]
    pub fn header(&self, field: &HeaderField) -> Values<'_> {
        note(LOOK_UP);
        let mut values =
            Values { found: SmallVec::new(), rare: SmallVec::new(), is_complete: true, merges_equal: false };
        self.add_headers(&mut values, field, field.name(), (true, true));
        let index = if field.is_odd() {
            Some(self.all_folded_headers.get_or_init(|| FoldedHeaders::new(self.headers)))
        } else {
            self.folded_headers.get_or_init(|| FoldedHeaders::of(self.headers)).as_ref()
        };
        for other in index.into_iter().flat_map(|index| index.others(field)) {
            self.add_headers(&mut values, field, other, (field.is(other), false));
        }
        values
    }

    /// Adds the values under a name. It may identify a client, and all applications may take it for the one that is meant.
    fn add_headers<'s>(
        &'s self,
        values: &mut Values<'s>,
        field: &HeaderField,
        name: &HeaderName,
        (identifies, is_meant): (bool, bool),
    ) {
        for value in self.headers.get_all(name) {
            let count = values.found.len();
            if count == MAX_VALUES || count > 0 && !self.effort.compare(1) {
                values.is_complete = false;
                return;
            }
            let written = value.as_bytes();
            note(1);
            // An application that decodes words sees another value than all others.
            if written.contains(&b'?') && without_encoded_words(written).is_some() {
                values.is_complete = false;
            }
            let normal = trimmed(written);
            let is_list = field.has_lists() && written.contains(&b',');
            // An empty header is none for some applications.
            let is_seen_by_all = is_meant && !normal.is_empty();
            values.found.push(FoundValues {
                forms: &[],
                usual: 0,
                written,
                normal: Some(normal).filter(|_| !is_list),
                identifies,
                is_seen_by_all,
            });
        }
    }

    /// Returns the values of a query parameter, decoded. Some applications ignore the case of its name and what stands in
    /// brackets, separate parameters by semicolons, or take a semicolon or an encoded question mark in the path for the beginning
    /// of the query.
    #[must_use]
    pub fn parameter(&self, name: &FieldName) -> Values<'_> {
        let fields = self.query.get_or_init(|| {
            let query = self.uri.query().unwrap_or_default().as_bytes();
            Fields::of_query(query, behind_path(self.uri.path()).map(str::as_bytes))
        });
        fields.get(name, &self.effort)
    }

    /// Returns the values of a cookie, in all ways in which applications read them.
    #[must_use]
    pub fn cookie(&self, name: &FieldName) -> Values<'_> {
        self.cookies.get_or_init(|| Fields::of_cookies(self.headers)).get(name, &self.effort)
    }
}

/// Reports whether this is a valid `Host`: an authority, or empty, as RFC 9112 (3.2) allows for a target without an authority.
#[must_use]
pub fn is_valid_host(host: &HeaderValue) -> bool {
    host.is_empty() || host.to_str().is_ok_and(is_authority)
}

/// Reports whether a text is a host, perhaps with a port.
#[must_use]
pub fn is_authority(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'))
}

/// Returns the host of an authority, without a port and a last dot.
#[must_use]
pub fn host_of(authority: &str) -> &str {
    // The colons of an IPv6 address stand in brackets.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}
