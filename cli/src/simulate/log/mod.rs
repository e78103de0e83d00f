//! Access logs: requests of the past, from files of the usual formats, with times as logs write them.
//!
//! - [`wrap`]: removes what container runtimes and others write around a line.
//! - [`mod@format`]: recognizes the format of a line and reads it: [`clf`], a table, [`json`], or a [`template`].
//! - [`files`]: reads files in the order of time, compressed ones too; [`sorter`]: sorts late lines.

pub(super) mod clf;
pub(super) mod files;
pub(super) mod format;
pub(super) mod json;
pub(super) mod sorter;
pub(super) mod template;
pub(super) mod wrap;

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use jiff::Timestamp;
use jiff::fmt::strtime;

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

/// Why a line cannot be read. The order is that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::simulate) enum Reason {
    Format,
    Other,
    Wrapped,
    Piece,
    TwoWays,
    Repeated,
    NoTime,
    NoTimeField,
    NoClient,
    NoClientField,
    NoTarget,
    NoTargetField,
    NotAnAddress,
    NotARequest,
    TooLong,
    FarAway,
}

impl Reason {
    /// Returns the reason in words, and what to do.
    pub(in crate::simulate) fn text(self) -> &'static str {
        match self {
            Self::Format => {
                "in no known format: give its name, or the format string of nginx or Apache, with --format"
            }
            Self::Other => "not in the format that --format says",
            Self::Wrapped => "not wrapped as the first lines of the file are",
            Self::Piece => "a piece of a line that the container runtime has split",
            Self::TwoWays => "can be read in two ways: give the format with --format",
            Self::Repeated => "a field has two values",
            Self::NoTime => "no time",
            Self::NoTimeField => "no time: name its field with --field time=FIELD",
            Self::NoClient => "no address of a client",
            Self::NoClientField => "no address of a client: name its field with --field client=FIELD",
            Self::NoTarget => "no target of a request",
            Self::NoTargetField => "no target of a request: name its field with --field target=FIELD",
            Self::NotAnAddress => "the client is not an IP address",
            Self::NotARequest => "not an HTTP request",
            Self::TooLong => "longer than 256 KiB",
            Self::FarAway => "the time is far from that of all lines around, so the line is set aside",
        }
    }
}

/// Reads `2026-11-23T10:00:00.123Z`, with any offset, as microseconds since the Unix epoch.
fn rfc3339(text: &str) -> Option<u64> {
    micros(text.parse().ok()?)
}

/// Reads `23/Nov/2026:10:00:00 +0000`, also with fractions of a second.
fn clf_time(text: &str) -> Option<u64> {
    micros(strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).ok()?.to_timestamp().ok()?)
}

/// Reads `23/Nov/2026:10:00:00.123` as UTC.
fn without_offset(text: &str) -> Option<u64> {
    clf_time(&format!("{text} +0000"))
}

/// Returns the begin of a request that ended at a time, and took so many seconds.
fn begin_time(end: u64, seconds: Option<f64>) -> u64 {
    end.saturating_sub((seconds.unwrap_or(0.0).max(0.0) * 1e6) as u64)
}

/// Reads seconds, milliseconds, microseconds or nanoseconds since the Unix epoch. The size tells the unit: all are of this century.
fn time_of_number(number: f64) -> Option<u64> {
    let factor = match number {
        n if !(1e8..1e20).contains(&n) => return None,
        n if n < 1e11 => 1e6,
        n if n < 1e14 => 1e3,
        n if n < 1e17 => 1.0,
        _ => 1e-3,
    };
    Some((number * factor) as u64)
}

/// Reads a time of any of these forms.
fn any_time(text: &str) -> Option<u64> {
    let text = text.trim_matches(['[', ']']);
    rfc3339(text).or_else(|| clf_time(text)).or_else(|| time_of_number(text.parse().ok()?))
}

fn micros(time: Timestamp) -> Option<u64> {
    u64::try_from(time.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_forms_are_read() {
        let second = 1_795_428_000_000_000;
        for text in [
            "2026-11-23T10:00:00Z",
            "2026-11-23T11:00:00+01:00",
            "[2026-11-23T10:00:00.000Z]",
            "23/Nov/2026:10:00:00 +0000",
            "23/Nov/2026:10:00:00.000 +0000",
            "[23/Nov/2026:05:00:00 -0500]",
            "1795428000",
            "1795428000.000",
            "1795428000000",
            "1795428000000000",
            "1795428000000000000",
        ] {
            assert_eq!(any_time(text), Some(second), "{text}");
        }
        for text in ["", "yesterday", "10:00", "-1", "1e300", "NaN", "12"] {
            assert_eq!(any_time(text), None, "{text}");
        }
    }
}
