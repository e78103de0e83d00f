//! Names of headers, query parameters and cookies. Applications forgive other spellings of a name, so each name has a
//! folded form, which is the same for all spellings that some application takes for it.

use std::hash::BuildHasher as _;
use std::sync::LazyLock;

use foldhash::quality::RandomState;
use http::HeaderName;
use http::header::AUTHORIZATION;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::text::{CookieEnd, trimmed, without_invalid};

/// A reading that only some applications have. A policy names the habits of its application, and keys then use its reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Habit {
    /// Upper and lower case of the names of query parameters do not differ.
    QueryNamesIgnoreCase,
    /// Upper and lower case of the names of cookies do not differ.
    CookieNamesIgnoreCase,
    /// `_` in the name of a header is `-`.
    HeaderUnderscoresAreHyphens,
    /// The path ends before a semicolon. Without the habit, what follows it in its segment is dropped.
    SemicolonEndsPath,
    /// A host stands behind two slashes at the beginning of the path. Without the habit, they are one slash.
    HostBehindSlashes,
    /// The value of a cookie ends before one of `( ) < = > ? @ \ { }`.
    CookieValuesEndAtDelimiters,
    /// The decoded value of a cookie ends before `&` or `;`.
    CookieValuesEndAtAmpersands,
    /// Upper and lower case of cookies and of the header Authorization do not differ, because a server gives one request what another
    /// has brought.
    HeaderCacheIgnoresCase,
    /// A comma in the value of a header begins another value, of which something before the pod may have verified any.
    HeaderValuesAreLists,
}

/// Hashes of folded names. Nobody can choose names that collide, because the seed is random.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// The folded form of a name.
pub(super) type Folded = SmallVec<[u8; 24]>;

/// The name of a query parameter or a cookie.
#[derive(Debug, Clone)]
pub struct FieldName {
    written: Box<[u8]>,
    folded: Box<[u8]>,
    hash: u64,
    ignores_case: bool,
    ignores_case_of_values: bool,
    cookie_end: CookieEnd,
}

impl FieldName {
    /// Prepares a name of a policy.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let written = name.as_bytes();
        let folded = without_brackets(written);
        let hash = hash(&folded);
        Self {
            written: written.into(),
            hash,
            folded: folded.to_vec().into(),
            ignores_case: false,
            ignores_case_of_values: false,
            cookie_end: CookieEnd::Usual,
        }
    }

    /// Prepares the name of a parameter, for an application with these habits.
    #[must_use]
    pub fn of_parameter(name: &str, habits: &[Habit]) -> Self {
        Self { ignores_case: habits.contains(&Habit::QueryNamesIgnoreCase), ..Self::new(name) }
    }

    /// Prepares the name of a cookie, for an application with these habits.
    #[must_use]
    pub fn of_cookie(name: &str, habits: &[Habit]) -> Self {
        let cookie_end = if habits.contains(&Habit::CookieValuesEndAtDelimiters) {
            CookieEnd::Delimiter
        } else if habits.contains(&Habit::CookieValuesEndAtAmpersands) {
            CookieEnd::Ampersand
        } else {
            CookieEnd::Usual
        };
        Self {
            ignores_case: habits.contains(&Habit::CookieNamesIgnoreCase),
            ignores_case_of_values: habits.contains(&Habit::HeaderCacheIgnoresCase),
            cookie_end,
            ..Self::new(name)
        }
    }

    /// Reports whether the application may see a value in another case.
    pub(crate) fn ignores_case_of_values(&self) -> bool {
        self.ignores_case_of_values
    }

    pub(super) fn cookie_end(&self) -> CookieEnd {
        self.cookie_end
    }

    /// Returns the name as the policy has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It was made from a `str`.
        std::str::from_utf8(&self.written).unwrap_or_default()
    }

    pub(super) fn written(&self) -> &[u8] {
        &self.written
    }

    pub(super) fn folded(&self) -> &[u8] {
        &self.folded
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Reports whether the application takes a name, decoded, for this one.
    pub(super) fn is(&self, name: &[u8]) -> bool {
        *name == *self.written || self.ignores_case && name.eq_ignore_ascii_case(&self.written)
    }
}

/// The name of a header.
#[derive(Debug, Clone)]
pub struct HeaderField {
    name: HeaderName,
    folded: Box<[u8]>,
    hash: u64,
    is_odd: bool,
    takes_underscores: bool,
    ignores_case_of_values: bool,
    has_lists: bool,
}

impl HeaderField {
    /// Prepares a name of a policy.
    #[must_use]
    pub fn new(name: HeaderName) -> Self {
        let folded = folded_header(&name);
        let (hash, folded) = (hash(&folded), folded.to_vec().into());
        Self {
            is_odd: is_odd(&name),
            hash,
            folded,
            name,
            takes_underscores: false,
            ignores_case_of_values: false,
            has_lists: false,
        }
    }

    /// Prepares a name, for an application with these habits.
    #[must_use]
    pub fn with_habits(name: HeaderName, habits: &[Habit]) -> Self {
        let takes_underscores = habits.contains(&Habit::HeaderUnderscoresAreHyphens);
        let ignores_case_of_values = name == AUTHORIZATION && habits.contains(&Habit::HeaderCacheIgnoresCase);
        let has_lists = habits.contains(&Habit::HeaderValuesAreLists);
        Self { takes_underscores, ignores_case_of_values, has_lists, ..Self::new(name) }
    }

