//! The controller, admission and distribution of Sluice.
