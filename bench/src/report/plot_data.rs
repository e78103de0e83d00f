//! Data of a plot, one line for each value of x. The scripts in `bench/plots/` refer to the columns by name.
//! Tabs separate the columns: names contain commas, and gnuplot splits a name at a comma even in quotes.

use std::path::Path;

use anyhow::{Context as _, ensure};

/// Named columns of numbers; the first one is x.
#[derive(Debug)]
pub(crate) struct PlotData {
    columns: Vec<String>,
    lines: Vec<Vec<f64>>,
}

impl PlotData {
    /// Starts an empty table.
    pub(crate) fn new(columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { columns: columns.into_iter().map(Into::into).collect(), lines: Vec::new() }
    }

    /// Adds a line with one value a column.
    pub(crate) fn push(&mut self, line: Vec<f64>) {
        self.lines.push(line);
    }

    /// Writes the table to a file.
    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        std::fs::write(file, self.to_tsv()?).with_context(|| format!("cannot write {}", file.display()))
    }

    fn to_tsv(&self) -> anyhow::Result<Vec<u8>> {
        let mut writer = csv::WriterBuilder::new().delimiter(b'\t').from_writer(Vec::new());
        writer.write_record(&self.columns)?;
        for line in &self.lines {
            ensure!(
                line.len() == self.columns.len(),
                "a line of {line:?} for the columns {:?}",
                self.columns
            );
            // Three decimals are finer than any plot shows.
            writer.write_record(line.iter().map(|value| ((value * 1e3).round() / 1e3).to_string()))?;
        }
        Ok(writer.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_separated_by_tabs_and_numbers_are_rounded() {
        let mut data = PlotData::new(["seconds", "gcra, burst of a tenth"]);
        data.push(vec![-1.0, 0.123_456]);
        assert_eq!(data.to_tsv().unwrap(), b"seconds\tgcra, burst of a tenth\n-1\t0.123\n");
        data.push(vec![1.0]);
        assert!(data.to_tsv().is_err());
    }
}
