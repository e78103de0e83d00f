//! Hop-by-hop headers, which concern one connection and not the message (RFC 9110, 7.6.1), and
//! `X-Forwarded-For`, which records the peer of that connection.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Body;
use sluice_config::client_address::AddressHeader;

use crate::upstream::expectation::is_expected;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of the connection.
const OF_CONNECTION: [HeaderName; 4] = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, UPGRADE];

/// Headers that identify and frame a message. `Connection` cannot remove them.
const PROTECTED: [HeaderName; 5] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE, TRAILER];

/// Returns the value of `Upgrade` if a request may change its protocol. `None` for HTTP/2, which must not be
/// tunneled.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let is_named = tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // A tunnel of HTTP/2 would carry requests past the limits.
    let is_http2 = protocol.as_bytes().windows(3).any(|w| w.eq_ignore_ascii_case(b"h2c"));
    (is_named && !is_http2).then(|| protocol.clone())
}

/// Makes the headers of a request of HTTP/1 those that the application receives, before anything decides by them: a client could
/// choose the value of a header that is not forwarded, and be another client with each. The framing stays, because it is the same on
/// both sides. `host` is that of a request without one.
///
/// Returns the headers in which proxies report addresses if they are removed: the client's address is read from them all the same.
pub(crate) fn strip_request<B: Body>(request: &mut Request<B>, host: &str) -> Option<Box<HeaderMap>> {
    // Most heads have nothing of this, and a look at each name is less than one lookup for each of these.
    let of_connection = |name: &HeaderName| OF_CONNECTION.contains(name) || *name == TE || *name == EXPECT;
    let has_host = request.headers().contains_key(HOST);
    if has_host && !request.headers().keys().any(of_connection) {
        return None;
    }
    let awaits_body = is_expected(request.headers()) && !request.body().is_end_stream();
    let headers = request.headers_mut();
    let upgrade = upgrade(headers);
    let trailers = headers.get_all(TE).iter().any(|value| {
        value.to_str().is_ok_and(|te| te.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers")))
    });
    let reported = reported_addresses(headers);
    strip(headers);
    if headers.contains_key(TE) {
        headers.remove(TE);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    if !awaits_body {
        // The client expects nothing, or has sent the body already.
        headers.remove(EXPECT);
    }
    if !has_host && let Ok(host) = HeaderValue::from_str(host) {
        headers.insert(HOST, host);
    }
    reported
}

/// Returns the headers in which proxies report addresses if `Connection` names one.
fn reported_addresses(headers: &HeaderMap) -> Option<Box<HeaderMap>> {
    let names = AddressHeader::OF_REQUESTS.map(AddressHeader::name).into_iter().flatten();
    let is_named = |name: &HeaderName| tokens(headers).any(|token| token.eq_ignore_ascii_case(name.as_str()));
    if !headers.contains_key(CONNECTION) || !names.clone().any(|name| is_named(&name)) {
        return None;
    }
    let values =
        |name: HeaderName| headers.get_all(&name).iter().map(move |value| (name.clone(), value.clone()));
    Some(Box::new(names.flat_map(values).collect()))
}

/// Removes the hop-by-hop headers of a response. A transfer coding overrides a `Content-Length` beside it
/// (RFC 9112, 6.3), so that length is removed too.
pub(crate) fn strip_response(status: StatusCode, headers: &mut HeaderMap) {
    if !headers.keys().any(|name| OF_CONNECTION.contains(name) || *name == TRANSFER_ENCODING) {
        return;
    }
    let required = headers.get(UPGRADE).filter(|_| status == StatusCode::UPGRADE_REQUIRED).cloned();
    strip(headers);
    if let Some(protocol) = required {
        // The response is nothing without it (RFC 9110, 15.5.22).
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let plain = codings.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if plain && codings.next().is_none() {
            headers.remove(TRANSFER_ENCODING);
        }
    }
}

/// Appends the request's peer to `X-Forwarded-For`.
pub(crate) fn append_forwarded_for(headers: &mut HeaderMap, peer: &HeaderValue) {
    let mut list = Vec::new();
    for before in headers.get_all(&FORWARDED_FOR).iter().filter(|before| !before.is_empty()) {
        list.extend_from_slice(before.as_bytes());
        list.extend_from_slice(b", ");
    }
    let value = if list.is_empty() {
        peer.clone()
    } else {
        list.extend_from_slice(peer.as_bytes());
        // Valid values joined by commas are a valid value.
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
    }
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
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
    fn hop_by_hop_headers_of_a_request_are_removed() {
        let request = headers(&[
            ("connection", "Keep-Alive, X-Mine, host, content-length"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("host", "a"),
            ("content-length", "3"),
            ("te", "gzip, trailers"),
            ("x-other", "2"),
        ]);
        let (request, reported) = stripped(request);
        assert_eq!(names(&request), ["content-length", "host", "te", "x-other"]);
        assert_eq!((&request[TE], reported), (&HeaderValue::from_static("trailers"), None));
    }

    /// Returns the headers of a request without a body as they are forwarded, and those that report addresses, if they are removed.
    fn stripped(headers: HeaderMap) -> (HeaderMap, Option<HeaderMap>) {
        let mut request = Request::new(http_body_util::Empty::<bytes::Bytes>::new());
        *request.headers_mut() = headers;
        let reported = strip_request(&mut request, "127.0.0.1:80");
        (request.headers().clone(), reported.map(|reported| *reported))
    }

    #[test]
    fn addresses_that_a_client_has_removed_are_read_all_the_same() {
        let sent = [("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.2"), ("x-other", "1")];
        for connection in ["X-Forwarded-For", "close, forwarded,x-other"] {
            let (left, reported) = stripped(headers(&[&[("connection", connection)], &sent[..]].concat()));
            assert_eq!(left.len(), if connection.contains("other") { 2 } else { 3 }, "{connection} {left:?}");
            assert_eq!(reported, Some(headers(&sent[..2])), "{connection}");
        }
        let (_, reported) = stripped(headers(&[&[("connection", "x-other")], &sent[..]].concat()));
        assert_eq!(reported, None);
    }

    #[test]
    fn what_the_application_gets_in_place_of_a_header_is_there_for_limits() {
        let upgrade = headers(&[("connection", "x, Upgrade"), ("upgrade", "websocket"), ("host", "a")]);
        let expected = headers(&[("connection", "upgrade"), ("upgrade", "websocket"), ("host", "a")]);
        assert_eq!(stripped(upgrade).0, expected);
        assert_eq!(names(&stripped(headers(&[("upgrade", "websocket"), ("host", "a")])).0), ["host"]);
        let (left, _) = stripped(headers(&[("expect", "100-continue")]));
        assert_eq!(left, headers(&[("host", "127.0.0.1:80")]));
    }

    #[test]
    fn a_transfer_coding_overrides_a_content_length() {
        let mut response = headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        strip_response(StatusCode::OK, &mut response);
        assert!(response.is_empty());
        let mut coded = headers(&[("transfer-encoding", "gzip, chunked")]);
        strip_response(StatusCode::OK, &mut coded);
        assert_eq!(names(&coded), ["transfer-encoding"]);
    }

    #[test]
    fn the_protocol_that_a_client_must_speak_stays() {
        let mut response =
            headers(&[("connection", "Upgrade, X-Mine"), ("upgrade", "TLS/1.2"), ("x-mine", "1")]);
        let mut required = response.clone();
        strip_response(StatusCode::OK, &mut response);
        assert!(response.is_empty());
        strip_response(StatusCode::UPGRADE_REQUIRED, &mut required);
        assert_eq!(required, headers(&[("connection", "upgrade"), ("upgrade", "TLS/1.2")]));
    }

    #[test]
    fn the_peer_is_appended_to_all_earlier_entries() {
        let peer = HeaderValue::from_static("10.0.0.1");
        let mut request = HeaderMap::new();
        for (add, seen) in [
            ("", "10.0.0.1"),
            ("::1", "10.0.0.1, ::1, 10.0.0.1"),
            ("x, y", "10.0.0.1, ::1, 10.0.0.1, x, y, 10.0.0.1"),
        ] {
            request.append(FORWARDED_FOR, HeaderValue::from_static(add));
            append_forwarded_for(&mut request, &peer);
            let all: Vec<_> = request.get_all(FORWARDED_FOR).iter().collect();
            assert_eq!(all, [seen]);
        }
    }

    #[test]
    fn an_upgrade_to_http2_does_not_pass() {
        let upgrade_to = |protocol| upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", protocol)]));
        assert_eq!(upgrade_to("websocket").unwrap(), "websocket");
        assert_eq!(upgrade_to("websocket, H2C"), None);
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
    }
}