    /// Reports whether the application may see a value in another case.
    pub(crate) fn ignores_case_of_values(&self) -> bool {
        self.ignores_case_of_values
    }

    /// Reports whether a value with a comma is not clear.
    pub(super) fn has_lists(&self) -> bool {
        self.has_lists
    }

    /// Returns the name as HTTP/2 writes it.
    #[must_use]
    pub fn name(&self) -> &HeaderName {
        &self.name
    }

    pub(super) fn folded(&self) -> &[u8] {
        &self.folded
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Reports whether the name has a character for which some server puts another one.
    pub(super) fn is_odd(&self) -> bool {
        self.is_odd
    }

    /// Reports whether the application takes another name for this one.
    pub(super) fn is(&self, other: &HeaderName) -> bool {
        let hyphen = |byte: u8| if byte == b'_' { b'-' } else { byte };
        let [other, own] = [other, &self.name].map(|name| name.as_str().bytes().map(hyphen));
        self.takes_underscores && other.eq(own)
    }
}

/// Reports whether a header's name has a character for which some server puts another one.
pub(super) fn is_odd(name: &HeaderName) -> bool {
    /// Whether a byte is such a character. Every name of a request is read.
    const ODD: [bool; 256] = {
        let mut odd = [true; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            odd[byte as usize] = !byte.is_ascii_alphanumeric() && byte != b'-';
            byte += 1;
        }
        odd
    };
    name.as_str().bytes().any(|byte| ODD[usize::from(byte)])
}

/// Returns the form of a header's name in which CGI (RFC 3875, section 4.1.18) and what follows its example, such as WSGI,
/// tell names apart: letters and digits stay, and everything else is one character.
pub(super) fn folded_header(name: &HeaderName) -> Folded {
    name.as_str().bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte } else { b'-' }).collect()
}

/// Reports whether some server takes two names of headers for the same one.
#[must_use]
pub fn are_alike(one: &HeaderName, other: &HeaderName) -> bool {
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    one.as_str().bytes().map(fold).eq(other.as_str().bytes().map(fold))
}

/// Returns the hash of a folded name.
pub(super) fn hash(folded: &[u8]) -> u64 {
    HASHER.hash_one(folded)
}

/// Returns the name that a parameter has for applications which make lists and maps of `plan[]=`, `plan[0]=` and `plan[a]=`, and
/// take `[[plan=` and `plan]x=` for such (Rack 2): what stands between the brackets at the beginning and the next one. Returns `None`
/// for a name without brackets.
pub(super) fn before_brackets(name: &[u8]) -> Option<Folded> {
    let name = trimmed(before_nul(name));
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    name.iter().any(is_bracket).then(|| {
        let base = name.iter().skip_while(|byte| is_bracket(byte)).take_while(|byte| !is_bracket(byte));
        base.map(fold).collect()
    })
}

/// Returns a name without white space around it, without brackets and without what is not valid UTF-8. Case does not count in ASP.NET,
/// and PHP writes an underscore for a dot, a space and an open bracket.
pub(super) fn without_brackets(name: &[u8]) -> Folded {
    let valid = without_invalid(name);
    let name = trimmed(before_nul(valid.as_deref().unwrap_or(name)));
    let is_paired = name.contains(&b']');
    let is_bracket = |byte: &u8| is_paired && matches!(byte, b'[' | b']');
    name.iter().filter(|byte| !is_bracket(byte)).map(fold).collect()
}

/// Returns a name up to a zero octet, where it ends for PHP. At its beginning .NET does not see one.
fn before_nul(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).find(|part| !part.is_empty()).unwrap_or_default()
}

fn fold(byte: &u8) -> u8 {
    match byte {
        b'.' | b' ' | b'[' => b'_',
        byte => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_an_application_takes_for_each_other_are_folded_alike() {
        let folded = |name: &str| String::from_utf8(without_brackets(name.as_bytes()).to_vec()).unwrap();
        for name in ["plan", "Plan", "PLAN", "plan[]", "[plan]", " plan", "\u{a0}plan\u{2003}", "plan\0x"] {
            assert_eq!(folded(name), "plan", "{name}");
        }
        for name in ["api_key", "api.key", "api key", "Api[key"] {
            assert_eq!(folded(name), "api_key", "{name}");
        }
        let base = |name: &str| {
            before_brackets(name.as_bytes()).map(|name| String::from_utf8(name.to_vec()).unwrap())
        };
        for name in
            ["plan[]", "plan[", "plan[0]", "Plan[a][b]", "[plan]", "[plan][]", "[[plan", "plan]x", "plan]"]
        {
            assert_eq!(base(name).as_deref(), Some("plan"), "{name}");
        }
        assert_eq!(base("plan"), None);
    }

    #[test]
    fn names_of_headers_differ_in_letters_and_digits_only() {
        let name = |name: &str| name.parse::<HeaderName>().unwrap();
        for other in ["X_Api_Key", "x-api_key", "X.Api.Key", "x-api-key"] {
            assert!(are_alike(&name("X-Api-Key"), &name(other)), "{other}");
        }
        for other in ["X-ApiKey", "X--Api-Key", "X-Api-Key2"] {
            assert!(!are_alike(&name("X-Api-Key"), &name(other)), "{other}");
        }
    }
}
