//! Whether limits reject requests.

use serde::{Deserialize, Serialize};

/// The effect of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The request is rejected.
    Enforce,
    /// The decision is counted in the metrics, and the request passes.
    Shadow,
}
