//! Writes the seeds of a check into a folder, and its words as a dictionary of libFuzzer: `seeds TARGET FOLDER FILE`.

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
    let escaped = |word: &&str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let words: String = target.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
    std::fs::write(dictionary, words)
}
