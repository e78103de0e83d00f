//! The data plane of Sluice.
