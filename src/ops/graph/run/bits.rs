//! [`Bits`], a set of nodes as words of bits.

/// A set of numbers below a bound. It allocates nothing after it was made.
#[derive(Debug)]
pub(super) struct Bits {
    words: Box<[u64]>,
    /// Words before this one are empty.
    first: usize,
    len: usize,
}

impl Bits {
    /// Returns an empty set of numbers below `bound`.
    pub(super) fn new(bound: usize) -> Bits {
        Bits {
            words: vec![0; bound.div_ceil(64)].into(),
            first: 0,
            len: 0,
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, number: u32) {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        self.len += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
        self.first = self.first.min(word);
    }

    pub(super) fn remove(&mut self, number: u32) {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        self.len -= usize::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.words[number as usize / 64] & 1 << (number % 64) != 0
    }

    /// Removes the smallest number, and returns it.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        let word = &mut self.words[self.first];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        self.len -= 1;
        Some(self.first as u32 * 64 + bit)
    }

    /// Returns the smallest number that is at least `from`.
    pub(super) fn next(&self, from: u32) -> Option<u32> {
        let start = from as usize / 64;
        let words = self.words.iter().enumerate().skip(start);
        for (at, &word) in words {
            let below = if at == start { from % 64 } else { 0 };
            let word = word & (u64::MAX << below);
            if word != 0 {
                return Some(at as u32 * 64 + word.trailing_zeros());
            }
        }
        None
    }

    pub(super) fn clear(&mut self) {
        if self.len > 0 {
            self.words.fill(0);
            self.len = 0;
        }
        self.first = 0;
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_is_what_a_tree_of_numbers_is() {
        for bound in [1, 63, 64, 65, 200] {
            let (mut bits, mut tree) = (Bits::new(bound), BTreeSet::new());
            let mut state = bound as u64;
            for _ in 0..2000 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let number = (state >> 40) as u32 % bound as u32;
                match state >> 33 & 7 {
                    0..=3 => {
                        bits.insert(number);
                        tree.insert(number);
                    }
                    4 => {
                        bits.remove(number);
                        tree.remove(&number);
                    }
                    5 => assert_eq!(bits.next(number), tree.range(number..).next().copied()),
                    6 => assert_eq!(bits.pop(), tree.pop_first()),
                    _ => assert_eq!(bits.contains(number), tree.contains(&number)),
                }
                assert_eq!(bits.is_empty(), tree.is_empty());
            }
            bits.clear();
            assert!(bits.is_empty() && bits.next(0).is_none() && bits.pop().is_none());
        }
    }
}
