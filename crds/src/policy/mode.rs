//! Whether limits reject requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The effect of a limit:
/// - Enforce: requests over the limit are rejected.
/// - Shadow: decisions are counted in the metrics, and every request passes.
///
/// Default: the mode of the policy. Shadow takes precedence: a limit of a policy in Shadow mode is never
/// enforced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Requests over the limit are rejected.
    #[default]
    Enforce,
    /// Decisions are counted in the metrics, and every request passes.
    Shadow,
}
