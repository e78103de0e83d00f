//! Whether limits reject requests.

use serde::{Deserialize, Serialize};

/// The effect of a denial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// The request is rejected.
    #[default]
    Enforce,
    /// The decision is counted in the metrics, and the request passes.
    Shadow,
}
