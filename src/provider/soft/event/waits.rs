//! The waits of a port.
//!
//! Waits whose mask has all bits lie in a heap, ordered by their thresholds, so that finding one
//! that a value ends takes constant time. Waits with another mask are few, and are checked one by
//! one. All memory is allocated when the port is opened.

use crate::device::{EventWait, Token};

/// The index of an entry without a wait.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct WaitEntry {
    token: Token,
    wait: EventWait,
    /// The index in the list that has the wait: `heap` or `others`.
    at: u32,
}

pub(super) struct Waits {
    /// The entries, by the index of the waits' tokens.
    entries: Box<[WaitEntry]>,
    heap: Vec<u32>,
    others: Vec<u32>,
}

impl Waits {
    pub(super) fn new(size: u32) -> Waits {
        let entry = WaitEntry {
            token: Token::from_raw(u64::MAX),
            wait: EventWait {
                threshold: 0,
                mask: 0,
            },
            at: NOWHERE,
        };
        Waits {
            entries: vec![entry; size as usize].into(),
            heap: Vec::with_capacity(size as usize),
            others: Vec::with_capacity(size as usize),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.others.is_empty()
    }

    /// Stores a wait. Returns false if there is no entry for the index of `token`, or if the entry
    /// is taken.
    pub(super) fn insert(&mut self, token: Token, wait: EventWait) -> bool {
        let index = token.index();
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return false;
        };
        if entry.at != NOWHERE {
            return false;
        }
        let list = match wait.mask {
            u64::MAX => &mut self.heap,
            _ => &mut self.others,
        };
        let at = list.len() as u32;
        list.push(index);
        *entry = WaitEntry { token, wait, at };
        if wait.mask == u64::MAX {
            self.rise(at as usize);
        }
        true
    }

    /// Removes a wait. Returns false if the token does not wait.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        match self.entries.get(token.index() as usize) {
            Some(entry) if entry.token == token && entry.at != NOWHERE => {
                self.take(token.index());
                true
            }
            _ => false,
        }
    }

    /// Removes a wait that this value ends, and returns its token.
    pub(super) fn take_due(&mut self, value: u64) -> Option<Token> {
        let due = |&index: &u32| self.entries[index as usize].wait.is_met(value);
        let first = self.heap.first().copied().filter(due);
        let index = first.or_else(|| self.others.iter().copied().find(due))?;
        Some(self.take(index))
    }

    /// Takes any wait.
    pub(super) fn take_any(&mut self) -> Option<Token> {
        let index = *self.heap.last().or(self.others.last())?;
        Some(self.take(index))
    }

    /// Returns the lowest value that the counter must exceed to end a wait. If there is no wait,
    /// all bits are set.
    pub(super) fn lowest(&self) -> u64 {
        let threshold = |index: &u32| self.entries[*index as usize].wait.threshold;
        let masked = self.others.iter().map(threshold);
        let first = self.heap.first().map(threshold);
        masked.chain(first).min().unwrap_or(u64::MAX)
    }

    fn take(&mut self, index: u32) -> Token {
        let WaitEntry { token, wait, at } = self.entries[index as usize];
        self.entries[index as usize].at = NOWHERE;
        let whole = wait.mask == u64::MAX;
        let list = match whole {
            true => &mut self.heap,
            false => &mut self.others,
        };
        list.swap_remove(at as usize);
        if let Some(&moved) = list.get(at as usize) {
            self.entries[moved as usize].at = at;
            if whole {
                self.sink(at as usize);
                self.rise(at as usize);
            }
        }
        token
    }

    fn threshold(&self, at: usize) -> u64 {
        self.entries[self.heap[at] as usize].wait.threshold
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for at in [one, other] {
            self.entries[self.heap[at] as usize].at = at as u32;
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.threshold(at) < self.threshold((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let least = children
                .into_iter()
                .filter(|&child| child < self.heap.len())
                .min_by_key(|&child| self.threshold(child));
            match least {
                Some(child) if self.threshold(child) < self.threshold(at) => {
                    self.swap(at, child);
                    at = child;
                }
                _ => return,
            }
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u32 = 8;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32, u64, u64),
        Remove(u32, u32),
        Due(u64),
        Any,
    }

    fn step() -> impl Strategy<Value = Step> {
        let mask = prop_oneof![3 => Just(u64::MAX), 1 => Just(0xf0), 1 => Just(0)];
        prop_oneof![
            4 => (0..SIZE + 1, 0..40_u64, mask).prop_map(|(i, t, m)| Step::Insert(i, t, m)),
            2 => (0..SIZE + 1, 0..60_u32).prop_map(|(i, g)| Step::Remove(i, g)),
            3 => (0..300_u64).prop_map(Step::Due),
            1 => Just(Step::Any),
        ]
    }

    proptest! {
        #[test]
        fn it_is_what_a_list_would_be(steps in vec(step(), 0..60)) {
            let mut waits = Waits::new(SIZE);
            let mut model: HashMap<u32, (Token, EventWait)> = HashMap::new();
            for (turn, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(index, threshold, mask) => {
                        let token = Token::new(1, index, turn as u32);
                        let wait = EventWait { threshold, mask };
                        let free = index < SIZE && !model.contains_key(&index);
                        prop_assert_eq!(waits.insert(token, wait), free);
                        if free {
                            model.insert(index, (token, wait));
                        }
                    }
                    Step::Remove(index, generation) => {
                        let token = Token::new(1, index, generation);
                        let known = model.get(&index).is_some_and(|(known, _)| *known == token);
                        prop_assert_eq!(waits.remove(token), known);
                        if known {
                            model.remove(&index);
                        }
                    }
                    Step::Due(value) => {
                        while let Some(token) = waits.take_due(value) {
                            let (known, wait) = model.remove(&token.index()).unwrap();
                            prop_assert_eq!(known, token);
                            prop_assert!(wait.is_met(value));
                        }
                        prop_assert!(model.values().all(|(_, wait)| !wait.is_met(value)));
                    }
                    Step::Any => {
                        let token = waits.take_any();
                        prop_assert_eq!(token.is_none(), model.is_empty());
                        if let Some(token) = token {
                            prop_assert_eq!(model.remove(&token.index()).unwrap().0, token);
                        }
                    }
                }
                let lowest = model.values().map(|(_, wait)| wait.threshold).min();
                prop_assert_eq!(waits.lowest(), lowest.unwrap_or(u64::MAX));
                prop_assert_eq!(waits.is_empty(), model.is_empty());
            }
        }
    }
}
