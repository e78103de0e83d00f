//! Forms of a value that applications take for each other: without white space around it, and decoded.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use smallvec::{SmallVec, smallvec};

use crate::effort::note;
use crate::path::unicode_escape;

/// The forms of a value, of which the first is the value as it is written. All differ.
pub(super) type Forms<'a> = SmallVec<[Cow<'a, [u8]>; 1]>;

/// The forms of a value, and which are normal.
#[derive(Debug)]
pub(super) struct Read<'a> {
    pub(super) forms: Forms<'a>,
    /// Number of the forms that count for exemptions too.
    pub(super) usual: usize,
    /// The normal form, by the end of the value: the last of what an application could make of it. It is `None` if that is not clear.
    pub(super) normal: [Option<usize>; 3],
}

impl<'a> Read<'a> {
    /// A value that ends alike for all applications.
    pub(super) fn new(forms: Forms<'a>, normal: Option<usize>) -> Self {
        Self { usual: forms.len(), forms, normal: [normal; 3] }
    }
}

/// Where the value of a cookie ends for an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CookieEnd {
    /// Where most applications see its end.
    Usual,
    /// Before what RFC 2616 calls a separator, but for `:` and `/` (Undertow).
    Delimiter,
    /// Before `&` or `;` in the decoded value (Dancer2, CGI.pm).
    Ampersand,
}

/// Number of times that a value is decoded. What can be decoded once more has no normal form.
const MAX_ROUNDS: usize = 4;

/// Returns a text without white space around it, as Python, JavaScript and Go remove it: whatever Unicode calls so, in
/// UTF-8, or in Latin-1 if the text is not valid UTF-8.
pub fn trimmed(text: &[u8]) -> &[u8] {
    let is_plain = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_graphic);
    if is_plain(text.first()) && is_plain(text.last()) {
        return text;
    }
    // JavaScript also removes the byte order mark.
    let is_space = |c: char| c.is_whitespace() || c == '\u{feff}';
    if let Ok(text) = std::str::from_utf8(text) {
        return text.trim_matches(is_space).as_bytes();
    }
    let mut rest = text;
    let is_latin = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0x0b | 0x1c..=0x1f | 0x85 | 0xa0);
    loop {
        let before = rest.len();
        while let Some((first, after)) = rest.split_first().filter(|(first, _)| is_latin(first)) {
            let _ = first;
            rest = after;
        }
        while let Some((last, others)) = rest.split_last().filter(|(last, _)| is_latin(last)) {
            let _ = last;
            rest = others;
        }
        for length in 2..=3 {
            let is_one = |at: &[u8]| {
                std::str::from_utf8(at).is_ok_and(|at| at.chars().count() == 1 && at.chars().all(is_space))
            };
            if rest.get(..length).is_some_and(is_one) {
                rest = &rest[length..];
            }
            if rest.len() >= length && is_one(&rest[rest.len() - length..]) {
                rest = &rest[..rest.len() - length];
            }
        }
        // The first octet of a space in UTF-8, whose second one looked like a space of Latin-1.
        rest = rest.strip_suffix(b"\xc2").filter(|_| rest.len() != before).unwrap_or(rest);
        if rest.len() == before {
            return rest;
        }
    }
}

/// Returns a text without what is not valid UTF-8, which some applications drop. Returns `None` if all of it is.
pub fn without_invalid(text: &[u8]) -> Option<Vec<u8>> {
    if std::str::from_utf8(text).is_ok() {
        return None;
    }
    Some(text.utf8_chunks().flat_map(|chunk| chunk.valid().bytes()).collect())
}

