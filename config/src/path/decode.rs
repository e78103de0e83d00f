//! Percent-encoded octets and characters, and parameters of segments.

use std::borrow::Cow;

/// The treatment of octets that are not valid UTF-8, and of percent signs that encode no octet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalid {
    /// They are text.
    Kept,
    /// They are dropped.
    Dropped,
    /// They are dropped, but for `%u006c`, which is a character (Jetty 9).
    Unicode,
}

/// Removes what follows a semicolon in each segment. Applications that do this do it before they decode.
pub(super) fn drop_parameters(path: &str, turns_backslashes: bool) -> String {
    let mut out = String::with_capacity(path.len());
    let mut is_parameter = false;
    for c in path.chars() {
        is_parameter = match c {
            '/' => false,
            '\\' if turns_backslashes => false,
            ';' => true,
            _ => is_parameter,
        };
        if !is_parameter {
            out.push(c);
        }
    }
    out
}

/// Decodes percent-encoded octets, but for slashes and backslashes if these stay encoded, turns backslashes into slashes or not,
/// and treats what is no text.
pub(super) fn decode(
    path: &str,
    decodes_slashes: bool,
    turns_backslashes: bool,
    invalid: Invalid,
) -> Cow<'_, str> {
    if !path.contains(['%', '\\']) {
        return Cow::Borrowed(path);
    }
    let bytes = path.as_bytes();
    let turned = |octet| if octet == b'\\' && turns_backslashes { b'/' } else { octet };
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if invalid == Invalid::Unicode
            && let Some(c) = bytes.get(at..at + 6).and_then(unicode_escape)
        {
            match c {
                '/' | '\\' if !decodes_slashes => out.extend_from_slice(&bytes[at..at + 6]),
                '\\' => out.push(turned(b'\\')),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            at += 6;
            continue;
        }
        match (bytes[at], octet(bytes.get(at + 1..at + 3))) {
            (b'%', Some(b'/' | b'\\')) if !decodes_slashes => {
                out.extend_from_slice(&bytes[at..at + 3]);
                at += 3;
            }
            (b'%', Some(octet)) => {
                out.push(turned(octet));
                at += 3;
            }
            // With a digit alone, the escape is cut off.
            (b'%', None) if invalid != Invalid::Kept => {
                at += if bytes.get(at + 1).is_some_and(u8::is_ascii_hexdigit) { 2 } else { 1 };
            }
            (byte, _) => {
                out.push(turned(byte));
                at += 1;
            }
        }
    }
    Cow::Owned(match String::from_utf8(out) {
        Ok(text) => text,
        Err(error) if invalid != Invalid::Kept => {
            error.as_bytes().utf8_chunks().map(|chunk| chunk.valid()).collect()
        }
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// Returns the octet that two hexadecimal digits stand for.
fn octet(digits: Option<&[u8]>) -> Option<u8> {
    let &[high, low] = digits? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Returns the character that is written as `%u006c`.
pub(crate) fn unicode_escape(text: &[u8]) -> Option<char> {
    let [b'%', b'u' | b'U', digits @ ..] = text else { return None };
    let [high, low] = [octet(digits.get(..2))?, octet(digits.get(2..4))?];
    char::from_u32(u32::from(u16::from_be_bytes([high, low])))
}

/// Iterates over the characters that are written as `%u006c`.
fn unicode_escapes(path: &str) -> impl Iterator<Item = char> {
    path.as_bytes().windows(6).filter_map(unicode_escape)
}

pub(super) fn has_unicode_escape(path: &str) -> bool {
    unicode_escapes(path).next().is_some()
}

/// Reports whether a path has an encoded slash or backslash.
pub(super) fn has_encoded_slash(path: &str) -> bool {
    let is_slash = |at: &[u8]| matches!(at, [b'%', b'2', b'f' | b'F'] | [b'%', b'5', b'c' | b'C']);
    path.as_bytes().windows(3).any(is_slash) || unicode_escapes(path).any(|c| matches!(c, '/' | '\\'))
}

pub(super) fn has_backslash(path: &str) -> bool {
    path.contains('\\')
        || path.contains("%5c")
        || path.contains("%5C")
        || unicode_escapes(path).any(|c| c == '\\')
}

/// Reports whether a segment is `.` or `..`, encoded or not, with parameters or not, whatever separates segments.
pub(super) fn has_dot_segment(path: &str) -> bool {
    let has_dots = |invalid| {
        decode(path, true, true, invalid).split(['/', ';']).any(|segment| matches!(segment, "." | ".."))
    };
    has_dots(Invalid::Dropped) || has_unicode_escape(path) && has_dots(Invalid::Unicode)
}

/// Reports whether a path has percent signs that encode nothing, or octets that are not valid UTF-8.
pub(super) fn has_invalid(path: &str) -> bool {
    let Some(first) = path.find('%') else { return false };
    let bytes = &path.as_bytes()[first..];
    let is_encoded = |(at, byte): (usize, &u8)| *byte != b'%' || octet(bytes.get(at + 1..at + 3)).is_some();
    !bytes.iter().enumerate().all(is_encoded)
        || percent_encoding::percent_decode(bytes).decode_utf8().is_err()
}

/// Returns where a segment of a path begins and ends that names a script of PHP, if others follow it.
pub(super) fn script(path: &str) -> Option<(usize, usize)> {
    let bytes = path.as_bytes();
    let is_end = |&at: &usize| {
        bytes[at] == b'/'
            && bytes[..at].last_chunk::<4>().is_some_and(|end| end.eq_ignore_ascii_case(b".php"))
    };
    let end = (1..bytes.len()).find(is_end)?;
    Some((path[..end].rfind('/')?, end))
}
