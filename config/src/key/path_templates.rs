//! Paths that a key tells apart by their template, or by one segment.

use smallvec::SmallVec;

use crate::matches::is_parameter;
use crate::nack::Nack;
use crate::path::{PathHabits, Readings, folded, normalize};

/// The templates of a part of a key.
#[derive(Debug)]
pub(super) struct PathTemplates {
    templates: Vec<PathTemplate>,
}

#[derive(Debug)]
struct PathTemplate {
    text: String,
    segments: Vec<Segment>,
    /// Position of the segment that is the value; `None` if the template itself is.
    variable: Option<usize>,
}

#[derive(Debug, PartialEq)]
enum Segment {
    /// This text, without the difference of upper and lower case.
    Text(Vec<u8>),
    /// Any text that is not empty.
    Any,
}

impl PathTemplates {
    /// Prepares templates. Fails if one has no segment with the name of the variable.
    pub(super) fn new(templates: &[String], variable: Option<&str>) -> Result<Self, Nack> {
        let template = |text: &String| {
            let normal = normalize(text);
            let segments = || normal.split('/').skip(1);
            let variable = variable.map(|name| {
                let at = segments().position(|segment| is_named(segment, name));
                at.ok_or_else(|| Nack(format!("the template {text:?} has no segment {{{name}}}")))
            });
            Ok(PathTemplate {
                text: text.clone(),
                variable: variable.transpose()?,
                segments: segments()
                    .map(|segment| {
                        if is_parameter(segment) {
                            Segment::Any
                        } else {
                            Segment::Text(folded(segment).to_vec())
                        }
                    })
                    .collect(),
            })
        };
        Ok(Self { templates: templates.iter().map(template).collect::<Result<_, _>>()? })
    }

    /// Passes the value for a path to `read`: the first template that the path matches, or its segment. The normal form
    /// decides, which is one for all spellings of a path. If it matches no template, another reading that does decides, and the
    /// path as it was written last: no spelling leaves a limit, and percent-encoding makes no new client.
    pub(super) fn read<R>(
        &self,
        path: &Readings<'_>,
        habits: PathHabits,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let mut found = self.find(path.normal(habits));
        if found.is_none() {
            let mut others = path.texts().skip(1).chain(path.texts().take(1));
            found = others.find_map(|text| self.find(text));
        }
        found.map(|value| read(&value))
    }

    /// Returns the value that an operator names: by a template, a path, or the text of the segment that is the value.
    pub(super) fn value_of(&self, text: &str) -> Option<Vec<u8>> {
        if let Some(template) = self.templates.iter().find(|template| template.text == text) {
            return template.variable.is_none().then(|| text.as_bytes().to_vec());
        }
        if text.starts_with('/') {
            return self.read(&Readings::of(text), PathHabits::default(), <[u8]>::to_vec);
        }
        let has_variable = self.templates.iter().any(|template| template.variable.is_some());
        has_variable.then(|| folded(text).to_vec())
    }

    /// Returns the value for one reading of a path.
    pub(super) fn find(&self, path: &str) -> Option<SmallVec<[u8; 128]>> {
        let path = folded(path);
        let template = self.templates.iter().find(|template| template.matches(&path))?;
        match template.variable {
            Some(at) => segments(&path).nth(at).map(SmallVec::from_slice),
            None => Some(SmallVec::from_slice(template.text.as_bytes())),
        }
    }
}

impl PathTemplate {
    fn matches(&self, path: &[u8]) -> bool {
        let mut found = segments(path);
        let all = self.segments.iter().all(|segment| match (segment, found.next()) {
            (Segment::Text(text), Some(found)) => text == found,
            (Segment::Any, Some(found)) => !found.is_empty(),
            (Segment::Text(_) | Segment::Any, None) => false,
        });
        all && found.next().is_none()
    }
}

fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').skip(1)
}

fn is_named(segment: &str, name: &str) -> bool {
    segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(templates: &[&str], variable: Option<&str>, path: &str) -> Option<String> {
        let templates: Vec<_> = templates.iter().map(|&template| template.to_owned()).collect();
        let templates = PathTemplates::new(&templates, variable).unwrap();
        templates.read(&Readings::of(path), PathHabits::default(), |value| {
            String::from_utf8(value.to_vec()).unwrap()
        })
    }

    #[test]
    fn all_paths_of_a_template_have_one_value() {
        let templates = ["/v1/orders/{id}", "/v1/{kind}/{id}"];
        for (path, expected) in [
            ("/v1/orders/42", Some(templates[0])),
            ("/V1/Orders/43", Some(templates[0])),
            ("/v1/users/42", Some(templates[1])),
            ("/v1/orders", None),
            ("/v1/orders/42/items", None),
            ("/v1/orders/", None),
            ("/", None),
            ("*", None),
        ] {
            assert_eq!(value(&templates, None, path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn no_spelling_of_a_path_leaves_its_template() {
        let templates = ["/t/{tenant}/orders/{id}"];
        for path in [
            "/t/acme/orders/5",
            "//t/acme/orders/5",
            "///t//acme/orders/5",
            "/t/acme/orders/5/",
            "/t/%61cme/orders/5",
            "/t/x/../acme/orders/5",
            "/t/acme/orders/5%2f6",
            "/t/acme/orders/5\\6",
            "/t/acme/orders/5;x=1",
            "/t/%61cme/orders/5%2f6",
            "/t/a%63me;x=2/orders/5%2f6",
        ] {
            assert_eq!(value(&templates, Some("tenant"), path).as_deref(), Some("acme"), "{path}");
            assert_eq!(value(&templates, None, path).as_deref(), Some(templates[0]), "{path}");
        }
    }

    #[test]
    fn a_variable_is_a_segment_without_the_difference_of_case() {
        let templates = ["/t/{tenant}/{x}", "/{x}/of/{tenant}"];
        for (path, expected) in
            [("/t/Acme/1", Some("acme")), ("/T/acme/2", Some("acme")), ("/a/of/b", Some("b")), ("/a/b", None)]
        {
            assert_eq!(value(&templates, Some("tenant"), path).as_deref(), expected, "{path}");
        }
        let error = PathTemplates::new(&["/a/{b}".to_owned()], Some("c")).unwrap_err();
        assert_eq!(error.to_string(), "the template \"/a/{b}\" has no segment {c}");
    }
}
