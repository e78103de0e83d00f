//! Output of commands: tables and JSON.

use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;
use tabwriter::TabWriter;

/// The format of a command's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a text, without control characters.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(printable(text).as_bytes())
}

/// Prints what has no text of others. A reader that has left, such as `head`, ends the process as usual.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    match write_bytes(bytes) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes a text to standard output, without control characters but line breaks: parts of it come from other machines.
pub(crate) fn write(text: &str) -> std::io::Result<()> {
    write_bytes(printable(text).as_bytes())
}

fn write_bytes(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Replaces control characters, which a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Writes a number and its noun: `1 line`, `2 lines`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", grouped(number)) }
}

/// Writes a number with separators of thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Aligns the columns of rows. Tabs and line breaks of a value become spaces.
pub(crate) fn table(rows: impl Iterator<Item = impl AsRef<[String]>>) -> String {
    let mut writer = TabWriter::new(Vec::new()).minwidth(0).padding(3);
    for row in rows {
        let cells: Vec<_> = row.as_ref().iter().map(|cell| cell.replace(['\t', '\n', '\r'], " ")).collect();
        // A vector takes everything.
        let _ = writeln!(writer, "{}", cells.join("\t"));
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2_000].map(|number| count(number, "line")), ["0 lines", "1 line", "2,000 lines"]);
    }

    #[test]
    fn columns_are_aligned_and_a_value_stays_in_its_cell() {
        let rows = [["A", "B"], ["long value", "1"], ["x\ty\nz", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table(rows.into_iter()), "A            B\nlong value   1\nx y z        2\n");
    }
}
