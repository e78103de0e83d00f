//! Expressions on requests: a subset of CEL, which the operator parses and checks. Sidecars receive the tree, [`node`]. It has no
//! loops, so the time of an evaluation is bounded by its size. Nothing is allocated but values that have to be put together. Like CEL,
//! `&&` and `||` hide an error if the other side decides.

pub mod node;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use http::Method;
use http::header::HOST;
use regex::{Regex, RegexBuilder};

pub use self::node::{Attribute, Comparison, Expression, Expressions, Field, Node, Operator, TextTest};
use crate::effort::note;
use crate::matches::{Purpose, header_name};
use crate::nack::Nack;
use crate::path::Readings;
use crate::request::{FieldName, Habit, HeaderField, Part, RequestAttributes, Values};

/// Memory limit of a compiled regular expression and of the cache that it fills, in bytes.
const REGEX_BYTES: usize = 1 << 18;

/// An expression with its regular expressions compiled.
#[derive(Debug)]
pub struct PreparedExpression {
    root: Node,
    regexes: Vec<Regex>,
    /// The named values that the expression reads.
    fields: Vec<(Field, PreparedField)>,
    /// Number of its parts.
    size: usize,
    /// Whether the path decides, which applications read in several ways.
    reads_path: bool,
    /// Whether the host decides, which proxies report to some applications.
    reads_host: bool,
    /// Whether it may hold because something does not: the readings of few applications would meet it for everybody.
    negates: bool,
}

/// The name of a value, ready to be looked up.
#[derive(Debug)]
enum PreparedField {
    Header(Box<HeaderField>),
    Query(FieldName),
    Cookie(FieldName),
}

impl PreparedField {
    fn new(field: &Field, habits: &[Habit]) -> Result<Self, Nack> {
        Ok(match field {
            Field::Header(name) => {
                Self::Header(Box::new(HeaderField::with_habits(header_name(name)?, habits)))
            }
            Field::Query(name) => Self::Query(FieldName::of_parameter(name, habits)),
            Field::Cookie(name) => Self::Cookie(FieldName::of_cookie(name, habits)),
        })
    }
}

/// Treatment of a value that applications read in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// It has no value, which is an error.
    IsError,
    /// Its normal form is the value.
    Normalizes,
}

/// Returns the expression with a text.
pub(crate) fn find<'a>(text: &str, compiled: &'a Expressions) -> Result<&'a Expression, Nack> {
    compiled.get(text).ok_or_else(|| Nack(format!("the policy was sent without the expression {text:?}")))
}

impl PreparedExpression {
    /// Prepares an expression. Fails if a regular expression or the name of a header is not valid.
    pub fn new(expression: &Expression) -> Result<Self, Nack> {
        Self::with_habits(expression, &[])
    }

    /// Prepares the expression with a text. Fails if a policy was sent without it, or as [`Self::new`] does.
    pub fn of(text: &str, compiled: &Expressions) -> Result<Self, Nack> {
        Self::new(find(text, compiled)?)
    }

    /// Prepares an expression whose value is a part of a key, for an application with these habits. Fails as [`Self::new`] does.
    pub fn with_habits(expression: &Expression, habits: &[Habit]) -> Result<Self, Nack> {
        let Expression { patterns, root } = expression;
        let regexes = patterns.iter().map(|pattern| {
            RegexBuilder::new(pattern)
                .size_limit(REGEX_BYTES)
                .dfa_size_limit(REGEX_BYTES)
                .build()
                .map_err(|_| Nack(format!("invalid regular expression {pattern:?}")))
        });
        let regexes = regexes.collect::<Result<_, _>>()?;
        let (mut names, mut size) = (Vec::<Field>::new(), 0);
        root.any(&mut |node| {
            size += 1;
            if let Node::Field(field) | Node::HasField(field) = node
                && !names.contains(field)
            {
                names.push(field.clone());
            }
            false
        });
        let fields = names.into_iter().map(|field| {
            let prepared = PreparedField::new(&field, habits)?;
            Ok((field, prepared))
        });
        Ok(Self {
            regexes,
            size,
            fields: fields.collect::<Result<_, Nack>>()?,
            reads_path: root.any(&mut |node| *node == Node::Attribute(Attribute::Path)),
            reads_host: root.any(&mut |node| *node == Node::Attribute(Attribute::Host)),
            negates: root.any(&mut |node| {
                matches!(node, Node::Not(_) | Node::If(_) | Node::Compare(Comparison::NotEqual, _))
            }),
            root: root.clone(),
        })
    }
}

/// A value of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A text.
    Text(Cow<'a, str>),
}

