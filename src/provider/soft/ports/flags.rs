//! A set of numbers that any thread adds to, and one takes from.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A model has fewer, which loom handles faster.
const WORDS: usize = if cfg!(tokio_doca_loom) { 2 } else { 64 };
/// Numbers are less than this.
pub(super) const FLAGS: u32 = 64 * WORDS as u32;

pub(super) struct Flags {
    /// A bit for each word, which is set if the word may have a bit that is set.
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

    /// Takes one out. Each `turn` begins elsewhere, so that no number comes before another in all
    /// of them.
    pub(super) fn take(&self, turn: u32) -> Option<u32> {
        loop {
            let summary = self.summary.load(Ordering::SeqCst);
            let word = first(summary, turn)?;
            // First: a thread that adds a number afterwards sets it again.
            self.summary.fetch_and(!(1 << word), Ordering::SeqCst);
            let bits = &self.words[word as usize];
            let Some(bit) = first(bits.load(Ordering::SeqCst), turn) else {
                continue;
            };
            if bits.fetch_and(!(1 << bit), Ordering::SeqCst) & !(1 << bit) != 0 {
                self.summary.fetch_or(1 << word, Ordering::SeqCst);
            }
            return Some(word * 64 + bit);
        }
    }
}

/// The first bit of the word that is set, counted from bit `turn` on, and around.
fn first(word: u64, turn: u32) -> Option<u32> {
    let from = turn % 64;
    (word != 0).then(|| (word.rotate_right(from).trailing_zeros() + from) % 64)
}
