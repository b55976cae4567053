//! A set of numbers that any thread adds to, and one takes from.

use crate::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 64;
/// Numbers are less than this.
pub(in super::super) const FLAGS: u32 = 64 * WORDS as u32;

pub(in super::super) struct Flags {
    /// Which words have some.
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Flags {
    pub(in super::super) fn new() -> Flags {
        Flags {
            summary: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(in super::super) fn set(&self, number: u32) {
        let word = number as usize / 64;
        self.words[word].fetch_or(1 << (number % 64), Ordering::SeqCst);
        self.summary.fetch_or(1 << word, Ordering::SeqCst);
    }

    #[inline]
    pub(in super::super) fn any(&self) -> bool {
        self.summary.load(Ordering::SeqCst) != 0
    }

    /// Takes one out.
    pub(in super::super) fn take(&self) -> Option<u32> {
        loop {
            let summary = self.summary.load(Ordering::SeqCst);
            if summary == 0 {
                return None;
            }
            let word = summary.trailing_zeros();
            // First: who adds a number afterwards sets it again.
            self.summary.fetch_and(!(1 << word), Ordering::SeqCst);
            let bits = &self.words[word as usize];
            let found = bits.load(Ordering::SeqCst);
            if found == 0 {
                continue;
            }
            let bit = found.trailing_zeros();
            if bits.fetch_and(!(1 << bit), Ordering::SeqCst) & !(1 << bit) != 0 {
                self.summary.fetch_or(1 << word, Ordering::SeqCst);
            }
            return Some(word * 64 + bit);
        }
    }
}
