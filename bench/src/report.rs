//! One table of all parts, in Markdown.

use std::path::Path;

use crate::row::{Part, Row, Sample};

/// Prints the table of some parts' files; `Ok(false)` when one could not be measured or was not as expected.
pub(crate) fn print(files: &[&str]) -> anyhow::Result<bool> {
    println!("| measured | unit | Sluice | peer | Sluice / peer | peer is | verified |");
    println!("|---|---|---|---|---|---|---|");
    let mut good = true;
    for file in files {
        let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
        let part = match std::fs::read_to_string(file) {
            Ok(text) => serde_json::from_str::<Part>(&text)?,
            Err(_) => Err("it was ended before it had a result".to_owned()),
        };
        match part {
            Ok(rows) => {
                for row in &rows {
                    good &= row.wrong.is_empty();
                    println!("{}", line(row));
                }
            }
            Err(why) => {
                good = false;
                println!("| {name} | | **not measured** | | | | {} |", cell(&why));
            }
        }
    }
    Ok(good)
}

fn line(row: &Row) -> String {
    let Row { what, unit, ours, peer, verified, wrong } = row;
    let (sample, ratio, name) = match peer {
        Some(peer) => (spread(peer.sample), spread(peer.ratio), peer.name.as_str()),
        None => Default::default(),
    };
    let wrong = wrong.iter().map(|what| format!("**WRONG: {what}**"));
    let checks = wrong.chain(verified.iter().cloned()).collect::<Vec<_>>().join("; ");
    let ours = spread(*ours);
    format!(
        "| {} | {} | {ours} | {sample} | {ratio} | {} | {} |",
        cell(what),
        cell(unit),
        cell(name),
        cell(&checks)
    )
}

/// The median, and between which bounds all rounds were.
fn spread(sample: Sample) -> String {
    let Sample { median, lowest, highest } = sample;
    let (median, lowest, highest) = (number(median), number(lowest), number(highest));
    if lowest == highest { median } else { format!("{median} ({lowest} to {highest})") }
}

/// Three digits that matter; thousands as `208k`.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 999_500.0 => format!("{:.2}M", value / 1e6),
        size if size >= 10_000.0 => format!("{:.0}k", value / 1e3),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn cell(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        let numbers = [0.256, 1.9, 16.64, 95.0, 207.6, 12_345.0, 207_600.0, 1_104_000.0];
        assert_eq!(numbers.map(number), ["0.26", "1.90", "16.6", "95.0", "208", "12k", "208k", "1.10M"]);
    }
}
