//! The token of a request.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::request::Part;
use crate::request::text::trimmed;

/// Longest token that is read, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// Number of digits of the shortest signature, of 64 octets.
const FEWEST_DIGITS: usize = 86;
/// The digits of base64 for URLs, each at its value.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A token, whose signature is written as it should be. Head and claims are signed as they are written, and nobody can change
/// them. The signature itself has many spellings that libraries take for the same one, so that one token would be many.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token<'a>(Cow<'a, [u8]>);

impl<'a> Token<'a> {
    /// Returns the token of a request (RFC 6750, section 2.1). Applications end the scheme at any white space, or need none, and do
    /// not look at what follows the token. Where one of several headers has a token, that is the only one which can be accepted.
    pub(super) fn of(headers: &'a HeaderMap) -> Part<Self> {
        let mut found = Part::Missing;
        for value in headers.get_all(AUTHORIZATION) {
            found = match (found, Self::in_header(value.as_bytes())) {
                (found, Part::Missing) => found,
                (Part::Missing, token) => token,
                (Part::Value(one), Part::Value(other)) if one == other => Part::Value(one),
                _ => Part::Unclear,
            };
        }
        found
    }

    fn in_header(value: &'a [u8]) -> Part<Self> {
        let value = trimmed(value);
        let scheme_ends = value.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(value.len());
        let (scheme, rest) = value.split_at(scheme_ends);
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        let text = trimmed(if is_bearer { rest } else { value });
        let token = &text[..end(text)];
        if !is_bearer {
            // Some applications need no scheme, and others do not look at it.
            let behind = trimmed(&text[text.iter().position(u8::is_ascii_whitespace).unwrap_or(0)..]);
            let other = &behind[..end(behind)];
            let is_token = other.iter().filter(|byte| **byte == b'.').count() == 2;
            return if is_token { Self::read(other) } else { Part::Missing };
        }
        if token.is_empty() {
            return Part::Missing;
        }
        let is_separated = rest.len() != trimmed(rest).len();
        // A proxy may have joined two headers.
        let begins_token =
            |part: &[u8]| trimmed(part).get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
        let is_list = text.split(|byte| *byte == b',').skip(1).any(begins_token);
        if is_separated && !is_list { Self::read(token) } else { Part::Unclear }
    }

