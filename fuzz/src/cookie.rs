//! The key of a cookie. Two spellings that a framework reads alike are one client.

use http::{HeaderMap, HeaderValue, Method, Uri, header};
use sluice_config::key::{Identity, KeyBuilder, KeySource, OnMissing};
use sluice_config::{KeySecret, RequestAttributes};

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "cookie",
    check,
    seeds: &["abc", "\"abc\"", "\"\\141bc\"", "%61bc", "j:\"abc\"", "s%3Aabc.d%2Fe%2B", "abc, x=1", "a+b"],
    words: &[
        "%", "%25", "%61", "%22", "%2C", "%20", "\"", "\\", "\\141", "\\\"", "+", "j:", "[", "]", "{", "}",
        ",", " ", "\t", "=", "session=", "; ", "abc",
    ],
};

/// A framework: what its handlers read, and a spelling of that which it reads alike.
struct Framework {
    name: &'static str,
    read: fn(&[u8]) -> Vec<u8>,
    write: fn(&[u8]) -> Vec<u8>,
}

const FRAMEWORKS: [Framework; 2] = [
    Framework { name: "Express", read: express, write: percent_encoded },
    Framework { name: "Django", read: django, write: octal },
];

/// Reads a value as the package `cookie` of Node.js does.
fn express(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let value = match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    };
    let is_valid = value.iter().enumerate().all(|(at, byte)| {
        *byte != b'%'
            || value.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let decoded = percent_decoded(value);
    if is_valid && std::str::from_utf8(&decoded).is_ok() { decoded } else { value.to_vec() }
}

fn percent_decoded(value: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), value);
    while let [byte, later @ ..] = rest {
        let digits = later.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *byte == b'%') {
            Some(octet) => {
                out.push(octet);
                rest = &later[2..];
            }
            None => {
                out.push(*byte);
                rest = later;
            }
        }
    }
    out
}

fn percent_encoded(value: &[u8]) -> Vec<u8> {
    value.iter().flat_map(|byte| format!("%{byte:02X}").into_bytes()).collect()
}

/// Reads a value as `_unquote` of Python's `http.cookies` does, which Django and Starlette use.
fn django(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let [b'"', inner @ .., b'"'] = value else { return value.to_vec() };
    let (mut out, mut rest) = (Vec::new(), inner);
    while let [byte, later @ ..] = rest {
        match (byte, later) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                out.push(*escaped);
                rest = after;
            }
            _ => {
                out.push(*byte);
                rest = later;
            }
        }
    }
    out
}

fn octal(value: &[u8]) -> Vec<u8> {
    let escaped = value.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes());
    [b"\"".to_vec(), escaped.collect(), b"\"".to_vec()].concat()
}

/// Returns the key of a request with a cookie; `None` if it is no header.
fn key(value: &[u8]) -> Option<Identity> {
    let key =
        KeyBuilder::new(&[KeySource::Cookie { name: "session".to_owned() }], OnMissing::Skip).expect("a key");
    let header = HeaderValue::from_bytes(&[b"session=", value].concat()).ok()?;
    let headers = HeaderMap::from_iter([(header::COOKIE, header)]);
    let (uri, peer) = (Uri::from_static("/"), [192, 0, 2, 1].into());
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
    Some(key.identify(&KeySecret::new([7; 16]), &request, &request.path_readings(), peer))
}

fn check(bytes: &[u8]) {
    let Some(written) = key(bytes) else { return };
    // A semicolon begins another cookie, and Node.js reads other bytes as Latin-1.
    if bytes.contains(&b';') || !bytes.is_ascii() {
        return;
    }
    let unclear = {
        let empty = KeyBuilder::new(&[], OnMissing::Skip).expect("a key");
        Identity::Key(empty.shared_key(&KeySecret::new([7; 16])))
    };
    for Framework { name, read, write } in FRAMEWORKS {
        let seen = read(bytes);
        // For some parsers a value ends at what RFC 6265 does not allow in one. Encoded, it has a key of its own.
        let is_allowed =
            |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'[' | b']' | b'\\');
        if seen.is_empty() || !seen.iter().all(is_allowed) {
            continue;
        }
        let spelling = write(&seen);
        let other = key(&spelling).expect("an encoded value is a header");
        assert!(
            written == other || written == unclear || other == unclear,
            "{name} reads {} and {} alike, and they have two keys",
            bytes.escape_ascii(),
            spelling.escape_ascii()
        );
    }
}
