//! Marks: headers of a request that name to the application the limits which would deny it.

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};
use sluice_config::request::field_name::are_alike;
use smallvec::SmallVec;

/// The mark of a limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The header. Those of clients are removed.
    pub(crate) header: HeaderName,
    /// `POLICY/LIMIT`.
    value: HeaderValue,
}

/// The marks of a request, which it carries to where headers of the connection have been removed: a client must not remove a mark by
/// naming it in `Connection`.
#[derive(Debug, Clone, Default)]
pub struct Marks(Vec<(HeaderName, HeaderValue)>);

impl Marks {
    pub(crate) fn add(&mut self, mark: &Mark) {
        self.0.push((mark.header.clone(), mark.value.clone()));
    }

    /// Reports whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the marks to the headers of a request.
    pub fn write(self, headers: &mut HeaderMap) {
        for (header, value) in self.0 {
            headers.append(header, value);
        }
    }
}

/// Removes the marks that a client has sent, also under names that some server takes for theirs.
pub(crate) fn remove_marks(headers: &mut HeaderMap, marks: &[HeaderName]) {
    let sent: SmallVec<[HeaderName; 2]> = sent_marks(headers, marks).cloned().collect();
    for name in sent {
        headers.remove(name);
    }
}

/// Iterates over the names of headers that some server takes for marks.
pub(crate) fn sent_marks<'a>(
    headers: &'a HeaderMap,
    marks: &[HeaderName],
) -> impl Iterator<Item = &'a HeaderName> {
    let names = (!marks.is_empty()).then(|| headers.keys());
    names.into_iter().flatten().filter(move |name| marks.iter().any(|mark| are_alike(mark, name)))
}

impl Mark {
    pub(crate) fn new(header: HeaderName, policy: &str, limit: &str) -> Result<Self, InvalidHeaderValue> {
        HeaderValue::try_from(format!("{policy}/{limit}")).map(|value| Self { header, value })
    }
}