    fn read(token: &'a [u8]) -> Part<Self> {
        if token.len() > MAX_TOKEN {
            return Part::Unclear;
        }
        Part::Value(Self(with_plain_signature(token).unwrap_or(Cow::Borrowed(token))))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns where a token ends: at white space, but not within its signature, which some libraries accept with spaces in it.
fn end(text: &[u8]) -> usize {
    let mut dots = text.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
    let start = dots.nth(1).map_or(text.len(), |second| second + 1);
    let mut digits = 0;
    for (at, byte) in text.iter().enumerate() {
        if byte.is_ascii_whitespace() && (at < start || digits >= FEWEST_DIGITS) {
            return at;
        }
        digits += usize::from(at >= start && !byte.is_ascii_whitespace());
    }
    text.len()
}

/// Returns a token with its signature in plain base64 (RFC 7515, section 2): without padding, foreign characters, the digits of
/// the other alphabet, and bits that mean nothing. Returns `None` if it does not have so
/// many parts.
fn with_plain_signature(token: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut dots = token.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
    let (_, second) = (dots.next()?, dots.next()?);
    let signature = &token[second + 1..];
    if is_plain(signature) {
        return Some(Cow::Borrowed(token));
    }
    let mut plain = token[..=second].to_vec();
    let start = plain.len();
    for byte in signature {
        match byte {
            b'+' => plain.push(b'-'),
            b'/' => plain.push(b'_'),
            // What follows complete padding is not read.
            b'=' if matches!((plain.len() - start) % 4, 2 | 3) => break,
            // A further part makes the token malformed.
            byte if DIGITS.contains(byte) || *byte == b'.' => plain.push(*byte),
            _ => {}
        }
    }
    let unused = unused_bits(plain.len() - start);
    if let Some(last) = plain[start..].last_mut().filter(|_| unused > 0) {
        let value = DIGITS.iter().position(|digit| digit == last)?;
        *last = DIGITS[value >> unused << unused];
    }
    Some(Cow::Owned(plain))
}

/// Reports whether a signature is written in plain base64.
fn is_plain(signature: &[u8]) -> bool {
    let Some((last, _)) = signature.split_last() else { return true };
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let unused = unused_bits(signature.len());
    let has_no_bits = || {
        let value = DIGITS.iter().position(|digit| digit == last);
        value.is_some_and(|value| value & ((1 << unused) - 1) == 0)
    };
    signature.iter().all(is_digit) && has_no_bits()
}

/// Returns the number of bits of the last digit that belong to no octet.
fn unused_bits(digits: usize) -> usize {
    match digits % 4 {
        2 => 4,
        3 => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(value: &[u8]) -> Part<String> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap())]);
        Token::of(&headers).map(|token| String::from_utf8(token.bytes().to_vec()).unwrap())
    }

    #[test]
    fn every_spelling_of_a_token_is_the_same_token() {
        let plain = Part::Value("e30.e30.AB-_QQ".to_owned());
        for value in [
            &b"Bearer e30.e30.AB-_QQ"[..],
            b"bearer  e30.e30.AB-_QQ",
            b"BEARER\te30.e30.AB-_QQ",
            b"Bearer e30.e30.AB-_QQ ",
            b"Bearer e30.e30.AB-_QQ\xa0",
            b"Bearer e30.e30.AB-_QQ==",
            b"Bearer e30.e30.AB-_QQ=",
            b"Bearer e30.e30.AB-_QX",
            b"Bearer e30.e30.AB+/QQ",
            b"Bearer e30.e30.A!B-_Q,Q",
            b"Bearer e30.e30.AB-_QQ==AAAA",
            b"Bearer\xc2\xa0e30.e30.AB-_QQ",
            b"e30.e30.AB-_QQ",
            b"Token e30.e30.AB-_QQ",
        ] {
            assert_eq!(token(value), plain, "{}", value.escape_ascii());
        }
        let long = "e30.e30.".to_owned() + &"A".repeat(86);
        for value in [
            format!("Bearer {long} x"),
            format!("Bearer {}", long.replace("e30.A", "e30. A A\tA").replacen("AA", "", 1)),
        ] {
            assert_eq!(token(value.as_bytes()), Part::Value(long.clone()), "{value}");
        }
        for value in [&b"Bearer e30.e30.AB-_QQA"[..], b"Bearer e3.0e30.AB-_QQ"] {
            assert!(matches!(token(value), Part::Value(other) if Part::Value(other.clone()) != plain));
        }
    }

    #[test]
    fn a_request_without_a_token_is_no_request_with_a_bad_one() {
        for value in [&b""[..], b"Bearer", b"Bearer ", b"Basic YTpi", b"e30.e30", b"Digest a, b=c.d.e"] {
            assert_eq!(token(value), Part::Missing, "{}", value.escape_ascii());
        }
        assert_eq!(token(b"Bearer:e30.e30.AB"), Part::Unclear);
        let several = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            Token::of(&headers).map(|token| token.bytes().to_vec())
        };
        assert_eq!(several(&["Bearer a.b.AA", "Bearer a.b.BA"]), Part::Unclear);
        assert_eq!(several(&["Bearer a.b.AA, Bearer a.b.AA"]), Part::Unclear);
        for values in [&["Basic x", "Bearer a.b.AA"][..], &["Bearer a.b.AA", "bearer a.b.AB"]] {
            assert_eq!(several(values), Part::Value(b"a.b.AA".to_vec()), "{values:?}");
        }
    }
}
