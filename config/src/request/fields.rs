//! The query parameters or the cookies of a request, in an index: they are parsed once, when a condition or a key first asks for
//! one of them.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::HeaderMap;
use http::header::COOKIE;
use smallvec::SmallVec;

use super::field_name::{self, FieldName, Folded};
use super::text::{
    Forms, Read, cookie_forms, first_word, is_separator, quoted_length, trimmed, without_invalid,
    without_unicode,
};
use super::values::{FoundValues, MAX_VALUES, Values};
use crate::effort::{Effort, LOOK_UP, note};

/// Number of pairs that are read.
const MAX_PAIRS: usize = 1000;
/// Number of entries up to which looking at each is cheaper than a search.
const FEW: usize = 8;

/// The named values of a query or of the cookies.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    entries: SmallVec<[FieldEntry<'a>; 4]>,
    pairs: usize,
    /// Whether equal values of a name are one value.
    merges_equal: bool,
}

/// A name and its value, in the way in which some applications see them.
#[derive(Debug)]
struct FieldEntry<'a> {
    /// Hash of `folded`.
    hash: u64,
    folded: Folded,
    /// The name as it is written, decoded.
    name: Cow<'a, [u8]>,
    place: Place,
    value: &'a [u8],
    kind: FieldKind,
    /// Number of entries before it.
    at: usize,
    /// The forms of the value. Most values are never asked for.
    read: OnceCell<Read<'a>>,
}

/// Where a pair stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Whether it stands between separators that are such for every application, with nothing else before its name or behind it.
    is_outer: bool,
    /// Whether all applications see this pair under its name, whatever else is in the request.
    is_certain: bool,
    /// Whether so few applications look there that it is for limits alone.
    is_rare: bool,
}

impl Place {
    /// A place where only some applications look.
    const INNER: Self = Self { is_outer: false, is_certain: false, is_rare: false };
    /// A place where so few applications look that others must not be without a key because of it.
    const RARE: Self = Self { is_rare: true, ..Self::INNER };

    fn outer(is_certain: bool) -> Self {
        Self { is_outer: true, is_certain, is_rare: false }
    }

    /// Returns the place for a name that is written as in the policy, or is not.
    fn written(self, is_plain: bool) -> Self {
        Self { is_certain: self.is_certain && is_plain, ..self }
    }
}

/// The way in which a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Parameter,
    Cookie,
    /// A cookie behind a separator that most parsers take for a part of a value. It ends at the next one.
    InnerCookie,
    /// The name of a cookie without a value.
    BareName,
}

impl<'a> FieldEntry<'a> {
    fn read(&self) -> &Read<'a> {
        self.read.get_or_init(|| match self.kind {
            FieldKind::Parameter => {
                note(2 * self.value.len());
                let value = decoded(self.value);
                // nginx does not decode: an exemption must not be claimed by an escape that nobody needs.
                let raw = matches!(value, Cow::Owned(_)) && has_needless_escape(self.value);
                let raw = raw.then_some(Cow::Borrowed(self.value));
                let valid = without_invalid(&value).map(Cow::Owned);
                let forms: Forms<'a> = raw.into_iter().chain([value]).chain(valid).collect();
                // Go drops a pair with an escape that is none.
                let normal = (!has_invalid_escape(self.value)).then_some(forms.len() - 1);
                Read::new(forms, normal)
            }
            FieldKind::Cookie => {
                let mut read = cookie_forms(self.value);
                if !is_cookie_value(self.value) {
                    // An application with another end may see one nevertheless.
                    let [usual, _, of_ampersand] = &mut read.normal;
                    (*usual, *of_ampersand) = (None, None);
                }
                read
            }
            FieldKind::InnerCookie => cookie_forms(first_word(trimmed(self.value))),
            FieldKind::BareName => Read::new(Forms::new(), None),
        })
    }
}

