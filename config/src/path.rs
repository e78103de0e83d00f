//! Request paths as limits compare them.
//!
//! Applications read one path in different ways: `/login/`, `/Login`, `/%6cogin`, `/x/../login` and `/login;a=b`
//! reach the same handler of many of them. So a path has a [`Reading`] for each way of understanding it, and a
//! limit applies to a request if it names any of them. Otherwise a client could evade a limit by its spelling. The
//! application still receives the path as the client wrote it.
//!
//! Each reading decodes percent-encoded octets, merges slashes, and drops the last one and white space at the end. A
//! path with a slash at its end is read with that slash as well, for regular expressions that demand it.
//! Applications disagree about encoded slashes, backslashes, dot segments, what follows a semicolon, octets that are no
//! text, and a host behind two slashes, and about the order of these steps, so a path with one of them has a reading for
//! each answer. A plain path has one reading: itself.
//!
//! Some readings are for limits alone, because exemptions would be lost by everybody: a script with what follows it, as in
//! `/index.php/login`, and dots at the end. `decode` undoes encodings.

use std::borrow::Cow;
use std::cell::OnceCell;

use smallvec::SmallVec;

use self::decode::{
    Invalid, decode, drop_parameters, has_backslash, has_dot_segment, has_encoded_slash, has_invalid,
    has_unicode_escape, script,
};
use crate::effort::note;

pub(crate) use self::decode::unicode_escape;

mod decode;

/// The readings of one path.
#[derive(Debug, Clone)]
pub struct Readings<'a> {
    /// The path as the client wrote it.
    written: Reading<'a>,
    /// Further readings, all different. Empty for a plain path.
    others: Vec<Reading<'a>>,
    /// Readings for limits alone: with the slash at their end, which a regular expression may demand; without a script, or without
    /// what follows it; without dots at the end.
    of_limits: Vec<Reading<'a>>,
    /// Whether the most forgiving reading is the first of the others. Otherwise it is what is written.
    is_forgiven: bool,
    /// The normal forms, by the habits of applications.
    normal: [OnceCell<String>; 4],
    normal_folded: [OnceCell<SmallVec<[u8; 128]>>; 4],
}

/// Habits of an application with paths, whose normal form keys have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathHabits {
    /// A semicolon ends the path, as a question mark does. Otherwise it begins the parameters of a segment.
    pub semicolon_ends_path: bool,
    /// A host stands behind two slashes. Otherwise they are one slash.
    pub host_behind_slashes: bool,
}

impl PathHabits {
    fn index(self) -> usize {
        usize::from(self.semicolon_ends_path) + 2 * usize::from(self.host_behind_slashes)
    }
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
    invalid: Invalid,
    semicolon: Semicolon,
    dots: Dots,
}

