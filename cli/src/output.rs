//! Output of commands: tables and JSON.

use std::io::Write as _;

use anyhow::Result;
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
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(writeln!(out)?)
}

/// Aligns the columns of rows. Tabs and line breaks of a value become spaces.
pub(crate) fn table<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let mut writer = TabWriter::new(Vec::new()).minwidth(0).padding(3);
    for row in rows {
        let cells = row.map(|cell| cell.replace(['\t', '\n', '\r'], " "));
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
    fn columns_are_aligned_and_a_value_stays_in_its_cell() {
        let rows = [["A", "B"], ["long value", "1"], ["x\ty\nz", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table(rows.into_iter()), "A            B\nlong value   1\nx y z        2\n");
    }
}
