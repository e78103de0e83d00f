//! Mutants that no comparison can detect, because they decide and store the same.
//!
//! The lists are in the modules, by script.

mod algorithms;
mod general_script;
mod short_scripts;

use super::generate::{Mutant, on_one_line};

/// Mutants that may survive, and why.
#[derive(Debug)]
pub(crate) struct Equivalent {
    file: &'static str,
    /// A fragment of the changed line, which may go on in the next line.
    before: &'static str,
    /// The fragments that it may be changed to. If there are none, any change within it may survive.
    after: &'static [&'static str],
    pub(crate) reason: &'static str,
}

impl Equivalent {
    pub(crate) fn matches(&self, mutant: &Mutant) -> bool {
        let (lines, changed) = (&mutant.lines, &mutant.changed);
        let changes_to = |after: &&str| *changed == on_one_line(&lines.replacen(self.before, after, 1));
        let is_changed = match self.after {
            [] => lines.contains(self.before) && !changed.contains(self.before),
            after => after.iter().any(changes_to),
        };
        mutant.file == self.file && is_changed
    }
}

/// Returns all equivalent mutants.
pub(crate) fn all() -> impl Iterator<Item = &'static Equivalent> {
    [short_scripts::LIST, general_script::LIST, algorithms::LIST].into_iter().flatten()
}
