//! The place of a value in a spec, where its problems are reported, and these problems.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};

use sluice_config::duration::Duration;
use sluice_config::expression::{Expression, Expressions, PreparedExpression};
use sluice_config::matches::full_match_regex;

/// Largest number of regular expressions in a policy. Each takes memory in every sidecar.
const MAX_REGEXES: usize = 64;

/// Largest number of expressions in a policy. Each takes time to compile.
const MAX_EXPRESSIONS: usize = 64;

/// Everything that was found in a policy.
#[derive(Debug)]
pub(crate) struct Report {
    violations: RefCell<Vec<Violation>>,
    warnings: RefCell<Vec<Violation>>,
    regexes: Cell<usize>,
    expressions: Cell<usize>,
    compiled: RefCell<Expressions>,
}

/// The place of a value in a spec.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    path: String,
    report: &'a Report,
}

impl Report {
    /// Starts with the violations of the schema.
    pub(crate) fn new(violations: Vec<Violation>) -> Self {
        Self {
            violations: violations.into(),
            warnings: RefCell::default(),
            regexes: Cell::new(0),
            expressions: Cell::new(0),
            compiled: RefCell::default(),
        }
    }

    /// Returns the paths of all violations. `is_unknown` tells of each whether the field alone can be left out, because the
    /// schema does not have it.
    pub(crate) fn paths(&self) -> Vec<(String, bool)> {
        let violations = self.violations.borrow();
        let is_unknown = |violation: &Violation| violation.message.starts_with(UNKNOWN_FIELD);
        violations.iter().map(|violation| (violation.path.clone(), is_unknown(violation))).collect()
    }

    /// Reports whether a field, or anything inside it, has a violation.
    fn has_violation_in(&self, path: &str) -> bool {
        let is_inside = |other: &str| {
            other.strip_prefix(path).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        self.violations.borrow().iter().any(|violation| is_inside(&violation.path))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.violations.borrow().is_empty()
    }

    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.violations.into_inner()
    }

    /// Returns the warnings. The same one at several places is one, at the first of them.
    pub(crate) fn into_warnings(self) -> Vec<Violation> {
        let mut merged: Vec<(Violation, Vec<String>)> = Vec::new();
        for warning in self.warnings.into_inner() {
            match merged.iter_mut().find(|(first, _)| first.message == warning.message) {
                Some((_, others)) => others.push(warning.path),
                None => merged.push((warning, Vec::new())),
            }
        }
        let listed = |(mut warning, others): (Violation, Vec<String>)| {
            if !others.is_empty() {
                warning.message += &format!(" (also at {})", others.join(", "));
            }
            warning
        };
        merged.into_iter().map(listed).collect()
    }
}

impl<'a> Field<'a> {
    /// The spec itself.
    pub(crate) fn root(report: &'a Report) -> Self {
        Self { path: "spec".to_owned(), report }
    }

    /// A field of an object. A path of several fields is written with dots.
    pub(crate) fn at(&self, name: &str) -> Self {
        Self { path: format!("{}.{name}", self.path), report: self.report }
    }

    /// An entry of a list.
    pub(crate) fn entry(&self, index: usize) -> Self {
        Self { path: format!("{}[{index}]", self.path), report: self.report }
    }

    /// Reports a violation, unless this field has one already.
    pub(crate) fn violation(&self, message: impl Display) {
        self.violation_of(ViolationKind::Invalid, message);
    }

    /// Reports a violation of a kind, unless this field has one already.
    pub(crate) fn violation_of(&self, kind: ViolationKind, message: impl Display) {
        let mut violations = self.report.violations.borrow_mut();
        if !violations.iter().any(|known| known.path == self.path) {
            violations.push(Violation { kind, ..Violation::new(&self.path, message.to_string()) });
        }
    }

    /// Reports a setting that is valid but probably not intended.
    pub(crate) fn warning(&self, message: impl Display) {
        self.report.warnings.borrow_mut().push(Violation::new(&self.path, message.to_string()));
    }

    /// Reports whether this field, or anything inside it, has a violation.
    pub(crate) fn has_violation(&self) -> bool {
        self.report.has_violation_in(&self.path)
    }

    /// Returns the value, or reports the error.
    pub(crate) fn accept<T>(&self, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.violation(error)).ok()
    }

    /// Returns the milliseconds of a duration of at most `max_millis`, or reports why it is not valid.
    pub(crate) fn millis(&self, duration: Duration, max_millis: u64) -> Option<u64> {
        self.accept(duration.up_to(max_millis)).map(sluice_limiter::Period::millis)
    }

    /// Compiles an expression in CEL by `compile`, which checks its type. Also checks the number of expressions in the policy.
    pub(crate) fn expression(
        &self,
        text: &str,
        compile: impl FnOnce(&str) -> Result<Expression, String>,
    ) -> Option<Expression> {
        let number = self.report.expressions.get() + 1;
        self.report.expressions.set(number);
        if number == MAX_EXPRESSIONS + 1 {
            self.violation(format_args!(
                "is one expression too many: a policy may have at most {MAX_EXPRESSIONS}"
            ));
        }
        let expression = self.accept(compile(text))?;
        expression.patterns.iter().for_each(|pattern| self.regex(pattern));
        // As sidecars prepare it.
        self.accept(PreparedExpression::new(&expression))?;
        self.report.compiled.borrow_mut().insert(text.to_owned(), expression.clone());
        Some(expression)
    }

    /// Returns all expressions that were compiled, by their texts.
    pub(crate) fn expressions(&self) -> Expressions {
        self.report.compiled.borrow().clone()
    }

    /// Checks a regular expression, and the number of regular expressions in the policy.
    pub(crate) fn regex(&self, pattern: &str) {
        if pattern.starts_with('~') {
            self.warning("begins with ~, which marks a regular expression in nginx and Kong, and stands for itself here: remove it");
        } else if !pattern.contains(['.', '*', '+', '?', '(', '[', '{', '|', '\\', '^', '$']) {
            self.warning("has no sign of a regular expression, so only this very text matches: write exact or prefix instead");
        }
        let number = self.report.regexes.get() + 1;
        self.report.regexes.set(number);
        if number > MAX_REGEXES {
            if number == MAX_REGEXES + 1 {
                self.violation(format_args!(
                    "is one regular expression too many: a policy may have at most {MAX_REGEXES}"
                ));
            }
        } else if let Err(error) = full_match_regex(pattern, true) {
            self.violation(format_args!("is not a valid regular expression: {error}"));
        }
    }
}

/// Converts a number whose range the schema has checked.
pub(crate) fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Begins the message about a field that a schema does not have.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field";

/// A problem of a policy: the field and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, such as `spec.limits[0].rates[1].per`.
    pub path: String,
    /// The problem, and what is allowed.
    pub message: String,
    /// Its kind.
    pub kind: ViolationKind,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ViolationKind {
    /// A field is wrong.
    #[default]
    Invalid,
    /// The namespace may not name a domain.
    DomainNotGranted,
}

impl Violation {
    /// Creates a violation of a field.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: shortened(message.into()), kind: ViolationKind::Invalid }
    }
}

/// Leaves out the middle of a message that repeats a value of any length.
fn shortened(message: String) -> String {
    const LONGEST: usize = 2_000;
    if message.len() <= LONGEST {
        return message;
    }
    let begin = message.floor_char_boundary(LONGEST / 10);
    let end = message.floor_char_boundary(message.len() - LONGEST / 10);
    format!("{} ... {}", &message[..begin], &message[end..])
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
