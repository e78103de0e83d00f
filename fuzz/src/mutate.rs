//! Random changes of bytes.

use rand::Rng;

/// Largest input, in bytes.
const MAX_LENGTH: usize = 16 << 10;

/// Changes `bytes` a few times at random: inserts one of `words` or any byte, and changes, drops or repeats a part.
pub fn mutate(bytes: &mut Vec<u8>, words: &[&str], rng: &mut impl Rng) {
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=bytes.len());
        let end = rng.random_range(at..=bytes.len().min(at + 40));
        match rng.random_range(0..6) {
            0 | 1 if !words.is_empty() => {
                let word = words[rng.random_range(0..words.len())].as_bytes();
                let replaced = if rng.random_bool(0.5) { at..at } else { at..end };
                bytes.splice(replaced, word.iter().copied());
            }
            2 => bytes.insert(at, rng.random()),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let part = bytes[at..end].to_vec();
                let to = rng.random_range(0..=bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8);
                }
            }
        }
    }
    bytes.truncate(MAX_LENGTH);
}
