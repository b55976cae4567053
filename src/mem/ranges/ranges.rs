//! The claimed and the leased ranges of an Mmap whose Bufs may overlap.
//!
//! One lock per Mmap guards the claims of pools and arrays, the list of live Bufs of inventories,
//! and the two trees of their leased ranges (an empty range is in neither). It also guards whether
//! the Mmap is started, since an Mmap is stopped only while it is unused, and used only while it is
//! started. A range in the tree of writers overlaps nothing in either tree. A Buf that is not
//! leased is in no tree, so that a thousand idle Bufs cost nothing.
#![expect(unsafe_code, reason = "trees and list link nodes that lie in elements")]

use std::ops::Range;
use std::ptr::NonNull;

use super::interval::{IntervalTree, Node};
use super::word::{LeaseRefusal, LeaseWord, Left};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::UnsafeCell;

/// The part of an element that the Mmap's lock guards.
///
/// Two cells: the trees keep pointers to the first, which no reference to the second may cover.
pub(in crate::mem) struct RangeNode {
    tree: UnsafeCell<Node>,
    guarded: UnsafeCell<Guarded>,
}

struct Guarded {
    start: usize,
    end: usize,
    prev: Option<NonNull<RangeNode>>,
    next: Option<NonNull<RangeNode>>,
}

// SAFETY: the content is reached only through `&mut Ranges`, which is under the Mmap's lock.
unsafe impl Send for RangeNode {}
// SAFETY: as above.
unsafe impl Sync for RangeNode {}

impl RangeNode {
    pub(in crate::mem) fn new() -> RangeNode {
        let node_of_tree = Guarded {
            start: 0,
            end: 0,
            prev: None,
            next: None,
        };
        RangeNode {
            tree: UnsafeCell::new(Node::new()),
            guarded: UnsafeCell::new(node_of_tree),
        }
    }
}

/// The state of an Mmap: whether devices hold its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mem) enum Stage {
    Started,
    /// A thread is stopping or starting the Mmap.
    Changing,
    Stopped,
}

/// Why a range cannot be claimed or given to a Buf.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mem) enum Busy {
    /// A claim or a live Buf, which has this range, uses a part of the requested one.
    InUse(Range<usize>),
    /// The Mmap is not started.
    NotStarted,
}

impl Busy {
    pub(in crate::mem) fn error(self, op: &'static str, range: &Range<usize>) -> Error {
        match self {
            Busy::InUse(other) => {
                let text = format!(
                    "bytes {range:?} overlap {other:?}, which a pool, an array or a Buf of an inventory has: \
                     take another range"
                );
                Error::new(ErrorKind::InUse, op, text)
            }
            Busy::NotStarted => {
                let text = "the Mmap is stopped: Mmap::start hands it to devices again";
                Error::new(ErrorKind::BadState, op, text)
            }
        }
    }
}

pub(in crate::mem) struct Ranges {
    stage: Stage,
    claims: Vec<Range<usize>>,
    /// The live Bufs of inventories.
    live: Option<NonNull<RangeNode>>,
    readers: IntervalTree,
    writers: IntervalTree,
}

// SAFETY: the pointers are to nodes that `add` was given, which stay until `forget`.
unsafe impl Send for Ranges {}

/// Returns true if two ranges have a byte in common: an empty one has none.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

impl Ranges {
    pub(in crate::mem) fn new() -> Ranges {
        Ranges {
            stage: Stage::Started,
            claims: Vec::new(),
            live: None,
            readers: IntervalTree::new(),
            writers: IntervalTree::new(),
        }
    }

    /// Calls `f` with the content of a node.
    fn with<R>(&mut self, node: NonNull<RangeNode>, f: impl FnOnce(&mut Guarded) -> R) -> R {
        // SAFETY: by the contract of `add` the node is alive until `forget`.
        let node = unsafe { node.as_ref() };
        node.guarded.with_mut(|inner| {
            // SAFETY: `&mut self` is the only way to the content, and `f` nests no second call.
            f(unsafe { &mut *inner })
        })
    }

