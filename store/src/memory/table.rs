//! Entries side by side, in the order of their ids: each at the place where its id would be if ids were spread evenly
//! (its home), or after it, with nothing but entries in between. So a look-up reads one line of memory or two that follow
//! one another, who is not there is missed as soon as who is found, and a table becomes larger in one walk from its
//! begin to its end. It grows by a fifth, to be neither much larger than it must be nor slow.

use super::entry::{Entry, Id};

/// How many of the highest bits of an id all keys of a table have in common.
pub(super) const SHARD_BITS: u32 = 6;
/// Homes of the smallest table.
const SMALLEST: usize = 12;
/// Bits of the fraction of a size.
const FRACTION: u32 = 16;
/// Places behind the last home, for those that do not find room there; the last place is always empty.
const BEHIND: usize = 16;

/// A hash table.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    places: Vec<Entry>,
    homes: usize,
    held: usize,
    /// How many homes it has, in units of 1 / 65536, and how many at least when there is a key.
    size: usize,
    smallest: usize,
}

impl Table {
    /// An empty table, which takes no memory yet. Of tables that are filled alike one in eight grows at a time, if they are
    /// numbered.
    pub(super) fn new(number: usize) -> Self {
        let smallest = (SMALLEST << FRACTION) * (40 + number % 8) / 40;
        Self { places: Vec::new(), homes: 0, held: 0, size: 0, smallest }
    }

    /// How many keys it holds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.held
    }

    #[inline]
    fn home(&self, high: u64) -> usize {
        ((u128::from(high << SHARD_BITS) * self.homes as u128) >> 64) as usize
    }

    /// Where the entry of this counter is, or where it would have to be.
    #[inline]
    pub(super) fn seek(&self, id: Id) -> Result<usize, usize> {
        let home = self.home(id.high);
        let mut at = home;
        for entry in self.places.get(home..).unwrap_or_default() {
            if entry.id.high >= id.high {
                if id.is_of(entry) {
                    return Ok(at);
                }
                if entry.id.high > id.high {
                    break;
                }
            }
            at += 1;
        }
        Err(at)
    }

    /// The entry that holds exactly this id. It may be missed if another one has the same upper half.
    #[inline]
    pub(super) fn find(&mut self, tagged: Id) -> Option<&mut Entry> {
        let home = self.home(tagged.high);
        let entry = self.places.get_mut(home..)?.iter_mut().find(|entry| entry.id.high >= tagged.high)?;
        (entry.id == tagged).then_some(entry)
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Entry> {
        self.places.get(at)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Entry> {
        self.places.get_mut(at)
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Adds an entry of a counter that is not there; `at` is where [`Table::seek`] says that it has to be.
    pub(super) fn insert(&mut self, id: Id, mut at: usize, entry: Entry) {
        // Full at 82 in 100: so a key takes 47 bytes at most, just after the table has grown.
        if (self.held + 1) * 50 > self.homes * 41 {
            self.resize((self.size / 5 * 6).max(self.smallest));
            at = self.seek(id).unwrap_or_else(|at| at);
        }
        let Some(free) = self.places.iter().skip(at).position(Entry::is_empty) else { return };
        self.places.copy_within(at..at + free, at + 1);
        self.places[at] = entry;
        self.held += 1;
        if at + free + 1 == self.places.len() {
            extend(&mut self.places, at + free + 1 + BEHIND);
        }
    }

    /// Takes an entry out; whoever stands behind it and not at home moves up.
    pub(super) fn remove(&mut self, at: usize) {
        let behind = self.places.iter().enumerate().skip(at + 1);
        let stays = |(place, entry): &(usize, &Entry)| entry.is_empty() || self.home(entry.id.high) == *place;
        let end = behind.into_iter().find(stays).map_or(self.places.len(), |(place, _)| place);
        self.places.copy_within(at + 1..end, at);
        self.places[end - 1] = Entry::EMPTY;
        self.held -= 1;
    }

    /// Gives memory back when little of it is used.
    pub(super) fn shrink(&mut self) {
        if self.held == 0 {
            (self.places, self.homes, self.size) = (Vec::new(), 0, 0);
        } else if self.held * 8 < self.homes {
            let mut size = self.size;
            // Not so small that it grows at the next key.
            while size / 6 * 5 >= self.smallest.max((self.held << FRACTION) / 3 * 4) {
                size = size / 6 * 5;
            }
            if size < self.size {
                self.resize(size);
            }
        }
    }

    fn resize(&mut self, size: usize) {
        let before = std::mem::take(&mut self.places);
        let homes = size >> FRACTION;
        (self.size, self.homes) = (size, homes);
        let mut places = Vec::new();
        places.reserve_exact(homes + BEHIND);
        for entry in before.into_iter().filter(|entry| !entry.is_empty()) {
            let home = self.home(entry.id.high);
            extend(&mut places, home);
            if places.len() == places.capacity() {
                places.reserve_exact(BEHIND);
            }
            places.push(entry);
        }
        let all = (homes + BEHIND).max(places.len() + 1);
        extend(&mut places, all);
        self.places = places;
    }
}

/// Adds empty places until there are so many.
fn extend(places: &mut Vec<Entry>, to: usize) {
    if places.len() < to {
        places.reserve_exact(to - places.len());
        places.resize(to, Entry::EMPTY);
    }
}