/// Returns the forms of a cookie's value, and which of them are normal. None is if the value is encoded so often that no application
/// would undo it, or is an object.
///
/// - Python undoes backslashes and octal numbers within quotation marks. Its parsers end a value at white space, and `WebOb` at
///   whatever RFC 6265 does not allow in one.
/// - Express, Fastify, Hono, h3, Rack and PHP decode percent-encoded octets, and Rack and PHP a plus as a space.
/// - Express reads JSON behind `j:`.
/// - Undertow ends a value at a separator of RFC 2616, Dancer2 the decoded value at `&` or `;`, and CGI.pm decodes `%u0061`. Tomcat takes
///   a quotation mark off that nothing closes. These are for limits alone.
pub(super) fn cookie_forms(value: &[u8]) -> Read<'_> {
    note(4 * value.len());
    let mut forms: Forms<'_> = smallvec![Cow::Borrowed(value)];
    if value.iter().all(|byte| is_plain(*byte) && !is_delimiter(*byte) && *byte != b'&')
        && !value.starts_with(b"j:")
    {
        return Read::new(forms, Some(0));
    }
    let whole = trimmed(value);
    let first = first_word(whole);
    add(&mut forms, whole);
    if whole.len() != first.len() {
        let _ = normalize(&mut forms, whole);
    }
    add(&mut forms, first);
    let normal = normalize(&mut forms, first);
    let at = normal.clone().map(|normal| add(&mut forms, normal));
    let usual = forms.len();
    if let Some(unquoted) = whole.strip_prefix(b"\"") {
        add(&mut forms, unquoted);
    }
    if let Some(decoded) = without_unicode(whole) {
        add(&mut forms, decoded);
    }
    let delimited = cut(whole, |byte| is_separator(byte) || is_delimiter(byte));
    let of_delimiter = normalize(&mut forms, delimited).map(|normal| add(&mut forms, normal));
    let of_ampersand = normal.map(|normal| {
        let length = cut(&normal, |byte| matches!(byte, b'&' | b';')).len();
        let cut = match normal {
            Cow::Borrowed(text) => Cow::Borrowed(&text[..length]),
            Cow::Owned(mut text) => {
                text.truncate(length);
                Cow::Owned(text)
            }
        };
        add(&mut forms, cut)
    });
    Read { forms, usual, normal: [at, of_delimiter, of_ampersand] }
}

/// Returns a text up to the first byte that passes a test.
fn cut(text: &[u8], ends: impl Fn(u8) -> bool) -> &[u8] {
    &text[..text.iter().position(|byte| ends(*byte)).unwrap_or(text.len())]
}

/// Reports whether a byte ends the value of a cookie for Undertow, and for few others.
fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b'(' | b')' | b'<' | b'=' | b'>' | b'?' | b'@' | b'\\' | b'{' | b'}')
}

/// Decodes `%u0061`, if there is such an escape.
pub(super) fn without_unicode(value: &[u8]) -> Option<Vec<u8>> {
    value.windows(6).any(|at| unicode_escape(at).is_some()).then(|| {
        let (mut out, mut at) = (Vec::with_capacity(value.len()), 0);
        while at < value.len() {
            match value.get(at..at + 6).and_then(unicode_escape) {
                Some(c) => {
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    at += 6;
                }
                None => {
                    out.push(value[at]);
                    at += 1;
                }
            }
        }
        out
    })
}

/// Returns the normal form of a cookie's value that an operator has written, which ends nowhere.
pub fn normal_cookie(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    normalize(&mut Forms::new(), trimmed(value))
}

/// Reports whether a byte means itself wherever it stands in a cookie's value.
fn is_plain(byte: u8) -> bool {
    !is_separator(byte) && !matches!(byte, b'%' | b'+' | b'\\')
}

/// Returns a header's value with its encoded words decoded (RFC 2047), as `CherryPy` does, if it has some.
pub(crate) fn without_encoded_words(value: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), value);
    let mut has_some = false;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"=?") {
        let mut parts = rest[at + 2..].splitn(4, |byte| *byte == b'?');
        let (_, encoding, text, behind) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let behind = behind.strip_prefix(b"=")?;
        out.extend_from_slice(&rest[..at]);
        match encoding {
            b"q" | b"Q" => {
                let percent = text.iter().map(|byte| match byte {
                    b'=' => b'%',
                    b'_' => b' ',
                    byte => *byte,
                });
                let percent: Vec<u8> = percent.collect();
                out.extend(percent_encoding::percent_decode(&percent));
            }
            b"b" | b"B" => out.extend(STANDARD.decode(text).ok()?),
            _ => return None,
        }
        has_some = true;
        rest = behind;
    }
    out.extend_from_slice(rest);
    has_some.then_some(out)
}

