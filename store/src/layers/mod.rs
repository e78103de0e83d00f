//! Layers.
#[allow(dead_code)]
mod lease;#[allow(dead_code)]mod table;
