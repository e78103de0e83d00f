//! Request paths as limits compare them.
//!
//! Applications read one path in different ways: `/login/`, `/Login`, `/%6cogin`, `/x/../login` and `/login;a=b`
//! reach the same handler of many of them. So a path has a [`Reading`] for each way of understanding it, and a
//! limit applies to a request if it names any of them. Otherwise a client could evade a limit by its spelling. The
//! application still receives the path as the client wrote it.
//!
//! Each reading decodes percent-encoded octets, merges slashes, and drops the last one and white space at the end. A
//! path with a slash at its end is read with that slash as well, for regular expressions that demand it.
//! Applications disagree about encoded slashes, backslashes, dot segments and parameters behind a semicolon, and
//! about the order of these steps, so a path with one of them has a reading for each answer. A plain path has one
//! reading: itself.

use std::borrow::Cow;

use smallvec::SmallVec;

/// The readings of one path.
#[derive(Debug, Clone)]
pub struct Readings<'a> {
    /// The path as the client wrote it.
    written: Reading<'a>,
    /// Further readings, all different. Empty for a plain path.
    others: Vec<Reading<'a>>,
    /// Readings with the slash at their end, which a regular expression may demand.
    slashed: Vec<Reading<'a>>,
}

/// One way of understanding a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading<'a> {
    text: Cow<'a, str>,
    /// The text without the difference of upper and lower case. Only texts that are not ASCII have it; others
    /// are compared without a copy.
    folded: Option<String>,
}

/// A path of a policy, in the form with which readings are compared.
#[derive(Debug, Clone)]
pub struct PathText {
    text: String,
    is_case_sensitive: bool,
}

/// The answers to the questions about which applications disagree.
#[derive(Debug, Clone, Copy)]
struct Answers {
    decodes_slashes: bool,
    turns_backslashes: bool,
    drops_parameters: bool,
    dots: Dots,
}

/// The treatment of dot segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dots {
    /// They are segments like others.
    Kept,
    /// `..` removes the segment before it. Slashes are merged first.
    Resolved,
    /// `..` removes the segment before it, which may be empty (RFC 3986, section 5.2.4).
    ResolvedBeforeMerging,
}

impl<'a> Readings<'a> {
    /// Returns the readings of a path.
    #[must_use]
    pub fn of(path: &'a str) -> Self {
        let mut readings =
            Self { written: Reading::of(Cow::Borrowed(path)), others: Vec::new(), slashed: Vec::new() };
        if !is_plain(path) {
            readings.add_others(path);
        }
        if let Some(rest) = after_authority(path) {
            readings.add_others(rest);
        }
        readings
    }

    fn add_others(&mut self, path: &str) {
        let choices = |is_open: bool| if is_open { &[true, false][..] } else { &[true][..] };
        let has_dots = has_dot_segment(path);
        let dots: &[Dots] =
            if has_dots { &[Dots::Resolved, Dots::ResolvedBeforeMerging, Dots::Kept] } else { &[Dots::Kept] };
        for &decodes_slashes in choices(has_encoded_slash(path)) {
            for &turns_backslashes in choices(has_backslash(path)) {
                for &drops_parameters in choices(path.contains(';')) {
                    for &dots in dots {
                        let answers = Answers { decodes_slashes, turns_backslashes, drops_parameters, dots };
                        let (text, ends_with_slash) = read(path, answers);
                        if ends_with_slash {
                            self.add_slashed(format!("{text}/"));
                        }
                        self.add(text);
                    }
                }
            }
        }
    }

    fn add(&mut self, text: String) {
        if text != self.written.text && self.others.iter().all(|other| text != other.text) {
            self.others.push(Reading::of(Cow::Owned(text)));
        }
    }

    fn add_slashed(&mut self, text: String) {
        if text != self.written.text && self.slashed.iter().all(|other| text != other.text) {
            self.slashed.push(Reading::of(Cow::Owned(text)));
        }
    }