impl<'a> Fields<'a> {
    /// Parses a query. `behind_path` is what follows the end that some applications see in the path.
    pub(super) fn of_query(query: &'a [u8], behind_path: Option<&'a [u8]>) -> Self {
        let mut fields = Self { entries: SmallVec::new(), pairs: 0, merges_equal: false };
        note(query.len());
        for pair in query.split(|byte| *byte == b'&') {
            fields.add_parameter(pair, Place::outer(behind_path.is_none()));
            // With semicolons, the first part may have been the whole.
            if pair.contains(&b';') {
                pair.split(|byte| *byte == b';').for_each(|part| fields.add_parameter(part, Place::INNER));
            }
        }
        // `URLSearchParams` drops a question mark at the beginning, PHP's own server all of them, and for HAProxy each one begins a
        // parameter. Within a value, as of another URL, it means nothing to all others.
        for pair in query.split(|byte| matches!(byte, b'&' | b';')).filter(|pair| pair.contains(&b'?')) {
            let mut place = if pair.starts_with(b"?") { Place::INNER } else { Place::RARE };
            for part in pair.split(|byte| *byte == b'?').skip(1) {
                fields.add_parameter(part, place);
                place = if part.is_empty() { place } else { Place::RARE };
            }
        }
        // `CGI.pm` decodes `%u0061`.
        if let Some(decoded) = without_unicode(query) {
            decoded.split(|byte| matches!(byte, b'&' | b';')).for_each(|pair| {
                fields.add_decoded(&percent_encoding::percent_decode(pair).collect::<Vec<_>>());
            });
        }
        let behind = behind_path.into_iter().flat_map(|rest| rest.split(|byte| matches!(byte, b'&' | b';')));
        behind.for_each(|pair| fields.add_parameter(pair, Place::INNER));
        // `h3` decodes before it looks for the query.
        if let Some(Cow::Owned(rest)) =
            behind_path.map(|rest| Cow::from(percent_encoding::percent_decode(rest)))
        {
            rest.split(|byte| matches!(byte, b'&' | b';')).for_each(|pair| fields.add_decoded(pair));
        }
        fields.sorted()
    }

    /// Parses all `Cookie` headers. Some applications join several with a comma, or look at one only.
    pub(super) fn of_cookies(headers: &'a HeaderMap) -> Self {
        let mut fields = Self { entries: SmallVec::new(), pairs: 0, merges_equal: true };
        let is_one = headers.get_all(COOKIE).iter().nth(1).is_none();
        for header in headers.get_all(COOKIE) {
            let header = header.as_bytes();
            note(header.len());
            // A quoted value may have semicolons for some parsers. Where that matters, the cookies are read in both ways, and neither
            // is certain.
            let has_quoted_semicolon = has_quoted_semicolon(header);
            // Python sees no cookie at all beside one that it does not understand. That is no reason to take a client for another one, but
            // one not to exempt it.
            let is_certain = is_one && header.split(|byte| *byte == b';').all(is_plain_pair);
            let place = if has_quoted_semicolon { Place::INNER } else { Place::outer(is_certain) };
            header.split(|byte| *byte == b';').for_each(|pair| fields.add_cookies(pair, place));
            if has_quoted_semicolon {
                // What stands outside of quotation marks is a pair for everybody.
                split_outside_quotes(header).for_each(|pair| fields.add_cookies(pair, Place::outer(false)));
            }
        }
        fields.sorted()
    }

    fn add_parameter(&mut self, pair: &'a [u8], place: Place) {
        if pair.is_empty() || !self.has_room() {
            return;
        }
        // `h3` takes a name behind equals signs.
        if let [b'=', ..] = pair {
            let rest = &pair[pair.iter().take_while(|byte| **byte == b'=').count()..];
            return self.add_parameter(rest, Place { is_rare: place.is_rare, ..Place::INNER });
        }
        let (written, value) = split_at_equals(pair).unwrap_or((pair, &[]));
        let name = decoded(written);
        let is_escaped = matches!(name, Cow::Owned(_)) && has_needless_escape(written);
        let whole = field_name::without_brackets(&name);
        if let Some(base) = field_name::before_brackets(&name).filter(|base| *base != whole) {
            self.push(
                base,
                name.clone(),
                value,
                FieldKind::Parameter,
                Place { is_rare: place.is_rare, ..Place::INNER },
            );
        }
        self.push(whole, name, value, FieldKind::Parameter, place.written(!is_escaped));
    }

    /// Adds a parameter of a query that was decoded as a whole.
    fn add_decoded(&mut self, pair: &[u8]) {
        if pair.is_empty() || !self.has_room() {
            return;
        }
        let (name, value) = split_at_equals(pair).unwrap_or((pair, &[]));
        let folded = field_name::without_brackets(name);
        let hash = field_name::hash(&folded);
        let read = OnceCell::from(Read::new(Forms::from_iter([Cow::Owned(value.to_vec())]), Some(0)));
        let name = Cow::Owned(name.to_vec());
        self.entries.push(FieldEntry {
            hash,
            folded,
            name,
            place: Place::INNER,
            value: &[],
            kind: FieldKind::Parameter,
            at: self.entries.len(),
            read,
        });
    }

