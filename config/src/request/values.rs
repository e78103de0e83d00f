//! The values that a request has under one name, in all ways in which applications read them.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::text::trimmed;

/// The purpose of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A limit applies to the requests that match. One reading is enough.
    Limit,
    /// The requests that match are exempt. All readings must match.
    Exemption,
}

/// Number of values of a name that are read.
pub(super) const MAX_VALUES: usize = 16;

/// The values under one name.
#[derive(Debug)]
pub struct Values<'r> {
    pub(super) found: SmallVec<[FoundValues<'r>; 2]>,
    /// Values that few applications see, for limits alone.
    pub(super) rare: SmallVec<[FoundValues<'r>; 1]>,
    /// Whether these are all values. If not, a client has sent so many that nothing is certain.
    pub(super) is_complete: bool,
    /// Whether equal values are one.
    pub(super) merges_equal: bool,
}

/// One value.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundValues<'r> {
    /// The forms in which applications read the value. Empty for a header, whose forms are the two that follow.
    pub(super) forms: &'r [Cow<'r, [u8]>],
    /// Number of the forms that count for exemptions too. The others are those of few applications, and of limits alone.
    pub(super) usual: usize,
    /// The value as it is written.
    pub(super) written: &'r [u8],
    /// The value with all spellings undone; `None` if that is not clear.
    pub(super) normal: Option<&'r [u8]>,
    /// Whether it stands under this very name, where every application looks for the name. Without such a value, a client is not
    /// identified: most applications would see none.
    pub(super) identifies: bool,
    /// Whether all applications see the value under this name.
    pub(super) is_seen_by_all: bool,
}

/// A part of a request that identifies its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<T> {
    /// All applications that see a value see this one.
    Value(T),
    /// No application sees a value.
    Missing,
    /// Applications see different values, or not all see one: the client could choose.
    Unclear,
}

impl<T> Part<T> {
    /// Applies a function to the value.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Part<U> {
        match self {
            Self::Value(value) => Part::Value(map(value)),
            Self::Missing => Part::Missing,
            Self::Unclear => Part::Unclear,
        }
    }

    /// Returns the value, if it is clear.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Missing | Self::Unclear => None,
        }
    }
}

impl<'r> FoundValues<'r> {
    /// An empty value, for the few applications that see one.
    pub(super) const EMPTY: Self = Self {
        forms: &[],
        usual: 0,
        written: &[],
        normal: Some(&[]),
        identifies: false,
        is_seen_by_all: false,
    };

    fn readings(self, purpose: Purpose) -> impl Iterator<Item = &'r [u8]> {
        let is_for_limit = purpose == Purpose::Limit;
        let of_header = self.forms.is_empty();
        let normal = self.normal.filter(|normal| of_header && normal.len() != self.written.len());
        let written = of_header.then_some(self.written);
        let forms = self.forms.iter().take(if is_for_limit { usize::MAX } else { self.usual });
        // HAProxy looks at one element of a list.
        let list = written.filter(|list| is_for_limit && list.contains(&b','));
        let elements = list.into_iter().flat_map(|list| list.split(|byte| *byte == b',')).map(trimmed);
        forms.map(|form| &**form).chain(written).chain(normal).chain(elements)
    }
}

impl<'r> Values<'r> {
    /// Reports whether these are all values that some application sees. If not, a condition on them counts as met by a limit,
    /// and as not met by an exemption.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Iterates over all readings of all values, each with whether all applications see the value under this name. Of several values
    /// some applications make one, or a list. A value that is written as `exact` is what the policy means, and has no other reading.
    pub fn readings<'v>(
        &'v self,
        exact: Option<&'v [u8]>,
        purpose: Purpose,
    ) -> impl Iterator<Item = (&'r [u8], bool)> + 'v {
        let is_list = !self.merges_equal && self.found.len() > 1;
        let rare = if purpose == Purpose::Limit { &self.rare[..] } else { &[] };
        self.found.iter().chain(rare).flat_map(move |found| {
            let is_meant = exact == Some(found.written);
            let readings = found.readings(purpose).take(if is_meant { 1 } else { usize::MAX });
            readings.map(move |reading| (reading, found.is_seen_by_all && !is_list))
        })
    }

    /// Reports whether any reading of any value passes a test, or could, because these are not all values.
    #[must_use]
    pub fn any_reading(&self, mut test: impl FnMut(&'r [u8]) -> bool) -> bool {
        !self.is_complete || self.readings(None, Purpose::Limit).any(|(reading, _)| test(reading))
    }

    /// Returns the value that identifies a client: the normal form of the only one. An empty value is none. One that came only under
    /// another spelling of its name is unclear: a client could choose whether the application sees it.
    #[must_use]
    pub fn client(&self) -> Part<&'r [u8]> {
        let Some((first, others)) = self.found.split_first() else {
            return if self.is_complete { Part::Missing } else { Part::Unclear };
        };
        let Some(normal) = first.normal.filter(|_| self.is_complete) else { return Part::Unclear };
        let is_same = |other: &FoundValues<'_>| self.merges_equal && other.normal == Some(normal);
        if !others.iter().all(is_same) {
            return Part::Unclear;
        }
        match normal.is_empty() {
            false if self.found.iter().any(|found| found.identifies) => Part::Value(normal),
            // No application sees a value.
            true if self.found.iter().all(|found| trimmed(found.written).is_empty()) => Part::Missing,
            _ => Part::Unclear,
        }
    }

    /// Returns the value that all applications see alike, for expressions.
    #[must_use]
    pub fn agreed(&self) -> Part<&'r [u8]> {
        match &self.found[..] {
            [] if self.is_complete => Part::Missing,
            [only] if self.is_complete && only.readings(Purpose::Exemption).nth(1).is_none() => {
                match only.is_seen_by_all {
                    true => Part::Value(only.written),
                    // Whether an application sees an empty value or none, it is the same text.
                    false if only.written.is_empty() => Part::Missing,
                    false => Part::Unclear,
                }
            }
            _ => Part::Unclear,
        }
    }

    /// Reports whether there is a value, if all applications agree about that.
    #[must_use]
    pub fn is_present(&self) -> Option<bool> {
        if self.found.iter().any(|found| found.is_seen_by_all) {
            Some(true)
        } else {
            (self.is_complete && self.found.is_empty()).then_some(false)
        }
    }
}