/// The treatment of a semicolon, and of an encoded question mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Semicolon {
    /// It is a character like others.
    Kept,
    /// It and what follows it in its segment are parameters.
    EndsSegment,
    /// The path ends before it, as before a question mark. So it does before an encoded question mark, number sign or zero octet.
    EndsPath,
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
    fn as_written(path: &'a str) -> Self {
        Self {
            written: Reading::of(Cow::Borrowed(path)),
            others: Vec::new(),
            of_limits: Vec::new(),
            is_forgiven: false,
            normal: Default::default(),
            normal_folded: Default::default(),
        }
    }

    /// Returns the readings of a path.
    #[must_use]
    pub fn of(path: &'a str) -> Self {
        let mut readings = Self::as_written(path);
        match Shape::of(path) {
            Shape::Plain => {}
            // The most frequent of the others.
            Shape::EndsWithSlash => {
                readings.others.push(Reading::of(Cow::Borrowed(&path[..path.len() - 1])));
                readings.is_forgiven = true;
            }
            Shape::Other => {
                readings.is_forgiven = readings.add_others(path);
                let behind = after_authority(path);
                for (n, rest) in behind.iter().enumerate() {
                    if !behind[..n].contains(rest) {
                        readings.add_others(rest);
                    }
                }
            }
        }
        // Without a dot, or an encoded one, there is neither a script nor a dot at the end.
        if path.bytes().any(|byte| byte == b'.' || byte == b'%') {
            readings.add_for_limits();
        }
        readings
    }

    /// Adds readings for limits alone.
    fn add_for_limits(&mut self) {
        let mut found: SmallVec<[String; 2]> = SmallVec::new();
        // What is written with two slashes has a reading with one.
        let texts = std::iter::once(&self.written).chain(&self.others).map(Reading::text);
        for text in texts.filter(|text| !text.contains("//")) {
            // Each byte is compared with one other, and nothing is copied.
            note(text.len() / 4);
            if let Some((start, end)) = script(text) {
                // Behind a script, a web server passes the rest of the path on (RFC 3875, section 4.1.5).
                found.push(text[..end].to_owned());
                found.push([&text[..start], &text[end..]].concat());
            }
            let without_dots = text.trim_end_matches('.');
            if without_dots.len() < text.len()
                && without_dots.starts_with('/')
                && !without_dots.ends_with('/')
            {
                found.push(without_dots.to_owned());
            }
        }
        found.into_iter().for_each(|text| self.add_for_limit(text));
    }

    /// Adds all readings of a path. Returns whether the most forgiving one, which comes first, is new.
    fn add_others(&mut self, path: &str) -> bool {
        let mut is_new = None;
        for answers in Doubts::of(path).answers() {
            let (text, ends_with_slash) = read(path, answers);
            if ends_with_slash {
                self.add_for_limit(format!("{text}/"));
            }
            let added = self.add(text);
            is_new.get_or_insert(added);
        }
        is_new == Some(true)
    }

    fn add(&mut self, text: String) -> bool {
        let is_new = text != self.written.text && self.others.iter().all(|other| text != other.text);
        if is_new {
            self.others.push(Reading::of(Cow::Owned(text)));
        }
        is_new
    }

    fn add_for_limit(&mut self, text: String) {
        if text != self.written.text
            && self.others.iter().chain(&self.of_limits).all(|other| text != other.text)
        {
            self.of_limits.push(Reading::of(Cow::Owned(text)));
        }
    }

    /// Reports whether any reading passes a test.
    #[inline]
    pub fn any(&self, mut test: impl FnMut(&Reading<'a>) -> bool) -> bool {
        test(&self.written) || self.others.iter().chain(&self.of_limits).any(test)
    }

    /// Reports whether the path passes a test in whatever way an application understands it.
    #[inline]
    pub fn all(&self, mut test: impl FnMut(&Reading<'a>) -> bool) -> bool {
        test(&self.written) && self.others.iter().all(test)
    }

    /// Returns the path in its normal form: the reading of an application that forgives every spelling but upper and lower
    /// case, and that has these habits.
    #[must_use]
    pub fn normal(&self, habits: PathHabits) -> &str {
        let written = self.written.text();
        let behind = after_authority(written);
        let path = behind.last().copied().filter(|_| habits.host_behind_slashes).unwrap_or(written);
        if is_plain(path) {
            return path;
        }
        if habits == PathHabits::default() && encoded_end(path).is_none() && !has_unicode_escape(path) {
            return self.others.first().filter(|_| self.is_forgiven).map_or(path, Reading::text);
        }
        self.normal[habits.index()].get_or_init(|| {
            let end = match habits.semicolon_ends_path {
                true => end(path),
                false => encoded_end(path),
            };
            // For some applications the path ends there, and for others what follows decides.
            if encoded_end(path).is_some() && has_dot_segment(path) {
                return "/;".to_owned();
            }
            let forgiving = Answers {
                decodes_slashes: true,
                turns_backslashes: true,
                invalid: Invalid::Unicode,
                semicolon: Semicolon::EndsSegment,
                dots: Dots::Resolved,
            };
            read(&path[..end.map_or(path.len(), |(at, _)| at)], forgiving).0
        })
    }

    /// Returns the normal form without the difference of upper and lower case.
    #[must_use]
    pub fn normal_folded(&self, habits: PathHabits) -> &[u8] {
        self.normal_folded[habits.index()].get_or_init(|| folded(self.normal(habits)))
    }

    /// Iterates over the texts of all readings.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.written).chain(&self.others).chain(&self.of_limits).map(Reading::text)
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

    /// Returns the text without the difference of upper and lower case, if it is not ASCII.
    #[must_use]
    pub fn folded_text(&self) -> Option<&str> {
        self.folded.as_deref()
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
            invalid: Invalid::Kept,
            semicolon: Semicolon::Kept,
            dots: Dots::Resolved,
        },
    );
    if normal == path { Cow::Borrowed(path) } else { Cow::Owned(normal) }
}

