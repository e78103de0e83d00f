//! Ranges of the parameters.

/// A parameter of an adaptive limit that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name} is {value}: {min} to {max} are allowed")]
pub struct InvalidParameter {
    /// The name of the field.
    pub name: &'static str,
    /// The rejected value.
    pub value: f64,
    /// The smallest value allowed.
    pub min: f64,
    /// The largest value allowed.
    pub max: f64,
}

/// Checks that `value` is in the range `min..=max`. NaN is in no range.
pub(super) fn within(
    name: &'static str,
    value: impl Into<f64>,
    min: impl Into<f64>,
    max: impl Into<f64>,
) -> Result<(), InvalidParameter> {
    let (value, min, max) = (value.into(), min.into(), max.into());
    if (min..=max).contains(&value) { Ok(()) } else { Err(InvalidParameter { name, value, min, max }) }
}
