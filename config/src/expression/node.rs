//! Expressions as they are sent to sidecars.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The expressions of a policy, as they were compiled, by their texts.
pub type Expressions = BTreeMap<String, Expression>;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expression {
    /// Regular expressions, to which [`Node::Matches`] refers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// The whole expression.
    pub root: Node,
}

/// A part of an expression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Node {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A text.
    Text(String),
    /// An attribute of the request, which is a text.
    Attribute(Attribute),
    /// A named value of the request; the empty text if it is absent.
    Field(Field),
    /// Whether the request has a named value.
    HasField(Field),
    /// The opposite of a truth value.
    Not(Box<Node>),
    /// Whether all of these hold.
    All(Vec<Node>),
    /// Whether any of these holds.
    Any(Vec<Node>),
    /// A comparison of two values of the same type.
    Compare(Comparison, Box<(Node, Node)>),
    /// Whether a value is among some of its type.
    OneOf(Box<Node>, Vec<Node>),
    /// A test of a text with another.
    Test(TextTest, Box<(Node, Node)>),
    /// Whether a part of a text matches the regular expression with this index.
    Matches(Box<Node>, usize),
    /// Number of characters of a text.
    Size(Box<Node>),
    /// A text with A to Z in lower case.
    LowerAscii(Box<Node>),
    /// The integer that a text is.
    ToInt(Box<Node>),
    /// A calculation with integers.
    Calculate(Operator, Box<(Node, Node)>),
    /// The negative of an integer.
    Negate(Box<Node>),
    /// The second if the first holds, otherwise the third.
    If(Box<(Node, Node, Node)>),
}

/// An attribute of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Attribute {
    /// The method.
    Method,
    /// The host that the client names, without a port and in lower case.
    Host,
    /// A reading of the path.
    Path,
    /// The address of the client.
    ClientAddress,
}

/// A named value of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Field {
    /// The header with this name, in lower case.
    Header(String),
    /// The query parameter with this name.
    Query(String),
    /// The cookie with this name.
    Cookie(String),
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparison {
    /// The values are equal.
    Equal,
    /// The values differ.
    NotEqual,
    /// The first is less.
    Less,
    /// The first is less or equal.
    LessOrEqual,
    /// The first is greater.
    Greater,
    /// The first is greater or equal.
    GreaterOrEqual,
}

/// A test of a text with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TextTest {
    /// The text begins with the other.
    StartsWith,
    /// The text ends with the other.
    EndsWith,
    /// The text contains the other.
    Contains,
}

/// A calculation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operator {
    /// The sum.
    Add,
    /// The difference.
    Subtract,
    /// The product.
    Multiply,
    /// The quotient, towards zero.
    Divide,
    /// The remainder of that quotient.
    Remainder,
}

impl Expression {
    /// Returns the largest value that the numbers in the expression can give, or 0. Numbers in conditions give none, and
    /// neither does what is read from the request.
    #[must_use]
    pub fn largest_value(&self) -> i64 {
        self.root.largest_value()
    }

    /// Reports whether a value is read that a client can choose: a header, a query parameter or a cookie.
    #[must_use]
    pub fn reads_fields(&self) -> bool {
        self.root.any(&mut |node| matches!(node, Node::Field(_) | Node::HasField(_)))
    }

    /// Reports whether the value is the same for all requests.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        !self.root.any(&mut |node| matches!(node, Node::Field(_) | Node::HasField(_) | Node::Attribute(_)))
    }
}

impl Node {
    fn largest_value(&self) -> i64 {
        match self {
            Self::Int(value) => *value,
            Self::If(parts) => parts.1.largest_value().max(parts.2.largest_value()),
            Self::Calculate(operator, pair) => {
                let (first, second) = (pair.0.largest_value().max(0), pair.1.largest_value().max(0));
                match operator {
                    Operator::Add => first.saturating_add(second),
                    Operator::Multiply => first.saturating_mul(second.max(1)).max(second),
                    Operator::Subtract | Operator::Divide => first,
                    Operator::Remainder => second,
                }
            }
            Self::Bool(_)
            | Self::Text(_)
            | Self::Attribute(_)
            | Self::Field(_)
            | Self::HasField(_)
            | Self::Not(_)
            | Self::All(_)
            | Self::Any(_)
            | Self::Compare(..)
            | Self::OneOf(..)
            | Self::Test(..)
            | Self::Matches(..)
            | Self::Size(_)
            | Self::LowerAscii(_)
            | Self::ToInt(_)
            | Self::Negate(_) => 0,
        }
    }

    /// Reports whether this part or one in it passes a test.
    pub fn any(&self, test: &mut impl FnMut(&Node) -> bool) -> bool {
        test(self)
            || match self {
                Self::Bool(_)
                | Self::Int(_)
                | Self::Text(_)
                | Self::Attribute(_)
                | Self::Field(_)
                | Self::HasField(_) => false,
                Self::Not(inner)
                | Self::Matches(inner, _)
                | Self::Size(inner)
                | Self::LowerAscii(inner)
                | Self::ToInt(inner)
                | Self::Negate(inner) => inner.any(test),
                Self::All(parts) | Self::Any(parts) => parts.iter().any(|part| part.any(test)),
                Self::Compare(_, pair) | Self::Test(_, pair) | Self::Calculate(_, pair) => {
                    pair.0.any(test) || pair.1.any(test)
                }
                Self::OneOf(value, list) => value.any(test) || list.iter().any(|part| part.any(test)),
                Self::If(parts) => parts.0.any(test) || parts.1.any(test) || parts.2.any(test),
            }
    }
}