/// The reason why an expression has no value for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// A value is not of the type that the expression needs.
    #[error("a value has another type")]
    Type,
    /// Applications read a value in several ways, or disagree which of several counts.
    #[error(
        "a method, header, query parameter or cookie occurs several times, in a similar spelling, or in one that not all applications \
         read alike"
    )]
    Unclear,
    /// The request is so large that it cannot be compared with everything.
    #[error("the request has too much text for all expressions")]
    TooLong,
    /// A value is not valid UTF-8.
    #[error("a value is not valid UTF-8")]
    NotUtf8,
    /// A text is no integer.
    #[error("a text is no integer")]
    NotInteger,
    /// The result of a calculation is too large, or a division is by zero.
    #[error("a calculation overflows or divides by zero")]
    Overflow,
}

type Evaluated<'a> = Result<Value<'a>, EvaluationError>;

impl PreparedExpression {
    /// Reports whether a condition holds for a request. For a limit it holds if any reading of the path fulfils it, or any host that a
    /// proxy reports, and an error fulfils it too; for an exemption all readings must. Adds one to `errors` if there is an error.
    pub fn holds(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: &mut impl FnMut() -> IpAddr,
        purpose: Purpose,
        errors: &AtomicU64,
    ) -> bool {
        let mut has_error = false;
        let mut is_first = true;
        let reads_all = purpose == Purpose::Limit && !self.negates;
        let mut test = |path: &str, host: Option<&str>| {
            let alternatives = Alternatives::default();
            loop {
                let reading =
                    ExpressionReading { path, host, alternatives: Some(&alternatives).filter(|_| reads_all) };
                let holds = match self.of_reading(request, reading, address, &mut is_first, Doubt::IsError) {
                    Ok(Value::Bool(holds)) => holds,
                    Ok(Value::Int(_) | Value::Text(_)) | Err(_) => {
                        has_error = true;
                        purpose == Purpose::Limit
                    }
                };
                if holds || !alternatives.next() {
                    return holds;
                }
            }
        };
        let mut of_host = |host: Option<&str>| match purpose {
            _ if !self.reads_path => test("", host),
            Purpose::Limit => path.any(|reading| test(reading.text(), host)),
            Purpose::Exemption => path.all(|reading| test(reading.text(), host)),
        };
        let holds = of_host(None)
            || self.reads_host && reads_all && request.any_reported_host(|host| of_host(Some(host)));
        if has_error {
            request.count_error(errors);
        }
        holds
    }

    /// Returns the value for one reading of the path. Only the first is one that a plain request has.
    pub(crate) fn evaluate_reading<'a>(
        &'a self,
        request: &'a RequestAttributes<'_>,
        path: &'a str,
        address: &mut impl FnMut() -> IpAddr,
        is_first: &mut bool,
    ) -> Evaluated<'a> {
        self.of_reading(request, ExpressionReading::of(path), address, is_first, Doubt::IsError)
    }

    /// Returns the value as a part of a key, for one reading of the path. Only the first is one that a plain request has.
    pub(crate) fn evaluate_key_reading<'a>(
        &'a self,
        request: &'a RequestAttributes<'_>,
        path: &'a str,
        address: &mut impl FnMut() -> IpAddr,
        is_first: &mut bool,
    ) -> Evaluated<'a> {
        self.of_reading(request, ExpressionReading::of(path), address, is_first, Doubt::Normalizes)
    }

    fn of_reading<'a>(
        &'a self,
        request: &'a RequestAttributes<'_>,
        reading: ExpressionReading<'a>,
        address: &mut impl FnMut() -> IpAddr,
        is_first: &mut bool,
        doubt: Doubt,
    ) -> Evaluated<'a> {
        let is_first = std::mem::take(is_first);
        if !is_first && !request.effort.compare(self.size) {
            return Err(EvaluationError::TooLong);
        }
        Evaluation { expression: self, request, reading, address, doubt, is_first }.value(&self.root)
    }

    /// Reports whether the client's address is read.
    #[must_use]
    pub fn reads_address(&self) -> bool {
        self.root.any(&mut |node| *node == Node::Attribute(Attribute::ClientAddress))
    }

    /// Reports whether the path decides, which applications read in several ways.
    #[must_use]
    pub fn reads_path(&self) -> bool {
        self.reads_path
    }

    /// Returns the value of the expression for a request with this path. `address` returns the client's address.
    pub fn evaluate<'a>(
        &'a self,
        request: &'a RequestAttributes<'_>,
        path: &'a str,
        address: &mut impl FnMut() -> IpAddr,
    ) -> Evaluated<'a> {
        self.of_reading(request, ExpressionReading::of(path), address, &mut true, Doubt::IsError)
    }

    /// Returns the value of the expression as a part of a key, which is the same for all spellings of a request. `path` is the normal
    /// form of the path, and `address` returns the client's address.
    pub fn evaluate_key<'a>(
        &'a self,
        request: &'a RequestAttributes<'_>,
        path: &'a str,
        address: &mut impl FnMut() -> IpAddr,
    ) -> Evaluated<'a> {
        self.of_reading(request, ExpressionReading::of(path), address, &mut true, Doubt::Normalizes)
    }
}

