//! A hash table with linear probing whose cells are sorted by id. The home of a cell is the position that its
//! id would have if ids were spread evenly. A cell is at its home or after it, with only occupied cells in
//! between. A lookup therefore reads one or two consecutive cache lines, whether it finds the cell or not,
//! and the table grows in one pass from its first cell to its last. It grows by a fifth: little more memory
//! than necessary, and rarely.

use crate::memory::cell::{CounterId, TableCell};

/// Number of the highest bits of an id that all keys of a table have in common.
pub(in crate::memory) const SHARD_BITS: u32 = 6;
/// Number of homes of the smallest table.
const SMALLEST: usize = 12;
/// Number of fractional bits of a size.
const FRACTION: u32 = 16;
/// Number of cells after the last home, for cells that do not fit there. The last cell is always empty.
const EXTRA_CELLS: usize = 16;

/// A hash table of cells.
#[derive(Debug)]
#[repr(C)]
pub(in crate::memory) struct CellTable {
    cells: Vec<TableCell>,
    homes: usize,
    len: usize,
    /// Number of homes, in units of 1 / 65536, and the minimum once there is a key.
    size: usize,
    smallest: usize,
}

impl CellTable {
    /// An empty table, which allocates no memory. The number varies the size, so that of equally filled
    /// tables only one in eight grows at a time.
    pub(in crate::memory) fn new(number: usize) -> Self {
        let smallest = (SMALLEST << FRACTION) * (40 + number % 8) / 40;
        Self { cells: Vec::new(), homes: 0, len: 0, size: 0, smallest }
    }

    /// Returns the number of occupied cells.
    #[cfg(test)]
    pub(in crate::memory) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn home(&self, high: u64) -> usize {
        ((u128::from(high << SHARD_BITS) * self.homes as u128) >> 64) as usize
    }

    /// Returns the position of a counter's cell, or as an error the position where it would be inserted.
    #[inline]
    pub(in crate::memory) fn seek(&self, id: CounterId) -> Result<usize, usize> {
        let home = self.home(id.high);
        let mut at = home;
        for cell in self.cells.get(home..).unwrap_or_default() {
            if cell.id.high >= id.high {
                if id.is_of(cell) {
                    return Ok(at);
                }
                if cell.id.high > id.high {
                    break;
                }
            }
            at += 1;
        }
        Err(at)
    }

    /// Returns the cell with exactly this id. It may miss the cell if another one has the same upper half.
    #[inline]
    pub(in crate::memory) fn find(&mut self, tagged: CounterId) -> Option<&mut TableCell> {
        let home = self.home(tagged.high);
        let cell = self.cells.get_mut(home..)?.iter_mut().find(|cell| cell.id.high >= tagged.high)?;
        (cell.id == tagged).then_some(cell)
    }

    #[inline]
    pub(in crate::memory) fn get(&self, at: usize) -> Option<&TableCell> {
        self.cells.get(at)
    }

    #[inline]
    pub(in crate::memory) fn get_mut(&mut self, at: usize) -> Option<&mut TableCell> {
        self.cells.get_mut(at)
    }

    /// Returns the number of cells, including empty ones.
    pub(in crate::memory) fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Inserts a new counter's cell at the position from [`CellTable::seek`].
    pub(in crate::memory) fn insert(&mut self, id: CounterId, mut at: usize, cell: TableCell) {
        // The table grows at 82 %. A key then takes at most 47 bytes, just after the table has grown.
        if (self.len + 1) * 50 > self.homes * 41 {
            self.resize((self.size / 5 * 6).max(self.smallest));
            at = self.seek(id).unwrap_or_else(|at| at);
        }
        let Some(free) = self.cells.iter().skip(at).position(TableCell::is_empty) else { return };
        self.cells.copy_within(at..at + free, at + 1);
        self.cells[at] = cell;
        self.len += 1;
        if at + free + 1 == self.cells.len() {
            extend(&mut self.cells, at + free + 1 + EXTRA_CELLS);
        }
    }

    /// Removes a cell. The following cells that are not at home move up.
    pub(in crate::memory) fn remove(&mut self, at: usize) {
        let following = self.cells.iter().enumerate().skip(at + 1);
        let stays = |(at, cell): &(usize, &TableCell)| cell.is_empty() || self.home(cell.id.high) == *at;
        let end = following.into_iter().find(stays).map_or(self.cells.len(), |(at, _)| at);
        self.cells.copy_within(at + 1..end, at);
        self.cells[end - 1] = TableCell::EMPTY;
        self.len -= 1;
    }

    /// Releases memory if little of it is used.
    pub(in crate::memory) fn shrink(&mut self) {
        if self.len == 0 {
            (self.cells, self.homes, self.size) = (Vec::new(), 0, 0);
        } else if self.len * 8 < self.homes {
            let mut size = self.size;
            // Large enough not to grow again at the next key.
            while size / 6 * 5 >= self.smallest.max((self.len << FRACTION) / 3 * 4) {
                size = size / 6 * 5;
            }
            if size < self.size {
                self.resize(size);
            }
        }
    }

    fn resize(&mut self, size: usize) {
        let before = std::mem::take(&mut self.cells);
        let homes = size >> FRACTION;
        (self.size, self.homes) = (size, homes);
        let mut cells = Vec::new();
        cells.reserve_exact(homes + EXTRA_CELLS);
        for cell in before.into_iter().filter(|cell| !cell.is_empty()) {
            let home = self.home(cell.id.high);
            extend(&mut cells, home);
            if cells.len() == cells.capacity() {
                cells.reserve_exact(EXTRA_CELLS);
            }
            cells.push(cell);
        }
        let all = (homes + EXTRA_CELLS).max(cells.len() + 1);
        extend(&mut cells, all);
        self.cells = cells;
    }
}

/// Appends empty cells up to a length.
fn extend(cells: &mut Vec<TableCell>, to: usize) {
    if cells.len() < to {
        cells.reserve_exact(to - cells.len());
        cells.resize(to, TableCell::EMPTY);
    }
}
