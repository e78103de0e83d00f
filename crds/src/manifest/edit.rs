//! Changes to the text of a policy file that leave everything else of it as it is, comments too.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_saphyr::{Location, Spanned};
use sluice_config::duration::Duration;
use sluice_limiter::Period;

use super::yaml::{Node, Problem, objects};

/// The number that a rate is to have.
#[derive(Debug, Clone, Copy)]
pub struct NewNumber<'a> {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: &'a str,
    /// Name of the limit.
    pub limit: &'a str,
    /// Period of the rate, which no other rate of the limit has.
    pub period: Period,
    /// Number of requests.
    pub requests: u64,
}

/// Puts all policies of a text into the mode Shadow, with these numbers. A rate that two limits share by an anchor gets the larger one.
/// A number whose place cannot be told stays. Fails if the text is no YAML.
pub fn in_shadow(text: &str, numbers: &[NewNumber<'_>]) -> Result<String, Vec<Problem>> {
    let mut edits = Edits { text, numbers: BTreeMap::new(), texts: BTreeMap::new() };
    for object in objects(text)?.iter().filter(|object| object.value.is_policy()) {
        let Some((key, spec)) = entry(object, "spec") else { continue };
        edits.mode(key, spec);
        let name = |name: &str| {
            let metadata = field(object, "metadata")?;
            field(metadata, name)?.value.as_str()
        };
        let policy =
            format!("{}/{}", name("namespace").unwrap_or("default"), name("name").unwrap_or_default());
        for new in numbers.iter().filter(|new| new.policy == policy) {
            if let Some(requests) = requests(spec, new) {
                edits.number(requests.defined, new.requests);
            }
        }
    }
    Ok(edits.apply())
}

/// Returns the number of requests that a rate has.
fn requests<'a>(spec: &'a Spanned<Node>, new: &NewNumber<'_>) -> Option<&'a Spanned<Node>> {
    let limits = items(field(spec, "limits")?);
    let is_limit = |limit: &&Spanned<Node>| limit.value.get("name").and_then(Node::as_str) == Some(new.limit);
    let rates = items(field(limits.iter().find(is_limit)?, "rates")?);
    let is_rate = |rate: &&Spanned<Node>| {
        let per = rate.value.get("per").and_then(Node::as_str);
        per.and_then(|per| per.parse().ok()) == Some(Duration::from_millis(new.period.millis()))
    };
    field(rates.iter().find(is_rate)?, "requests")
}

fn entry<'a>(node: &'a Spanned<Node>, name: &str) -> Option<&'a (Spanned<String>, Spanned<Node>)> {
    let Node::Map(fields) = &node.value else { return None };
    fields.iter().find(|(key, _)| key.value == name)
}

fn field<'a>(node: &'a Spanned<Node>, name: &str) -> Option<&'a Spanned<Node>> {
    entry(node, name).map(|(_, value)| value)
}

fn items(node: &Spanned<Node>) -> &[Spanned<Node>] {
    if let Node::List(items) = &node.value { items } else { &[] }
}

/// Changes of a text.
struct Edits<'a> {
    text: &'a str,
    /// The numbers to write, by the place of those that they replace.
    numbers: BTreeMap<(usize, usize), u64>,
    /// Texts to write, likewise.
    texts: BTreeMap<(usize, usize), String>,
}

impl Edits<'_> {
    /// Sets the mode of a specification.
    fn mode(&mut self, key: &Spanned<String>, spec: &Spanned<Node>) {
        if let Some(mode) = field(spec, "mode") {
            if let Some(Range { start, end }) = self.range(mode.defined) {
                self.texts.insert((start, end), "Shadow".to_owned());
            }
            return;
        }
        let Node::Map(fields) = &spec.value else { return };
        let first = fields.first().and_then(|(first, _)| self.range(first.defined));
        let (Some(Range { start, .. }), Some(key)) = (first, self.range(key.defined)) else { return };
        // In a block each key has its own line, with the same indentation. Comments may be in between.
        let between = &self.text[key.end..start];
        let is_flow =
            between.lines().any(|line| line.split('#').next().is_some_and(|line| line.contains('{')));
        if let (false, Some(line)) = (is_flow, between.rfind('\n')) {
            let indentation = &between[line..];
            let end = key.end + self.text[key.end..].find('\n').unwrap_or(0);
            self.texts.insert((end, end), format!("{indentation}mode: Shadow"));
        } else {
            self.texts.insert((start, start), "mode: Shadow, ".to_owned());
        }
    }

    fn number(&mut self, at: Location, requests: u64) {
        if let Some(Range { start, end }) = self.range(at) {
            let number = self.numbers.entry((start, end)).or_default();
            *number = requests.max(*number);
        }
    }

    /// Returns the place of a scalar, without an anchor in front of it.
    fn range(&self, at: Location) -> Option<Range<usize>> {
        let begin = usize::try_from(at.span().byte_offset()?).ok()?;
        let end = begin.checked_add(usize::try_from(at.span().byte_len()?).ok()?)?;
        let scalar = self.text.get(begin..end)?.trim_end();
        let anchor = if scalar.starts_with('&') { scalar.rfind([' ', '\n'])? + 1 } else { 0 };
        Some(begin + anchor..begin + scalar.len())
    }

    fn apply(self) -> String {
        let numbers = self.numbers.into_iter().map(|(place, number)| (place, number.to_string()));
        let edits: BTreeMap<_, _> = self.texts.into_iter().chain(numbers).collect();
        let mut text = self.text.to_owned();
        for ((start, end), new) in edits.into_iter().rev() {
            text.replace_range(start..end, &new);
        }
        text
    }
}

#[cfg(test)]
mod tests;