/// Adds a form unless it is there, and returns its position.
fn add<'a>(forms: &mut Forms<'a>, form: impl Into<Cow<'a, [u8]>>) -> usize {
    let form = form.into();
    if let Some(position) = forms.iter().position(|known| *known == form) {
        return position;
    }
    forms.push(form);
    forms.len() - 1
}

/// Returns a value up to the first octet that ends one for some parser. What would leave nothing ends nothing.
pub(super) fn first_word(value: &[u8]) -> &[u8] {
    if value.starts_with(b"j:") {
        return value;
    }
    if let Some(length) = quoted_length(value) {
        return &value[..length];
    }
    let start = value.iter().take_while(|byte| is_separator(**byte)).count();
    let end = value[start..].iter().position(|byte| is_separator(*byte));
    let word = end.map_or(value, |end| &value[..start + end]);
    // Nobody is identified by the first brace of JSON.
    if word.iter().any(u8::is_ascii_alphanumeric) { word } else { value }
}

/// Reports whether a byte ends a name or a value for some parser.
pub(super) fn is_separator(byte: u8) -> bool {
    !byte.is_ascii_graphic() || matches!(byte, b'"' | b',' | b';' | b'[' | b']')
}

/// Returns the length of the quoted string with which a text begins, if it does.
pub(super) fn quoted_length(text: &[u8]) -> Option<usize> {
    if text.first() == Some(&b'"') { end_of_quoted(text) } else { None }
}

/// Returns the position behind the quotation mark that ends a text which begins with one.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Undoes quotation marks and encodings until nothing changes, and adds each form on the way.
fn normalize<'a>(forms: &mut Forms<'a>, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let mut value = Cow::Borrowed(value);
    for _ in 0..MAX_ROUNDS {
        let before = value.clone();
        if let Some(json) = value.strip_prefix(b"j:")
            && let Ok(json) = serde_json::from_slice(json)
        {
            value = Cow::Owned(scalar(json));
            add(forms, value.clone());
        }
        if let Some(inner) = unquoted(&value) {
            value = Cow::Owned(inner.to_vec());
            add(forms, value.clone());
        }
        for decode in [without_backslashes, without_plus, without_percent, without_invalid] {
            if let Some(decoded) = decode(&value) {
                value = Cow::Owned(decoded);
                add(forms, value.clone());
            }
        }
        if trimmed(&value).len() != value.len() {
            value = Cow::Owned(trimmed(&value).to_vec());
            add(forms, value.clone());
        }
        if value == before {
            return Some(value);
        }
    }
    None
}

/// Returns a value without the quotation marks around it, if it has some (RFC 6265, section 4.2.1). Parsers of JavaScript remove the
/// last character without a look at it.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inner @ .., _] => Some(inner),
        _ => None,
    }
}

/// Undoes `\ooo` and `\c`, as Python's `http.cookies` does.
fn without_backslashes(value: &[u8]) -> Option<Vec<u8>> {
    value.contains(&b'\\').then_some(())?;
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', later @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = later;
            }
            (b'\\', [escaped, later @ ..]) => {
                out.push(*escaped);
                rest = later;
            }
            (b'\\', []) => {}
            (byte, _) => out.push(*byte),
        }
    }
    Some(out)
}

fn without_plus(value: &[u8]) -> Option<Vec<u8>> {
    let space = |byte: &u8| if *byte == b'+' { b' ' } else { *byte };
    value.contains(&b'+').then(|| value.iter().map(space).collect())
}