    /// Reports whether any reading passes a test.
    #[inline]
    pub fn any(&self, mut test: impl FnMut(&Reading<'a>) -> bool) -> bool {
        test(&self.written) || self.others.iter().chain(&self.slashed).any(test)
    }

    /// Reports whether the path passes a test in whatever way an application understands it.
    #[inline]
    pub fn all(&self, mut test: impl FnMut(&Reading<'a>) -> bool) -> bool {
        test(&self.written) && self.others.iter().all(test)
    }

    /// Returns the path in its normal form: the reading of an application that forgives every spelling but upper and lower
    /// case.
    #[must_use]
    pub fn normal(&self) -> Cow<'_, str> {
        let path = self.written.text();
        // Some applications take what follows for a host, which the client may choose.
        if after_authority(path).is_some() {
            return Cow::Borrowed("//");
        }
        if is_plain(path) {
            return Cow::Borrowed(path);
        }
        let dots = Dots::Resolved;
        let forgiving =
            Answers { decodes_slashes: true, turns_backslashes: true, drops_parameters: true, dots };
        Cow::Owned(read(path, forgiving).0)
    }

    /// Iterates over the texts of all readings.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.written).chain(&self.others).chain(&self.slashed).map(Reading::text)
    }
}

impl<'a> Reading<'a> {
    fn of(text: Cow<'a, str>) -> Self {
        let folded = (!text.is_ascii()).then(|| fold(&text));
        Self { text, folded }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text without the difference of upper and lower case.
    #[must_use]
    pub fn folded(&self) -> SmallVec<[u8; 128]> {
        match &self.folded {
            Some(folded) => SmallVec::from_slice(folded.as_bytes()),
            None => folded(&self.text),
        }
    }
}

impl PathText {
    /// Prepares a path of a policy. A slash at its end is ignored.
    #[must_use]
    pub fn new(text: &str, is_case_sensitive: bool) -> Self {
        let text = normalize(text);
        Self { text: if is_case_sensitive { text.into_owned() } else { fold(&text) }, is_case_sensitive }
    }

    /// Reports whether a reading equals this path.
    #[must_use]
    pub fn equals(&self, reading: &Reading<'_>) -> bool {
        match &reading.folded {
            _ if self.is_case_sensitive => reading.text == self.text,
            Some(folded) => *folded == self.text,
            None => reading.text.eq_ignore_ascii_case(&self.text),
        }
    }

    /// Reports whether a reading equals this path or continues it with further whole segments.
    #[must_use]
    pub fn is_prefix_of(&self, reading: &Reading<'_>) -> bool {
        let prefix = self.text.strip_suffix('/').unwrap_or(&self.text).as_bytes();
        let (path, ignores_case) = match &reading.folded {
            _ if self.is_case_sensitive => (reading.text.as_bytes(), false),
            Some(folded) => (folded.as_bytes(), false),
            None => (reading.text.as_bytes(), true),
        };
        let Some((start, rest)) = path.split_at_checked(prefix.len()) else { return false };
        let begins = if ignores_case { start.eq_ignore_ascii_case(prefix) } else { start == prefix };
        begins && (rest.is_empty() || rest[0] == b'/')
    }
}

/// Returns a text without the difference of upper and lower case.
#[must_use]
pub fn folded(text: &str) -> SmallVec<[u8; 128]> {
    if text.is_ascii() {
        text.bytes().map(|byte| byte.to_ascii_lowercase()).collect()
    } else {
        SmallVec::from_vec(fold(text).into_bytes())
    }
}

/// Returns the path with percent-encoded octets decoded, backslashes turned into slashes, slashes merged, dot
/// segments resolved, and without a slash at its end. Borrows the path if it is in this form already.
#[must_use]
pub fn normalize(path: &str) -> Cow<'_, str> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let (normal, _) = read(
        path,
        Answers {
            decodes_slashes: true,
            turns_backslashes: true,
            drops_parameters: false,
            dots: Dots::Resolved,
        },
    );
    if normal == path { Cow::Borrowed(path) } else { Cow::Owned(normal) }
}

/// Reports whether applications may disagree about the segments of a path: it has an encoded slash, a backslash
/// or a dot segment.
#[must_use]
pub fn is_ambiguous(path: &str) -> bool {
    !is_plain(path) && (has_backslash(path) || has_encoded_slash(path) || has_dot_segment(path))
}

