//! Headers that are about one connection and not about the message (RFC 9110, 7.6.1): they stop here. And the one that
//! says who was on the other side of it.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What makes and frames a message: no `Connection` may take it away.
const PROTECTED: [HeaderName; 5] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE, TRAILER];

/// The protocol that a message asks to change to, or confirms.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(UPGRADE)?;
    let named = tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // A tunnel of HTTP/2 would carry requests past the limits.
    let http2 = wanted.as_bytes().windows(3).any(|w| w.eq_ignore_ascii_case(b"h2c"));
    (named && !http2).then(|| wanted.clone())
}

/// Takes a request's hop-by-hop headers away. The framing stays: it is chunked or sized, and the same on both sides.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    let trailers = headers.get_all(TE).iter().any(|value| {
        value.to_str().is_ok_and(|te| te.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers")))
    });
    strip(headers);
    if headers.contains_key(TE) {
        headers.remove(TE);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// Takes a response's hop-by-hop headers away. Of two lengths the coding counts (RFC 9112, 6.3): what goes out has
/// the length of what came in, not of what was announced beside it.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    strip(headers);
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let plain = codings.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if plain && codings.next().is_none() {
            headers.remove(TRANSFER_ENCODING);
        }
    }
}

/// Adds a request's peer to those that it came by already.
pub(crate) fn forwarded_for(headers: &mut HeaderMap, peer: &HeaderValue) {
    let mut list = Vec::new();
    for before in headers.get_all(&FORWARDED_FOR).iter().filter(|before| !before.is_empty()) {
        list.extend_from_slice(before.as_bytes());
        list.extend_from_slice(b", ");
    }
    let value = if list.is_empty() {
        peer.clone()
    } else {
        list.extend_from_slice(peer.as_bytes());
        // Made of values: there is nothing that could be refused.
        HeaderValue::from_maybe_shared(bytes::Bytes::from(list)).unwrap_or_else(|_| peer.clone())
    };
    headers.insert(FORWARDED_FOR, value);
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = tokens(headers)
            .filter(|token| !["close", "keep-alive", "upgrade"].iter().any(|t| t.eq_ignore_ascii_case(token)))
            .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
            .filter(|name| !PROTECTED.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION);
    headers.remove(UPGRADE);
}

fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_is_about_the_connection_stops_here() {
        let mut request = headers(&[
            ("connection", "Keep-Alive, X-Mine, host, content-length"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("host", "a"),
            ("content-length", "3"),
            ("te", "gzip, trailers"),
            ("x-other", "2"),
        ]);
        strip_request(&mut request);
        assert_eq!(names(&request), ["content-length", "host", "te", "x-other"]);
        assert_eq!(request[TE], "trailers");
    }

    #[test]
    fn a_response_with_two_lengths_keeps_the_one_that_counts() {
        let mut response = headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        strip_response(&mut response);
        assert!(response.is_empty());
        let mut coded = headers(&[("transfer-encoding", "gzip, chunked")]);
        strip_response(&mut coded);
        assert_eq!(names(&coded), ["transfer-encoding"]);
    }

    #[test]
    fn a_peer_stands_behind_all_who_came_before() {
        let peer = HeaderValue::from_static("10.0.0.1");
        let mut request = HeaderMap::new();
        for (add, seen) in [
            ("", "10.0.0.1"),
            ("::1", "10.0.0.1, ::1, 10.0.0.1"),
            ("x, y", "10.0.0.1, ::1, 10.0.0.1, x, y, 10.0.0.1"),
        ] {
            request.append(FORWARDED_FOR, HeaderValue::from_static(add));
            forwarded_for(&mut request, &peer);
            let all: Vec<_> = request.get_all(FORWARDED_FOR).iter().collect();
            assert_eq!(all, [seen]);
        }
    }

    #[test]
    fn http2_is_no_upgrade_that_passes() {
        let ask = |protocol| upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", protocol)]));
        assert_eq!(ask("websocket").unwrap(), "websocket");
        assert_eq!(ask("websocket, H2C"), None);
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
    }
}
