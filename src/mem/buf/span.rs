//! Addresses of memory, to find out whether the two sides of a job overlap.
#![allow(unreachable_pub, reason = "named by the sealed traits of operands")]

use std::ops::Range;

/// The addresses of one piece of memory. Spans sort by address space, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The address space: 0 for this process, otherwise a number that identifies the import, since
    /// other machines and processes have addresses of their own.
    space: usize,
    start: usize,
    end: usize,
}

impl Span {
    /// Returns the span of memory of this process.
    pub(in crate::mem) fn local(addrs: Range<usize>) -> Span {
        Span::of(0, addrs)
    }

    pub(in crate::mem) fn of(space: usize, addrs: Range<usize>) -> Span {
        Span {
            space,
            start: addrs.start,
            end: addrs.end,
        }
    }

    pub(in crate::mem) fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Returns the span as a list of one, or an empty list if the span is empty.
    pub(in crate::mem) fn as_list(&self) -> &[Span] {
        match self.is_empty() {
            true => &[],
            false => std::slice::from_ref(self),
        }
    }

    /// Returns true if the two spans have a byte in common.
    #[inline(always)]
    pub(in crate::mem) fn meets(&self, other: &Span) -> bool {
        self.space == other.space && self.start.max(other.start) < self.end.min(other.end)
    }

    /// Returns true if this span ends before `other` begins, in the order in which lists are
    /// sorted.
    fn is_before(&self, other: &Span) -> bool {
        (self.space, self.end) <= (other.space, other.start)
    }

    /// Returns true if two spans of a sorted list have a byte in common.
    pub(in crate::mem) fn any_twice(list: &[Span]) -> bool {
        list.windows(2).any(|pair| !pair[0].is_before(&pair[1]))
    }

    /// Returns true if a span of `from` has a byte in common with a span of `to`. Both lists are
    /// sorted, and the spans of `to` do not overlap each other.
    pub(in crate::mem) fn any_shared(from: &[Span], to: &[Span]) -> bool {
        let mut to = to.iter().peekable();
        from.iter().any(|from| {
            // `from` is sorted, so the spans of `to` that are skipped here meet no later span of
            // `from`.
            while to.next_if(|to| to.is_before(from)).is_some() {}
            to.peek().is_some_and(|to| !from.is_before(to))
        })
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lists() -> impl Strategy<Value = Vec<Span>> {
        let span = (0..2_usize, 0..60_usize, 1..12_usize);
        let span = span.prop_map(|(space, start, len)| Span::of(space, start..start + len));
        proptest::collection::vec(span, 0..6).prop_map(|mut list| {
            list.sort_unstable();
            list
        })
    }

    proptest! {
        #[test]
        fn what_is_shared_is_what_a_look_at_each_pair_finds(from in lists(), to in lists()) {
            let pairs = |at: usize| to[at + 1..].iter().any(|other| to[at].meets(other));
            let twice = (0..to.len()).any(pairs);
            prop_assert_eq!(Span::any_twice(&to), twice);
            if !twice {
                let shared = from.iter().any(|from| to.iter().any(|to| from.meets(to)));
                prop_assert_eq!(Span::any_shared(&from, &to), shared);
            }
        }
    }

    #[test]
    fn an_empty_piece_is_in_no_list() {
        assert!(Span::local(5..5).as_list().is_empty());
        assert_eq!(Span::local(5..6).as_list().len(), 1);
    }
}