/// Returns the path of a target that begins with two slashes. Some applications take what follows the slashes as a
/// host, as in a reference to `//host/path` (RFC 3986, section 4.2).
fn after_authority(path: &str) -> Option<&str> {
    let is_slash = |c: char| matches!(c, '/' | '\\');
    let rest = path.strip_prefix(is_slash)?.strip_prefix(is_slash)?;
    Some(rest.find(is_slash).map_or("/", |at| &rest[at..]))
}

/// Returns a text without the difference of upper and lower case. Letters whose upper case is the same are the
/// same, as regular expressions of applications have it.
pub(crate) fn fold(text: &str) -> String {
    if text.is_ascii() { text.to_ascii_lowercase() } else { text.to_uppercase().to_lowercase() }
}

/// Reports whether a path has only one reading: itself.
#[inline]
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return false;
    }
    let mut before = 0;
    for &byte in bytes {
        let is_special = match byte {
            b'%' | b'\\' | b';' => true,
            b'/' | b'.' => before == b'/',
            _ => false,
        };
        if is_special {
            return false;
        }
        before = byte;
    }
    before != b'/' || bytes.len() == 1
}

/// Reports whether a path has an encoded slash or backslash.
fn has_encoded_slash(path: &str) -> bool {
    path.as_bytes().windows(3).any(|at| matches!(at, [b'%', b'2', b'f' | b'F'] | [b'%', b'5', b'c' | b'C']))
}

fn has_backslash(path: &str) -> bool {
    path.contains('\\') || path.contains("%5c") || path.contains("%5C")
}

/// Reports whether a segment is `.` or `..`, encoded or not, with parameters or not, whatever separates segments.
fn has_dot_segment(path: &str) -> bool {
    let decoded = decode(path, true, true);
    decoded.split(['/', ';']).any(|segment| matches!(segment, "." | ".."))
}

/// Returns the path as an application with these answers understands it, without a slash at its end, and whether it
/// has one.
fn read(path: &str, answers: Answers) -> (String, bool) {
    let without_parameters;
    let path = if answers.drops_parameters && path.contains(';') {
        without_parameters = drop_parameters(path, answers.turns_backslashes);
        &without_parameters
    } else {
        path
    };
    let decoded = decode(path, answers.decodes_slashes, answers.turns_backslashes);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" if answers.dots != Dots::ResolvedBeforeMerging => {}
            "." if answers.dots != Dots::Kept => {}
            ".." if answers.dots != Dots::Kept => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let mut out = String::with_capacity(decoded.len() + 1);
    for segment in segments.into_iter().filter(|segment| !segment.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    // A pattern of an application may match before a line break at the end, and some servers ignore spaces there.
    out.truncate(out.trim_end_matches(|c: char| c == '/' || c.is_whitespace() || c.is_control()).len());
    let ends_with_slash = decoded.ends_with('/') && !out.is_empty();
    if out.is_empty() {
        out.push('/');
    }
    (out, ends_with_slash)
}

/// Removes what follows a semicolon in each segment. Applications that do this do it before they decode.
fn drop_parameters(path: &str, turns_backslashes: bool) -> String {
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

/// Decodes percent-encoded octets, but for slashes and backslashes if these stay encoded, and turns backslashes
/// into slashes or not.
fn decode(path: &str, decodes_slashes: bool, turns_backslashes: bool) -> Cow<'_, str> {
    if !path.contains(['%', '\\']) {
        return Cow::Borrowed(path);
    }
    let bytes = path.as_bytes();
    let turned = |octet| if octet == b'\\' && turns_backslashes { b'/' } else { octet };
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], octet(bytes.get(at + 1..at + 3))) {
            (b'%', Some(b'/' | b'\\')) if !decodes_slashes => {
                out.extend_from_slice(&bytes[at..at + 3]);
                at += 3;
            }
            (b'%', Some(octet)) => {
                out.push(turned(octet));
                at += 3;
            }
            (byte, _) => {
                out.push(turned(byte));
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// Returns the octet that two hexadecimal digits stand for.
fn octet(digits: Option<&[u8]>) -> Option<u8> {
    let &[high, low] = digits? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests;
