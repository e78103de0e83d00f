//! Access logs: requests of the past, from files of the usual formats.
//!
//! - [`wrap`]: removes what container runtimes and others write around a line.
//! - [`mod@format`]: recognizes the format of a line and reads it: [`clf`], one of a [`table`], [`json`], or a [`template`];
//!   [`time`]: times as logs write them.
//! - [`reason`]: why a line cannot be read.
//! - [`files`]: reads files in the order of time; [`source`]: decompresses them; [`sorter`]: sorts late lines.

pub(super) mod clf;
pub(super) mod files;
pub(super) mod format;
pub(super) mod json;
pub(super) mod reason;
pub(super) mod sorter;
pub(super) mod source;
pub(super) mod table;
pub(super) mod template;
pub(super) mod time;
pub(super) mod wrap;

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use reason::Reason;

/// A request of an access log.
#[derive(Debug)]
pub(super) struct LoggedRequest {
    /// Microseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) request: Request<Empty<Bytes>>,
    /// Address that the log has for the client.
    pub(super) client: IpAddr,
    pub(super) status: Option<StatusCode>,
}

impl LoggedRequest {
    /// Returns about how much memory the request takes, in bytes.
    fn bytes(&self) -> usize {
        // A value of a header has a place of 104 bytes, and what is allocated has a place in a list or a heap.
        let headers = self.request.headers().values().map(|value| 104 + value.len()).sum::<usize>();
        let path = self.request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        size_of::<Self>() + 64 + path + headers
    }

    /// Reports whether two lines are about the same request.
    fn is_same(&self, other: &Self) -> bool {
        let parts = |logged: &Self| (logged.at, logged.client, logged.status);
        let head = |logged: &Self| (logged.request.method().clone(), logged.request.uri().clone());
        parts(self) == parts(other)
            && head(self) == head(other)
            && self.request.headers() == other.request.headers()
    }
}

/// The fields of a line before they are checked.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) at: Option<u64>,
    pub(super) method: Option<String>,
    pub(super) target: Option<String>,
    pub(super) client: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) headers: Vec<(String, String)>,
    /// Whether fields have names, so that the user can name others.
    pub(super) is_named: bool,
    /// Number of texts in quotation marks after the size, in the common format and those that extend it.
    pub(super) texts: usize,
}

impl Fields {
    /// Returns the request, or what is wrong with the line.
    pub(super) fn request(self) -> Result<Box<LoggedRequest>, Reason> {
        let or = |field: Reason, other: Reason| if self.is_named { field } else { other };
        let at = self.at.ok_or(or(Reason::NoTimeField, Reason::NoTime))?;
        let client = self.client.as_deref().filter(|client| !client.is_empty() && *client != "-");
        let client = client.ok_or(or(Reason::NoClientField, Reason::NoClient))?;
        // The last address of a list is the nearest: each proxy appends that of its own client.
        let (before, client) =
            client.rsplit_once(',').map_or((None, client), |(before, last)| (Some(before), last));
        let client = address(client).ok_or(Reason::NotAnAddress)?;
        if self.target.is_none() && self.method.is_some() && !self.is_named {
            return Err(Reason::NotARequest);
        }
        let target = self.target.as_deref().ok_or(or(Reason::NoTargetField, Reason::NoTarget))?;
        let method = self.method.as_deref().unwrap_or("GET");
        let mut request = Request::builder().method(method).uri(path_and_query(target));
        // Many requests are held back. A map grows to much more than it needs.
        if let Some(headers) = request.headers_mut() {
            *headers = HeaderMap::with_capacity(self.headers.len());
        }
        for (name, value) in &self.headers {
            // One that cannot be sent is left out.
            if let Ok(value) = HeaderValue::from_str(value) {
                request = request.header(name, value);
            }
        }
        let has_addresses = self.headers.iter().any(|(name, _)| name == "x-forwarded-for");
        if let Some(Ok(before)) = before.filter(|_| !has_addresses).map(HeaderValue::from_str) {
            request = request.header("x-forwarded-for", before);
        }
        let request = request.body(Empty::new()).map_err(|_| Reason::NotARequest)?;
        let status = self.status.and_then(|status| StatusCode::from_u16(status).ok());
        Ok(Box::new(LoggedRequest { at, request, client, status }))
    }

    /// Reads the line of a request: `GET / HTTP/1.1`.
    fn request_line(&mut self, line: &str) {
        let mut words = line.split(' ').map(str::to_owned);
        let method = words.next().filter(|word| !word.is_empty());
        (self.method, self.target) = (self.method.take().or(method), words.next());
    }

    /// Adds a header, unless the log has a dash or nothing for it.
    pub(super) fn header(&mut self, name: &str, value: &str) {
        if !value.is_empty() && value != "-" {
            self.headers.push((name.to_owned(), value.to_owned()));
        }
    }
}

/// Returns path and query of a target, which some logs write as a URL.
fn path_and_query(target: &str) -> &str {
    if target.starts_with('/') {
        return target;
    }
    let Some((_, rest)) = target.split_once("://") else { return target };
    match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => &rest[at..],
        Some(_) | None => "/",
    }
}

/// Reads an address, with a port or without one.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let plain = || text.parse().ok();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    plain().or_else(with_port).or_else(bracketed)
}
