//! The contract between Sluice's operator and its sidecars.