/// Reports whether applications may disagree about the segments of a path: it has an encoded slash, a backslash or a dot segment,
/// begins with two slashes, or has octets that are no text.
#[must_use]
pub fn is_ambiguous(path: &str) -> bool {
    if is_plain(path) {
        return false;
    }
    let Doubts { slashes, backslashes, dots, invalid, unicode: _, semicolon: _ } = Doubts::of(path);
    slashes || backslashes || dots || invalid || !after_authority(path).is_empty()
}

/// Longest path in bytes.
const MAX_PATH: usize = 8192;
/// Number of bytes that all readings of a path may have together. It bounds the time that limits take to compare a path in all
/// its readings: the more ways there are to read a path, the shorter it has to be.
const MAX_READINGS: usize = 64 << 10;

/// Reports whether a path is too long to be compared with limits. No sidecar forwards such a path.
#[must_use]
pub fn is_too_long(path: &str) -> bool {
    let is_long = || Shape::of(path) == Shape::Other && bytes_of_readings(path) > MAX_READINGS;
    path.len() > MAX_PATH || is_long()
}

/// Returns the number of bytes that all readings of a path have together, at most.
fn bytes_of_readings(path: &str) -> usize {
    let behind = after_authority(path);
    let readings: usize =
        std::iter::once(path).chain(behind).map(|path| Doubts::of(path).answers().count() * path.len()).sum();
    // A dot at the end, or where some application sees the end, or the name of a script. Dot segments are none.
    let is_dot = |at: &[u8]| match at {
        b"%2e" | b"%2E" | [_, b'.', b'p' | b'P'] => true,
        // A segment of dots does not end with them.
        [b'/' | b'\\' | b'.', b'.', _] => false,
        [_, b'.', next] => !next.is_ascii_alphanumeric() && !b"_-".contains(next),
        _ => false,
    };
    let without_dots = path.trim_end_matches('.');
    let ends_with_dot = without_dots.len() < path.len() && !without_dots.ends_with(['/', '\\']);
    let has_dot = ends_with_dot || path.as_bytes().windows(3).any(is_dot);
    let of_limits = if has_dot { 2 * readings } else { 0 };
    path.len() + readings + of_limits
}

/// Returns the paths of a target that begins with two slashes. Some applications take what follows the slashes as a host, as in a
/// reference to `//host/path`.
fn after_authority(path: &str) -> SmallVec<[&str; 3]> {
    let is_slash = |c: char| matches!(c, '/' | '\\');
    let mut found = SmallVec::new();
    // RFC 3986, section 4.2.
    if let Some(rest) = path.strip_prefix("//") {
        found.push(rest.find('/').map_or("/", |at| &rest[at..]));
    }
    let two = path.strip_prefix(is_slash).and_then(|rest| rest.strip_prefix(is_slash));
    if let Some(rest) = two {
        found.push(rest.find(is_slash).map_or("/", |at| &rest[at..]));
        // The URL standard of WHATWG, section 4.4, "special authority ignore slashes state".
        let rest = rest.trim_start_matches(is_slash);
        found.push(rest.find(is_slash).map_or("/", |at| &rest[at..]));
    }
    found
}

/// Returns where some applications see the end of a path, and the length of what they take for a question mark: a semicolon
/// (Fastify 4), or one of [`encoded_end`].
fn end(path: &str) -> Option<(usize, usize)> {
    path.find(';').map(|at| (at, 1)).into_iter().chain(encoded_end(path)).min()
}

/// Returns where the first encoded question mark or number sign (h3, which decodes first) or zero octet (Starman, HAProxy) stands in a
/// path, and its length.
fn encoded_end(path: &str) -> Option<(usize, usize)> {
    let is_end = |at: &[u8]| matches!(at, [b'%', b'3', b'f' | b'F'] | b"%23" | b"%00");
    path.as_bytes().windows(3).position(is_end).map(|at| (at, 3))
}

/// Returns what follows the end that some applications see in a path. They take it for the query.
pub(crate) fn behind_path(path: &str) -> Option<&str> {
    let (at, length) = end(path)?;
    path.get(at + length..)
}

