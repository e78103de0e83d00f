//! Results: each part returns rows and perhaps plot data, and the page shows those of all parts.
//!
//! - [`sample`]: median, lowest and highest value of several rounds.
//! - [`verification`]: what must hold for a measurement to mean anything.
//! - [`row`]: one line of the table.
//! - [`plot_data`]: the columns that a gnuplot script of `bench/plots/` draws.
//! - [`page`]: all of it as Markdown.

pub(crate) mod page;
pub(crate) mod plot_data;
pub(crate) mod row;
pub(crate) mod sample;
pub(crate) mod verification;