    fn span(&mut self, node: NonNull<RangeNode>) -> (usize, usize) {
        self.with(node, |node| (node.start, node.end))
    }

    /// Returns the address of the tree node inside `node`. Only the trees use this pointer.
    fn tree_node(&mut self, node: NonNull<RangeNode>) -> NonNull<Node> {
        // SAFETY: by the contract of `add` the node is alive until `forget`.
        let node = unsafe { node.as_ref() };
        node.tree
            .with_mut(|tree| NonNull::new(tree).expect("the address of a field"))
    }

    pub(in crate::mem) fn stage(&self) -> Stage {
        self.stage
    }

    /// Sets the stage, at the end of a stop or start.
    pub(in crate::mem) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    pub(in crate::mem) fn is_used(&self) -> bool {
        !self.claims.is_empty() || self.live.is_some()
    }

    /// Begins to stop the Mmap: until `set_stage`, no range can be claimed and no Buf made. Fails
    /// while one is in use.
    pub(in crate::mem) fn begin_stop(&mut self) -> Result<()> {
        const OP: &str = "Mmap::stop";
        if self.stage != Stage::Started {
            let text = "it is not started";
            return Err(Error::new(ErrorKind::BadState, OP, text));
        }
        if self.is_used() {
            let (claims, bufs) = (self.claims.len(), self.live_len());
            let text = format!(
                "{claims} pools and arrays and {bufs} Bufs of inventories are on it, or guards, Bytes and jobs of \
                 theirs: drop them first"
            );
            return Err(Error::new(ErrorKind::InUse, OP, text));
        }
        self.stage = Stage::Changing;
        Ok(())
    }

    /// Begins to start a stopped Mmap: the caller registers the memory, then calls `set_stage`.
    pub(in crate::mem) fn begin_start(&mut self) -> Result<()> {
        if self.stage != Stage::Stopped {
            let text = "it is started: stop it first";
            return Err(Error::new(ErrorKind::BadState, "Mmap::start", text));
        }
        self.stage = Stage::Changing;
        Ok(())
    }

    fn live_len(&mut self) -> usize {
        let (mut at, mut len) = (self.live, 0);
        while let Some(node) = at {
            at = self.with(node, |node| node.next);
            len += 1;
        }
        len
    }

    /// Claims a range for a pool or an array. `Err` says what is in the way.
    pub(in crate::mem) fn claim(&mut self, range: Range<usize>) -> Result<(), Busy> {
        if self.stage != Stage::Started {
            return Err(Busy::NotStarted);
        }
        if let Some(other) = self.claims.iter().find(|other| overlap(other, &range)) {
            return Err(Busy::InUse(other.clone()));
        }
        let mut at = self.live;
        while let Some(node) = at {
            let (start, end, next) = self.with(node, |node| (node.start, node.end, node.next));
            if overlap(&(start..end), &range) {
                return Err(Busy::InUse(start..end));
            }
            at = next;
        }
        self.claims.push(range);
        Ok(())
    }

    /// Gives a claimed range back.
    pub(in crate::mem) fn unclaim(&mut self, range: &Range<usize>) {
        self.claims.retain(|other| other != range);
    }

    /// Adds a Buf of an inventory to the list of live ones. `Err` says what is in the way.
    ///
    /// # Safety
    ///
    /// The node is not in the list, and stays where it is until `forget`.
    pub(in crate::mem) unsafe fn add(
        &mut self,
        node: NonNull<RangeNode>,
        range: Range<usize>,
    ) -> Result<(), Busy> {
        if self.stage != Stage::Started {
            return Err(Busy::NotStarted);
        }
        if let Some(claim) = self.claims.iter().find(|claim| overlap(claim, &range)) {
            return Err(Busy::InUse(claim.clone()));
        }
        let next = self.live.replace(node);
        self.with(node, |node| {
            (node.start, node.end) = (range.start, range.end);
            (node.prev, node.next) = (None, next);
        });
        if let Some(next) = next {
            self.with(next, |next| next.prev = Some(node));
        }
        Ok(())
    }

