//! [`FreeBitmap`], the set of free slots: words of bits, of which each thread uses its own word
//! first.
//!
//! Each word is on a cache line of its own. A thread takes slots from the word that its number
//! selects, and continues with the other words when that word is empty. So `take` returns `None`
//! only after it has read all words. A slot goes back to the word that has its bit. Only the
//! thread's number is thread-local, and no lock is needed.

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{seq_cst_order, thread_number};

/// The number of words, and so of threads with a word of their own, for 128 to 1,024 slots.
const SPREAD: usize = 16;
/// The minimum number of slots that a word should have.
const SHARE: usize = 8;

#[repr(align(128))]
struct Word {
    free: AtomicU64,
    /// The bits of the word when no slot is taken.
    all: u64,
}

pub(in crate::reactor) struct FreeBitmap {
    words: Box<[Word]>,
    /// The number of words, less one. The number of words is a power of two; `shift` is its
    /// exponent.
    mask: usize,
    shift: u32,
    slots: usize,
    /// The word in which the last search beyond a thread's own word has found a slot. The words
    /// before it are likely to be still empty.
    hint: AtomicUsize,
}

/// Returns the bits of the word with index `at` when no slot is taken. Slot `i` is bit `i / count`
/// of word `i % count`.
fn full(slots: usize, count: usize, at: usize) -> u64 {
    match (slots + count - 1 - at) / count {
        64 => u64::MAX,
        bits => (1 << bits) - 1,
    }
}

impl FreeBitmap {
    /// Returns a bitmap in which all of `slots` are free.
    pub(in crate::reactor) fn new(slots: usize) -> FreeBitmap {
        let count = (slots / SHARE).clamp(1, SPREAD).max(slots.div_ceil(64));
        // With a power of two, the word and the bit of a number are cheap to compute.
        let count = count.next_power_of_two();
        let words = (0..count)
            .map(|at| full(slots, count, at))
            .map(|all| Word {
                free: AtomicU64::new(all),
                all,
            })
            .collect();
        FreeBitmap {
            words,
            mask: count - 1,
            shift: count.trailing_zeros(),
            slots,
            hint: AtomicUsize::new(0),
        }
    }

    /// Takes a free slot. Pairs with `put`, so that this thread sees all that was written to the
    /// slot before it was freed.
    #[inline]
    pub(in crate::reactor) fn take(&self) -> Option<u32> {
        self.take_from(thread_number())
    }

    #[inline]
    pub(in crate::reactor) fn take_from(&self, thread: usize) -> Option<u32> {
        let own = thread & self.mask;
        self.take_of(own).or_else(|| self.take_of_others(own))
    }

    #[inline]
    fn take_of(&self, at: usize) -> Option<u32> {
        let word = &self.words[at].free;
        let mut bits = word.load(Ordering::SeqCst);
        while bits != 0 {
            let less = bits & (bits - 1);
            match word.compare_exchange_weak(bits, less, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    seq_cst_order();
                    return Some((bits.trailing_zeros() << self.shift) | at as u32);
                }
                Err(seen) => bits = seen,
            }
        }
        None
    }

    /// Takes a slot from a word other than the thread's `own`. Reads all of them before it returns
    /// `None`.
    #[cold]
    fn take_of_others(&self, own: usize) -> Option<u32> {
        if self.mask == 0 {
            return None;
        }
        let hint = self.hint.load(Ordering::Relaxed);
        for at in self.words_from(hint).filter(|&at| at != own) {
            let taken = self.take_of(at);
            if taken.is_some() {
                self.hint.store(at, Ordering::Relaxed);
                return taken;
            }
        }
        None
    }

    /// Frees a slot. SeqCst: either this thread sees a waiter in line afterwards, or the waiter
    /// sees that the slot is free.
    #[inline]
    pub(in crate::reactor) fn put(&self, slot: u32) {
        let (at, bit) = (slot as usize & self.mask, slot >> self.shift);
        let before = self.words[at].free.fetch_or(1 << bit, Ordering::SeqCst);
        debug_assert_eq!(before & 1 << bit, 0, "freed twice");
        seq_cst_order();
    }

    /// Returns the number of free slots, which is exact if no thread takes or frees one meanwhile.
    pub(in crate::reactor) fn free(&self) -> usize {
        seq_cst_order();
        self.words
            .iter()
            .map(|word| word.free.load(Ordering::SeqCst).count_ones() as usize)
            .sum()
    }

    /// Returns true if at least two slots of this thread's word are taken. Each busy poll calls
    /// this, so it reads only this one word.
    #[inline]
    pub(in crate::reactor) fn several_taken(&self) -> bool {
        self.several_of(thread_number())
    }

    fn several_of(&self, thread: usize) -> bool {
        let word = &self.words[thread & self.mask];
        let taken = word.all & !word.free.load(Ordering::Relaxed);
        taken & taken.wrapping_sub(1) != 0
    }

    /// Returns the slots that are taken, which is exact if no thread takes or frees one meanwhile.
    /// The slots of the word that has `slot` come first, and those of the words before that word
    /// last.
    pub(in crate::reactor) fn taken_from(&self, slot: usize) -> impl Iterator<Item = usize> {
        let count = self.words.len();
        self.words_from(slot & self.mask)
            .map(|at| (at, &self.words[at]))
            .flat_map(move |(at, word)| {
                let mut bits = word.all & !word.free.load(Ordering::SeqCst);
                std::iter::from_fn(move || {
                    let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                    bits &= bits - 1;
                    Some(bit * count + at)
                })
            })
    }

    /// Returns the indices of all words, from `first` on, wrapping around.
    fn words_from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        (first..self.words.len()).chain(0..first)
    }

    /// Returns the number of slots.
    pub(in crate::reactor) fn slots(&self) -> usize {
        self.slots
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_of_a_thread_are_several() {
        for slots in [2, 9, 64, 256, 5000] {
            let bitmap = FreeBitmap::new(slots);
            let spread = bitmap.words.len() > 1;
            let taken = [0, 1, 0].map(|thread| bitmap.take_from(thread));
            assert!(taken[0].is_some() && taken[1].is_some());
            let several = [0, 1].map(|thread| bitmap.several_of(thread));
            assert_eq!(several, [true, !spread]);
            bitmap.put(taken[0].expect("as above"));
            assert_eq!(bitmap.several_of(0), !spread && slots > 2);
        }
    }

    #[test]
    fn every_slot_is_taken_once_from_whatever_magazine() {
        for slots in [1, 7, 8, 9, 64, 65, 127, 256, 1000, 1024, 1025, 5000] {
            let bitmap = FreeBitmap::new(slots);
            assert_eq!(bitmap.free(), slots);
            let mut seen = vec![false; slots];
            for _ in 0..slots {
                let slot = bitmap.take_from(3).expect("one is left") as usize;
                assert!(!std::mem::replace(&mut seen[slot], true), "{slot} twice");
            }
            assert_eq!((bitmap.take_from(5), bitmap.free()), (None, 0));
            assert_eq!(bitmap.taken_from(5).count(), slots);
            bitmap.put(slots as u32 - 1);
            assert!(bitmap.taken_from(0).all(|slot| slot != slots - 1));
            assert_eq!(
                bitmap.take_from(11),
                Some(slots as u32 - 1),
                "taken from another thread's word"
            );
        }
    }
}