/// The questions about which applications disagree for one path.
#[derive(Debug, Clone, Copy)]
struct Doubts {
    slashes: bool,
    backslashes: bool,
    invalid: bool,
    unicode: bool,
    semicolon: bool,
    dots: bool,
}

impl Doubts {
    fn of(path: &str) -> Self {
        Self {
            slashes: has_encoded_slash(path),
            backslashes: has_backslash(path),
            invalid: has_invalid(path),
            unicode: has_unicode_escape(path),
            semicolon: end(path).is_some(),
            dots: has_dot_segment(path),
        }
    }

    /// Iterates over all answers.
    fn answers(self) -> impl Iterator<Item = Answers> {
        let both = |is_open: bool| if is_open { &[true, false][..] } else { &[true][..] };
        let semicolons: &[Semicolon] = if self.semicolon {
            &[Semicolon::EndsSegment, Semicolon::EndsPath, Semicolon::Kept]
        } else {
            &[Semicolon::Kept]
        };
        let dots: &[Dots] = if self.dots {
            &[Dots::Resolved, Dots::ResolvedBeforeMerging, Dots::Kept]
        } else {
            &[Dots::Kept]
        };
        let invalid: &[Invalid] = match (self.invalid, self.unicode) {
            (_, true) => &[Invalid::Dropped, Invalid::Kept, Invalid::Unicode],
            (true, false) => &[Invalid::Dropped, Invalid::Kept],
            (false, false) => &[Invalid::Kept],
        };
        both(self.slashes).iter().flat_map(move |&decodes_slashes| {
            both(self.backslashes).iter().flat_map(move |&turns_backslashes| {
                invalid.iter().flat_map(move |&invalid| {
                    semicolons.iter().flat_map(move |&semicolon| {
                        dots.iter().map(move |&dots| Answers {
                            decodes_slashes,
                            turns_backslashes,
                            invalid,
                            semicolon,
                            dots,
                        })
                    })
                })
            })
        })
    }
}

/// Returns a text without the difference of upper and lower case. Letters whose upper case is the same are the
/// same, as regular expressions of applications have it. Python takes both letters of Turkish for an i as well.
pub(crate) fn fold(text: &str) -> String {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        text.replace(['\u{130}', '\u{131}'], "i").to_uppercase().to_lowercase()
    }
}

/// How many readings a path has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Itself alone.
    Plain,
    /// The path without the slash at its end is one as well.
    EndsWithSlash,
    /// It must be found out.
    Other,
}

impl Shape {
    #[inline]
    fn of(path: &str) -> Self {
        let bytes = path.as_bytes();
        if bytes.first() != Some(&b'/') {
            return Self::Other;
        }
        let (mut before, mut last) = (0, 0);
        for &byte in bytes {
            let is_special = match byte {
                b'%' | b'\\' | b';' => true,
                b'/' | b'.' => last == b'/',
                _ => false,
            };
            if is_special {
                return Self::Other;
            }
            (before, last) = (last, byte);
        }
        // Spaces at the end are dropped, also those of Unicode.
        let is_kept = |byte: u8| byte.is_ascii_graphic();
        match (before, last) {
            (_, b'/') if bytes.len() == 1 => Self::Plain,
            (before, b'/') if is_kept(before) => Self::EndsWithSlash,
            (_, last) if last != b'/' && last.is_ascii() => Self::Plain,
            _ => Self::Other,
        }
    }
}

/// Reports whether a path has only one reading: itself.
#[inline]
fn is_plain(path: &str) -> bool {
    Shape::of(path) == Shape::Plain
}

/// Returns the path as an application with these answers understands it, without a slash at its end, and whether it
/// has one.
fn read(path: &str, answers: Answers) -> (String, bool) {
    note(2 * path.len());
    let without_parameters;
    let path = match answers.semicolon {
        Semicolon::Kept => path,
        Semicolon::EndsPath => &path[..end(path).map_or(path.len(), |(at, _)| at)],
        Semicolon::EndsSegment => {
            without_parameters = drop_parameters(path, answers.turns_backslashes);
            &without_parameters
        }
    };
    let decoded = decode(path, answers.decodes_slashes, answers.turns_backslashes, answers.invalid);
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

#[cfg(test)]
mod tests;
