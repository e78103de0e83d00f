//! Expressions on requests: a subset of CEL, which the operator parses and checks. Sidecars receive the tree. It has no
//! loops, so the time of an evaluation is bounded by its size.
//!
//! - [`node`]: expressions as they are sent.
//! - `evaluate`: evaluates an expression for a request.

mod evaluate;
pub mod node;
#[cfg(test)]
mod tests;

pub(crate) use evaluate::has_lower_case;
pub use evaluate::{EvaluationError, PreparedExpression, Value};
pub use node::{Attribute, Comparison, Expression, Field, Node, Operator, TextTest};
