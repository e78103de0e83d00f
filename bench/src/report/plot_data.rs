//! Data of a plot as CSV, one line for each value of x. The scripts in `bench/plots/` refer to the columns by
//! name.

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
        std::fs::write(file, self.csv()?).with_context(|| format!("cannot write {}", file.display()))
    }

    fn csv(&self) -> anyhow::Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
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
    fn names_with_commas_are_quoted_and_numbers_are_rounded() {
        let mut data = PlotData::new(["seconds", "gcra, burst of a tenth"]);
        data.push(vec![-1.0, 0.123_456]);
        assert_eq!(data.csv().unwrap(), b"seconds,\"gcra, burst of a tenth\"\n-1,0.123\n");
        data.push(vec![1.0]);
        assert!(data.csv().is_err());
    }
}
