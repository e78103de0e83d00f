//! Writes the seeds of a check into a folder, and its words as a dictionary of libFuzzer: `seeds TARGET FOLDER FILE`.

use std::fmt::Write as _;
use std::io::{Error, Result};
use std::path::Path;

use sluice_fuzz::TARGETS;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder, dictionary] = &arguments[..] else {
        return Err(Error::other("usage: seeds TARGET FOLDER FILE"));
    };
    let Some(target) = TARGETS.iter().find(|target| target.name == *name) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        return Err(Error::other(format!("{name:?} is not a target: use one of {}", names.join(", "))));
    };
    for (n, seed) in target.seeds.iter().enumerate() {
        std::fs::write(Path::new(folder).join(format!("seed-{n}")), seed)?;
    }
    let mut words = String::new();
    for word in target.words {
        words.push('"');
        // A fmt::Write to a string does not fail.
        word.bytes().for_each(|byte| drop(write!(words, "\\x{byte:02x}")));
        words.push_str("\"\n");
    }
    std::fs::write(dictionary, words)
}
