//! Records that do not fit into a cell, by the index that their cell holds.

use crate::check::Records;

/// Records that do not fit into a cell.
#[derive(Debug, Default)]
pub(super) struct SpilledRecords {
    records: Vec<Records>,
    /// Indexes without records.
    free: Vec<usize>,
}

impl SpilledRecords {
    /// Takes the records at an index out, which stays in use.
    pub(super) fn take(&mut self, index: usize) -> Records {
        self.records.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn peek(&self, index: usize) -> Records {
        self.records[index].clone()
    }

    /// Stores records at an index, or at a new one. Returns the index.
    pub(super) fn put(&mut self, index: Option<usize>, records: Records) -> usize {
        match index.or_else(|| self.free.pop()) {
            Some(index) => {
                if let Some(stored) = self.records.get_mut(index) {
                    *stored = records;
                }
                index
            }
            None => {
                self.records.push(records);
                self.records.len() - 1
            }
        }
    }

    /// Removes the records at an index and frees the index.
    pub(super) fn remove(&mut self, index: usize) {
        if let Some(records) = self.records.get_mut(index) {
            *records = Records::new();
            self.free.push(index);
        }
        if self.free.len() == self.records.len() {
            *self = Self::default();
        }
    }
}