/// One way to read a request.
#[derive(Clone, Copy)]
struct ExpressionReading<'a> {
    path: &'a str,
    /// A host that a proxy reports, in place of the one that is asked for.
    host: Option<&'a str>,
    /// Readings of values that few applications have. Without them, the usual ones count.
    alternatives: Option<&'a Alternatives>,
}

impl<'a> ExpressionReading<'a> {
    fn of(path: &'a str) -> Self {
        Self { path, host: None, alternatives: None }
    }
}

/// Readings of values that few applications have, in turn: the first one of each, then the second.
#[derive(Default)]
struct Alternatives {
    number: Cell<usize>,
    has_more: Cell<bool>,
}

impl Alternatives {
    /// Goes to the next ones, if there are some.
    fn next(&self) -> bool {
        self.number.set(self.number.get() + 1);
        self.has_more.replace(false)
    }
}

/// One evaluation.
struct Evaluation<'e, 'a, 'r, F> {
    expression: &'a PreparedExpression,
    request: &'a RequestAttributes<'r>,
    reading: ExpressionReading<'a>,
    address: &'e mut F,
    doubt: Doubt,
    /// Whether the path is the first reading, which a plain request has too.
    is_first: bool,
}

impl<'a, F: FnMut() -> IpAddr> Evaluation<'_, 'a, '_, F> {
    fn value(&mut self, node: &'a Node) -> Evaluated<'a> {
        note(1);
        Ok(match node {
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Int(*value),
            Node::Text(text) => Value::Text(Cow::Borrowed(text)),
            Node::Attribute(attribute) => Value::Text(match attribute {
                Attribute::Method => self.method()?,
                Attribute::Host => self.host()?,
                Attribute::Path => Cow::Borrowed(self.reading.path),
                Attribute::ClientAddress => Cow::Owned((self.address)().to_string()),
            }),
            Node::Field(field) => Value::Text(self.field(field)?.unwrap_or_default()),
            Node::HasField(field) => {
                let values = self.values(field)?;
                let is_present = match self.doubt {
                    Doubt::IsError => values.is_present(),
                    Doubt::Normalizes => match values.client() {
                        Part::Value(_) => Some(true),
                        Part::Missing => Some(false),
                        Part::Unclear => None,
                    },
                };
                Value::Bool(is_present.ok_or(EvaluationError::Unclear)?)
            }
            Node::Not(inner) => Value::Bool(!self.bool(inner)?),
            Node::All(parts) => Value::Bool(!self.has(parts, false)?),
            Node::Any(parts) => Value::Bool(self.has(parts, true)?),
            Node::Compare(comparison, pair) => {
                let (left, right) = (self.value(&pair.0)?, self.value(&pair.1)?);
                self.spend(&left)?;
                let ordering = match (&left, &right) {
                    (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
                    (Value::Int(left), Value::Int(right)) => left.cmp(right),
                    (Value::Text(left), Value::Text(right)) => left.cmp(right),
                    (Value::Bool(_) | Value::Int(_) | Value::Text(_), _) => {
                        return Err(EvaluationError::Type);
                    }
                };
                Value::Bool(comparison.holds(ordering))
            }
            Node::OneOf(value, list) => {
                let value = self.value(value)?;
                for other in list {
                    self.spend(&value)?;
                    if self.value(other)? == value {
                        return Ok(Value::Bool(true));
                    }
                }
                Value::Bool(false)
            }
            Node::Test(test, pair) => {
                let (text, other) = (self.text(&pair.0)?, self.text(&pair.1)?);
                Value::Bool(match test {
                    TextTest::StartsWith => text.starts_with(&*other),
                    TextTest::EndsWith => text.ends_with(&*other),
                    TextTest::Contains => text.contains(&*other),
                })
            }
            Node::Matches(text, pattern) => {
                let regex = self.expression.regexes.get(*pattern).ok_or(EvaluationError::Type)?;
                Value::Bool(regex.is_match(&self.text(text)?))
            }
            Node::Size(text) => {
                let size = self.text(text)?.chars().count();
                Value::Int(i64::try_from(size).map_err(|_| EvaluationError::Overflow)?)
            }
            Node::LowerAscii(text) => {
                let mut text = self.text(text)?;
                if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    text.to_mut().make_ascii_lowercase();
                }
                Value::Text(text)
            }
            Node::ToInt(text) => {
                Value::Int(self.text(text)?.parse().map_err(|_| EvaluationError::NotInteger)?)
            }
            Node::Calculate(operator, pair) => {
                let (left, right) = (self.int(&pair.0)?, self.int(&pair.1)?);
                Value::Int(operator.apply(left, right).ok_or(EvaluationError::Overflow)?)
            }
            Node::Negate(inner) => {
                Value::Int(self.int(inner)?.checked_neg().ok_or(EvaluationError::Overflow)?)
            }
            Node::If(parts) => {
                let (condition, yes, no) = &**parts;
                return if self.bool(condition)? { self.value(yes) } else { self.value(no) };
            }
        })
    }

    fn bool(&mut self, node: &'a Node) -> Result<bool, EvaluationError> {
        match self.value(node)? {
            Value::Bool(value) => Ok(value),
            Value::Int(_) | Value::Text(_) => Err(EvaluationError::Type),
        }
    }

    fn int(&mut self, node: &'a Node) -> Result<i64, EvaluationError> {
        match self.value(node)? {
            Value::Int(value) => Ok(value),
            Value::Bool(_) | Value::Text(_) => Err(EvaluationError::Type),
        }
    }

    fn text(&mut self, node: &'a Node) -> Result<Cow<'a, str>, EvaluationError> {
        let value = self.value(node)?;
        self.spend(&value)?;
        match value {
            Value::Text(value) => Ok(value),
            Value::Bool(_) | Value::Int(_) => Err(EvaluationError::Type),
        }
    }

    /// Takes the effort of reading a value.
    fn spend(&self, value: &Value<'_>) -> Result<(), EvaluationError> {
        match value {
            Value::Text(text) if !self.request.effort.read(text.len(), self.is_first) => {
                Err(EvaluationError::TooLong)
            }
            Value::Bool(_) | Value::Int(_) | Value::Text(_) => Ok(()),
        }
    }

    /// Reports whether a part has a truth value. An error counts only if none has.
    fn has(&mut self, parts: &'a [Node], wanted: bool) -> Result<bool, EvaluationError> {
        let mut result = Ok(false);
        for part in parts {
            match self.bool(part) {
                Ok(value) if value == wanted => return Ok(true),
                Ok(_) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Returns the host in lower case. A client may write it in any.
    fn host(&self) -> Result<Cow<'a, str>, EvaluationError> {
        let Some(host) = self.reading.host.or_else(|| self.request.host()) else {
            let has_host = self.request.headers.contains_key(HOST);
            return if has_host { Err(EvaluationError::NotUtf8) } else { Ok(Cow::Borrowed("")) };
        };
        let is_lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
        Ok(if is_lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
    }

    /// Returns the method. Some servers take `post` for `POST`, and others do not.
    fn method(&self) -> Result<Cow<'a, str>, EvaluationError> {
        let method = self.request.method.as_str();
        if !has_lower_case(self.request.method) {
            return Ok(Cow::Borrowed(method));
        }
        match self.doubt {
            Doubt::IsError => Err(EvaluationError::Unclear),
            Doubt::Normalizes => Ok(Cow::Owned(method.to_ascii_uppercase())),
        }
    }

    fn values(&self, field: &Field) -> Result<Values<'a>, EvaluationError> {
        let mut fields = self.expression.fields.iter();
        let (_, prepared) = fields.find(|(known, _)| known == field).ok_or(EvaluationError::Type)?;
        Ok(match prepared {
            PreparedField::Header(field) => self.request.header(field),
            PreparedField::Query(name) => self.request.parameter(name),
            PreparedField::Cookie(name) => self.request.cookie(name),
        })
    }

    fn field(&self, field: &Field) -> Result<Option<Cow<'a, str>>, EvaluationError> {
        let values = self.values(field)?;
        let part = match self.doubt {
            Doubt::IsError => match (values.agreed(), self.reading.alternatives) {
                (usual @ (Part::Value(_) | Part::Missing), Some(alternatives)) => {
                    let missing = (usual == Part::Missing).then_some(usual);
                    let readings =
                        values.readings(None, Purpose::Limit).map(|(reading, _)| Part::Value(reading));
                    let mut all = missing.into_iter().chain(readings).skip(alternatives.number.get());
                    let reading = all.next().unwrap_or(usual);
                    alternatives.has_more.set(alternatives.has_more.get() || all.next().is_some());
                    reading
                }
                (usual, _) => usual,
            },
            Doubt::Normalizes => values.client(),
        };
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| EvaluationError::NotUtf8);
        match part {
            Part::Value(bytes) => Ok(Some(Cow::Borrowed(text(bytes)?))),
            Part::Missing => Ok(None),
            Part::Unclear => Err(EvaluationError::Unclear),
        }
    }
}

/// Reports whether a method has lower-case letters.
pub(crate) fn has_lower_case(method: &Method) -> bool {
    method.as_str().bytes().any(|byte| byte.is_ascii_lowercase())
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

impl Operator {
    fn apply(self, left: i64, right: i64) -> Option<i64> {
        match self {
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            Self::Divide => left.checked_div(right),
            Self::Remainder => left.checked_rem(right),
        }
    }
}
