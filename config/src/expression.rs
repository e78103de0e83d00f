//! Expressions on requests: a subset of CEL, which the operator parses and checks. Sidecars receive the tree. It has no
//! loops, so the time of an evaluation is bounded by its size.
//!
//! - [`node`]: expressions as they are sent.
//! - `evaluate`: evaluates an expression for a request.

mod evaluate;
pub mod node;
#[cfg(test)]
mod tests;

pub use evaluate::{EvaluationError, PreparedExpression, Value};
pub(crate) use evaluate::{find, has_lower_case};
pub use node::{Attribute, Comparison, Expression, Expressions, Field, Node, Operator, TextTest};