fn without_percent(value: &[u8]) -> Option<Vec<u8>> {
    match Cow::from(percent_encoding::percent_decode(value)) {
        Cow::Borrowed(_) => None,
        Cow::Owned(decoded) => Some(decoded),
    }
}

/// Returns the text that JavaScript makes of a JSON value where it needs one: a string, or a list of one, is that string. Other
/// values are written in one way, with sorted names.
fn scalar(mut value: serde_json::Value) -> Vec<u8> {
    loop {
        value = match value {
            serde_json::Value::String(text) => return text.into_bytes(),
            serde_json::Value::Array(list) if list.len() == 1 => list.into_iter().next().unwrap_or_default(),
            other => return other.to_string().into_bytes(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(value: &[u8]) -> Option<String> {
        let Read { forms, normal: [at, ..], .. } = cookie_forms(value);
        Some(String::from_utf8_lossy(&forms[at?]).into_owned())
    }

    #[test]
    fn white_space_is_that_of_unicode() {
        for text in [
            &b"abc"[..],
            b" abc\t",
            b"abc\xa0",
            b"\x85abc\x85\xa0",
            "\u{2003}abc\u{a0}".as_bytes(),
            "abc\u{feff}".as_bytes(),
            b"abc\xa0\xc2\xa0",
        ] {
            assert_eq!(trimmed(text), b"abc", "{text:?}");
        }
        assert_eq!(trimmed("\u{e0}".as_bytes()), "\u{e0}".as_bytes(), "its last byte alone would be a space");
        assert_eq!(trimmed(b" "), b"");
    }

    #[test]
    fn encoded_words_are_decoded() {
        let decoded = |value: &str| {
            without_encoded_words(value.as_bytes()).map(|text| String::from_utf8(text).unwrap())
        };
        for value in ["=?utf-8?q?valid?=", "=?utf-8?Q?=76alid?=", "=?x?b?dmFsaWQ=?=", "va=?x?q?lid?="] {
            assert_eq!(decoded(value).as_deref(), Some("valid"), "{value}");
        }
        for value in ["valid", "a=?b", "=?utf-8?x?valid?=", "https://a/?b=?c?d?e"] {
            assert_eq!(decoded(value), None, "{value}");
        }
    }

    #[test]
    fn all_spellings_of_a_cookie_have_one_normal_form() {
        for value in [
            &b"abc"[..],
            b"\"abc\"",
            b"\"\\141bc\"",
            b"\"\\a\\b\\c\"",
            b"%61bc",
            b"\"%61bc\"",
            b"%22abc%22",
            b"%2561bc",
            b"j:\"abc\"",
            b"j:[\"abc\"]",
            b"j%3a%22abc%22",
            b"j:%5B%22abc%22%5D",
            b"abc\\",
            b"j:\"\\u0061bc\"",
            b"abc,x=1",
            b"abc x",
            b"\"abc\",x",
            b"\xa0abc",
            b"abc\x85",
            "\u{2003}abc\u{2003}".as_bytes(),
            b"abc+",
            b"abc%20",
            b"abc%ff",
            b"abc\xff",
            "abc\u{200b}1".as_bytes(),
            b"abc\"1",
            b"\\141bc",
            b"\"abc\"1",
            b"\"abcx",
            b"\" abc\"",
            b"abc[1]",
        ] {
            assert_eq!(normal(value).as_deref(), Some("abc"), "{}", value.escape_ascii());
        }
        assert_eq!(normal(b"a%2Cb").as_deref(), Some("a,b"), "an encoded comma ends nothing");
        assert_eq!(normal(b"\"a b\"").as_deref(), Some("a b"));
        assert_eq!(normal("\u{416}".as_bytes()).as_deref(), Some("\u{416}"));
        assert_eq!(normal(b"j:{\"b\":2, \"a\":1}"), normal(b"j%3A%7B%22a%22%3A1%2C%22b%22%3A2%7D"));
        assert_ne!(normal(b"{\"id\":1}"), normal(b"{\"id\":2}"));
        assert_eq!(normal(b"%25252525252561"), None);
    }
}