    /// Removes a Buf that has neither handles nor Leases from the list of live ones.
    ///
    /// # Safety
    ///
    /// The node was added (`add`), and not forgotten since.
    pub(in crate::mem) unsafe fn forget(&mut self, node: NonNull<RangeNode>) {
        let (prev, next) = self.with(node, |node| (node.prev.take(), node.next.take()));
        match prev {
            Some(prev) => self.with(prev, |prev| prev.next = next),
            None => self.live = next,
        }
        if let Some(next) = next {
            self.with(next, |next| next.prev = prev);
        }
    }

    /// Takes a read Lease of a live Buf.
    ///
    /// # Safety
    ///
    /// The node was added (`add`), and not forgotten since. `word` and the node belong to the same
    /// element.
    pub(in crate::mem) unsafe fn read(
        &mut self,
        node: NonNull<RangeNode>,
        word: &LeaseWord,
    ) -> Result<(), LeaseRefusal> {
        let (start, end) = self.span(node);
        let first = word.readers() == 0 && start < end;
        if first && self.writers.overlaps(start, end) {
            return Err(LeaseRefusal::Held);
        }
        word.read()?;
        if first {
            let node_of_tree = self.tree_node(node);
            // SAFETY: the Buf had no reader, so the node is not in the tree of readers. It has no
            // writer, since `word.read()` succeeded, so the node is not in the tree of writers. The
            // node stays until `forget`, which requires that no Lease is left.
            unsafe { self.readers.insert(node_of_tree, start, end) };
        }
        Ok(())
    }

    /// Takes the write Lease of a live Buf. On a Buf of no bytes the Lease counts as one of the
    /// readers, which do not exclude each other.
    ///
    /// # Safety
    ///
    /// As for `read`.
    pub(in crate::mem) unsafe fn write(
        &mut self,
        node: NonNull<RangeNode>,
        word: &LeaseWord,
    ) -> Result<(), LeaseRefusal> {
        let (start, end) = self.span(node);
        if start == end {
            return word.read();
        }
        if self.writers.overlaps(start, end) || self.readers.overlaps(start, end) {
            return Err(LeaseRefusal::Held);
        }
        word.write()?;
        let node_of_tree = self.tree_node(node);
        // SAFETY: as in `read`; the word said that there was no Lease.
        unsafe { self.writers.insert(node_of_tree, start, end) };
        Ok(())
    }

    /// Gives a read Lease back.
    ///
    /// # Safety
    ///
    /// As for `read`, and the caller has such a Lease.
    pub(in crate::mem) unsafe fn end_read(
        &mut self,
        node: NonNull<RangeNode>,
        word: &LeaseWord,
    ) -> Left {
        let (start, end) = self.span(node);
        if word.readers() == 1 && start < end {
            let node_of_tree = self.tree_node(node);
            // SAFETY: the first reader put it there, and this is the last one.
            unsafe { self.readers.remove(node_of_tree) };
        }
        word.end_read()
    }

    /// Gives the write Lease back.
    ///
    /// # Safety
    ///
    /// As for `read`, and the caller has that Lease.
    pub(in crate::mem) unsafe fn end_write(
        &mut self,
        node: NonNull<RangeNode>,
        word: &LeaseWord,
    ) -> Left {
        let (start, end) = self.span(node);
        if start == end {
            return word.end_read();
        }
        let node_of_tree = self.tree_node(node);
        // SAFETY: `write` put it there, and its Lease was held since.
        unsafe { self.writers.remove(node_of_tree) };
        word.end_write()
    }
}