    /// Adds the cookie of a pair, and those that some parsers find behind a separator in it.
    fn add_cookies(&mut self, pair: &'a [u8], place: Place) {
        if !pair.contains(&b'=') {
            return self.add_bare_name(pair);
        }
        let (mut rest, mut place, mut kind) = (pair, place, FieldKind::Cookie);
        // Behind a quotation mark that nothing closes, nothing closes another.
        let mut is_open = false;
        while let Some((name, value)) = split_at_equals(rest) {
            if !self.has_room() {
                return;
            }
            // Spaces before a name separate it from the pair before. Any other white space belongs to the name for some parsers.
            let plain_name = without_spaces(name);
            let name = trimmed(name);
            // What follows a separator may be a cookie of its own.
            let begin = value.trim_ascii_start();
            let quoted = if is_open { None } else { quoted_length(begin) };
            is_open |= quoted.is_none() && begin.starts_with(b"\"");
            let start = quoted.unwrap_or(0);
            let end = begin[start..].iter().position(|byte| is_separator(*byte)).map(|end| start + end);
            let value = match (kind, end) {
                (FieldKind::InnerCookie, Some(end)) => &begin[..end],
                _ => value,
            };
            let of_name = if name.len() == plain_name.len() { place } else { Place::INNER };
            self.add_cookie(name, value, kind, of_name);
            if let Some(at) = name.iter().rposition(|byte| is_separator(*byte)) {
                self.add_cookie(&name[at + 1..], value, kind, Place::INNER);
            }
            let Some(end) = end else { return };
            rest = &begin[end + 1..];
            (place, kind) = (Place::INNER, FieldKind::InnerCookie);
        }
    }

    /// Adds a name without a value, which is an empty cookie for some parsers.
    fn add_bare_name(&mut self, pair: &'a [u8]) {
        let name = trimmed(pair);
        if !name.is_empty() && self.has_room() {
            let folded = field_name::without_brackets(name);
            self.push(folded, Cow::Borrowed(name), &[], FieldKind::BareName, Place::INNER);
        }
    }

    fn add_cookie(&mut self, name: &'a [u8], value: &'a [u8], kind: FieldKind, place: Place) {
        let decoded = without_unicode(name).unwrap_or_default();
        let name_in_php =
            Cow::from(percent_encoding::percent_decode(if decoded.is_empty() { name } else { &decoded }));
        let whole = field_name::without_brackets(&name_in_php);
        if let Some(base) = field_name::before_brackets(&name_in_php).filter(|base| *base != whole) {
            self.push(base, Cow::Borrowed(name), value, kind, Place::INNER);
        }
        self.push(whole, Cow::Borrowed(name), value, kind, place);
    }

    fn has_room(&mut self) -> bool {
        self.pairs += 1;
        self.pairs <= MAX_PAIRS
    }

    fn push(&mut self, folded: Folded, name: Cow<'a, [u8]>, value: &'a [u8], kind: FieldKind, place: Place) {
        // Hash, fold and sort.
        note(100);
        let hash = field_name::hash(&folded);
        let at = self.entries.len();
        self.entries.push(FieldEntry { hash, folded, name, place, value, kind, at, read: OnceCell::new() });
    }

    fn sorted(mut self) -> Self {
        if self.entries.len() > FEW {
            self.entries.sort_unstable_by_key(|entry| (entry.hash, entry.at));
        }
        self
    }

    /// Returns the values under a name.
    pub(super) fn get(&self, name: &FieldName, effort: &Effort) -> Values<'_> {
        note(LOOK_UP);
        let hash = name.hash();
        let is_sorted = self.entries.len() > FEW;
        let start = if is_sorted { self.entries.partition_point(|entry| entry.hash < hash) } else { 0 };
        let (mut found, mut rare): (SmallVec<[FoundValues<'_>; 2]>, SmallVec<[FoundValues<'_>; 1]>) =
            Default::default();
        let (mut has_bare_name, mut begins_bare) = (false, false);
        let mut is_complete = self.pairs <= MAX_PAIRS;
        for entry in &self.entries[start..] {
            if is_sorted && entry.hash != hash {
                break;
            }
            if entry.hash != hash || *entry.folded != *name.folded() {
                continue;
            }
            let count = found.len() + rare.len();
            if count == MAX_VALUES || count > 0 && !effort.compare(1) {
                is_complete = false;
                break;
            }
            let Read { forms, usual, normal } = entry.read();
            let normal = normal[name.cookie_end() as usize];
            let Some(written) = forms.first() else {
                has_bare_name = true;
                begins_bare |= found.is_empty();
                continue;
            };
            // An empty cookie is none for some applications, and so is what has no normal form. A parameter without a value is there.
            let is_empty =
                entry.kind != FieldKind::Parameter && forms.iter().take(*usual).any(|form| form.is_empty());
            let is_dropped = is_empty || normal.is_none();
            let value = FoundValues {
                forms,
                usual: *usual,
                written,
                normal: normal.map(|at| &*forms[at]),
                identifies: entry.place.is_outer && name.is(&entry.name),
                is_seen_by_all: entry.place.is_certain && !is_dropped && *entry.name == *name.written(),
            };
            if entry.place.is_rare { rare.push(value) } else { found.push(value) }
        }
        if has_bare_name {
            found.iter_mut().for_each(|found| {
                found.is_seen_by_all = false;
                // Go takes the first, which is an empty cookie for it.
                found.identifies &= !begins_bare;
            });
            if found.is_empty() {
                found.push(FoundValues::EMPTY);
            }
        }
        Values { found, rare, is_complete, merges_equal: self.merges_equal }
    }
}

