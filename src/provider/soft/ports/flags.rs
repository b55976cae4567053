//! A set of numbers below `FLAGS`. Any thread adds numbers, and one thread takes them.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of words. A loom model has fewer, which loom handles faster.
const WORDS: usize = if cfg!(tokio_doca_loom) { 2 } else { 64 };
/// The exclusive upper bound of the numbers in a set.
pub(super) const FLAGS: u32 = 64 * WORDS as u32;

pub(super) struct Flags {
    /// One bit for each word. It is set if that word may have a bit set.
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Flags {
    pub(super) fn new() -> Flags {
        Flags {
            summary: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(super) fn set(&self, number: u32) {
        let word = number as usize / 64;
        self.words[word].fetch_or(1 << (number % 64), Ordering::SeqCst);
        self.summary.fetch_or(1 << word, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.summary.load(Ordering::SeqCst) != 0
    }

    /// Takes the first number at or after `from`, wrapping around at the end. A caller that always
    /// continues after the number that it took last takes each number before any number comes
    /// twice.
    pub(super) fn take(&self, from: u32) -> Option<u32> {
        let (start, bit) = (from / 64, from % 64);
        loop {
            let summary = self.summary.load(Ordering::SeqCst);
            if summary == 0 {
                return None;
            }
            // The order is: the upper part of the first word, the other words in turn, and the
            // lower part of the first word.
            let upper = |bits: u64| bits >> bit << bit;
            let own = self.words[start as usize].load(Ordering::SeqCst);
            let word = if summary >> start & 1 != 0 && upper(own) != 0 {
                start
            } else {
                first(summary, start + 1)
            };
            // The summary is cleared first: a thread that adds a number afterwards sets it again.
            self.summary.fetch_and(!(1 << word), Ordering::SeqCst);
            let bits = &self.words[word as usize];
            let found = bits.load(Ordering::SeqCst);
            if found == 0 {
                continue;
            }
            let wanted = if word == start && upper(found) != 0 {
                upper(found)
            } else {
                found
            };
            let taken = 1 << wanted.trailing_zeros();
            if bits.fetch_and(!taken, Ordering::SeqCst) & !taken != 0 {
                self.summary.fetch_or(1 << word, Ordering::SeqCst);
            }
            return Some(word * 64 + wanted.trailing_zeros());
        }
    }
}

/// Returns the index of the first set bit at or after bit `from`, wrapping around. At least one bit
/// must be set.
fn first(word: u64, from: u32) -> u32 {
    let from = from % 64;
    (word.rotate_right(from).trailing_zeros() + from) % 64
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_set_again_and_again_starve_no_other() {
        let busy = [0, 65, 128, 4095];
        for waiting in [1, 63, 64, 66, 127, 129, 200, 4094] {
            let flags = Flags::new();
            flags.set(waiting);
            busy.iter().for_each(|&number| flags.set(number));
            let mut from = 0;
            let mut taken = Vec::new();
            while !taken.contains(&waiting) {
                let number = flags.take(from).unwrap();
                from = (number + 1) % FLAGS;
                taken.push(number);
                assert!(
                    taken.len() <= busy.len() + 1,
                    "{waiting} starves: {taken:?}"
                );
                if number != waiting {
                    flags.set(number);
                }
            }
        }
    }

    #[test]
    fn each_number_is_taken_once() {
        let flags = Flags::new();
        let numbers = [0, 5, 63, 64, 700, 4095];
        for from in [0, 5, 6, 64, 65, 701, 4095] {
            numbers.iter().for_each(|&number| flags.set(number));
            let mut taken: Vec<u32> = std::iter::from_fn(|| flags.take(from)).collect();
            taken.sort_unstable();
            assert_eq!(taken, numbers);
            assert!(!flags.any());
        }
    }
}