/// Reports whether a text has an escape of a letter or a digit, which no encoder writes: some applications do not decode.
fn has_needless_escape(text: &[u8]) -> bool {
    let escapes = text.windows(3).filter(|text| text[0] == b'%');
    let decoded = |text| percent_encoding::percent_decode(text).next();
    escapes.filter_map(decoded).any(|byte: u8| byte.is_ascii_alphanumeric())
}

/// Reports whether a text has a percent sign without two hexadecimal digits behind it.
fn has_invalid_escape(text: &[u8]) -> bool {
    let is_escape = |rest: &[u8]| rest.len() >= 3 && rest[1..3].iter().all(u8::is_ascii_hexdigit);
    text.contains(&b'%') && (0..text.len()).any(|at| text[at] == b'%' && !is_escape(&text[at..]))
}

/// Reports whether all applications see a cookie's value: it consists of octets that RFC 6265 (section 4.1.1) allows, perhaps within
/// quotation marks. Others drop the cookie, or end it somewhere.
fn is_cookie_value(value: &[u8]) -> bool {
    let quoted =
        value.strip_prefix(b"\"").map(<[u8]>::trim_ascii_end).and_then(|rest| rest.strip_suffix(b"\""));
    let value = quoted.unwrap_or_else(|| without_spaces(value.trim_ascii_end()));
    value.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\'))
}

/// Reports whether all applications understand a pair of a `Cookie` field.
fn is_plain_pair(pair: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    split_at_equals(without_spaces(pair)).is_some_and(|(name, value)| {
        name.first().is_some_and(|first| *first != b'$')
            && name.iter().all(is_token)
            && is_cookie_value(value)
    })
}

/// Returns a text without the spaces at its beginning.
fn without_spaces(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| **byte == b' ').count()..]
}

fn split_at_equals(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..equals], &pair[equals + 1..]))
}

/// Decodes a part of a query.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_encoding::percent_decode(text).into();
    }
    // An encoded plus stays one.
    let spaces: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaces).collect::<Vec<u8>>().into()
}

/// Reports whether a value that begins with a quotation mark has a semicolon before the next one.
fn has_quoted_semicolon(header: &[u8]) -> bool {
    header.contains(&b'"') && split_outside_quotes(header).any(|pair| pair.contains(&b';'))
}

/// Splits cookies at semicolons that are not within quotation marks.
fn split_outside_quotes(header: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(header);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut at, mut is_open) = (0, false);
        while at < text.len() {
            match text[at] {
                b';' => {
                    rest = Some(&text[at + 1..]);
                    return Some(&text[..at]);
                }
                b'"' if !is_open => match quoted_length(&text[at..]) {
                    Some(length) => at += length,
                    // Then nothing closes another one either.
                    None => (at, is_open) = (at + 1, true),
                },
                _ => at += 1,
            }
        }
        rest = None;
        Some(text)
    })
}

/// The names of headers for which some server puts another character, such as `x_plan`, each with the hash of its folded
/// form.
#[derive(Debug)]
pub(super) struct FoldedHeaders<'a>(SmallVec<[(u64, Folded, &'a http::HeaderName); 2]>);

impl<'a> FoldedHeaders<'a> {
    /// Returns the index of a request's headers, if there are any such names.
    pub(super) fn of(headers: &'a HeaderMap) -> Option<Self> {
        headers.keys().any(field_name::is_odd).then(|| Self::new(headers))
    }

    /// Returns the index of a request's headers.
    pub(super) fn new(headers: &'a HeaderMap) -> Self {
        let folded = |name| {
            let folded = field_name::folded_header(name);
            (field_name::hash(&folded), folded, name)
        };
        let mut names: SmallVec<[_; 2]> = headers.keys().map(folded).collect();
        names.sort_unstable_by_key(|(hash, ..)| *hash);
        Self(names)
    }

    /// Returns the names that some server takes for this one, other than itself.
    pub(super) fn others<'s>(
        &'s self,
        name: &'s field_name::HeaderField,
    ) -> impl Iterator<Item = &'a http::HeaderName> + 's {
        let start = self.0.partition_point(|(hash, ..)| *hash < name.hash());
        let alike = self.0[start..].iter().take_while(|(hash, ..)| *hash == name.hash());
        let same = alike.filter(|(_, folded, other)| **folded == *name.folded() && **other != *name.name());
        same.map(|(_, _, other)| *other)
    }
}
