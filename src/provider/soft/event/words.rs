//! The words of a sync event: the counter, and the words by which each side informs the other.
//!
//! | at | word | meaning |
//! |---|---|---|
//! | 0 | counter | of an event whose counter is not in the application's memory |
//! | 128, 256 | wanted | the value that the counter must exceed before this side is woken; all ones: no thread sleeps |
//! | 384, 512 | closed | the number of the import, once this side has stopped or dropped the event |
//!
//! Of two offsets, the first is that of the owner's word, and the second that of the importer's.
//!
//! A process that has imported the event once can write the page as long as that process exists.
//! The owner sends the number of an import only to its importer, so that a former importer cannot
//! close the event.
//!
//! Each word has a cache line of its own, so that a thread that spins on one of them is not
//! disturbed by changes of the others.
#![expect(unsafe_code, reason = "words in memory that processes share")]

use std::ptr::NonNull;

use super::super::fabric::Mapping;
use crate::device::KeepAlive;
use crate::sync::atomic::AtomicU64;

/// The value that means that no thread sleeps: no counter is greater.
pub(super) const NO_SLEEPER: u64 = u64::MAX;

/// The size of the page in bytes.
pub(super) const PAGE: usize = 4096;

/// A side of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The side that made the event.
    Owner,
    /// The side that imported the event.
    Importer,
}

impl Side {
    pub(super) fn peer(self) -> Side {
        match self {
            Side::Owner => Side::Importer,
            Side::Importer => Side::Owner,
        }
    }
}

#[repr(C, align(128))]
struct Line(AtomicU64);

#[repr(C)]
struct Block {
    counter: Line,
    wanted: [Line; 2],
    closed: [Line; 2],
}

const _: () = assert!(size_of::<Block>() <= PAGE && align_of::<Block>() <= PAGE);

/// The memory that holds the `Block`.
enum Memory {
    Own(Box<Block>),
    Shared(Mapping),
}

pub(super) struct Words {
    memory: Memory,
    counter: NonNull<AtomicU64>,
    /// Keeps the memory of a counter that lies outside of the block.
    _elsewhere: Option<KeepAlive>,
}

// SAFETY: the pointer is to an atomic, which is Sync, in memory that this value keeps. The other
// fields are Send and Sync.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Returns words in the memory of this process alone.
    pub(super) fn own() -> Words {
        let line = |value| Line(AtomicU64::new(value));
        let block = Box::new(Block {
            counter: line(0),
            wanted: [line(NO_SLEEPER), line(NO_SLEEPER)],
            closed: [line(0), line(0)],
        });
        let counter = NonNull::from(&block.counter.0);
        Words {
            memory: Memory::Own(block),
            counter,
            _elsewhere: None,
        }
    }

    /// Returns the words of a page that both sides map, of at least [`PAGE`] bytes. This process
    /// must access the page only through these `Words`.
    pub(super) fn shared(page: Mapping) -> Words {
        let counter = page.base().cast();
        Words {
            memory: Memory::Shared(page),
            counter,
            _elsewhere: None,
        }
    }

    /// Returns the same words, with a counter outside of the block.
    ///
    /// # Safety
    ///
    /// Eight aligned bytes are at `at` as long as `elsewhere` exists. This process accesses them
    /// only by atomics, or by the opaque routine.
    pub(super) unsafe fn with_counter(self, at: NonNull<u8>, elsewhere: KeepAlive) -> Words {
        Words {
            counter: at.cast(),
            _elsewhere: Some(elsewhere),
            ..self
        }
    }

    #[inline(always)]
    fn block(&self) -> &Block {
        match &self.memory {
            Memory::Own(block) => block,
            // SAFETY:
            // - A page is mapped as long as `self` exists, is aligned, and has more bytes than a
            //   Block. Any bytes are a valid Block.
            // - This process reaches the page only by atomics (`shared`). Another process that uses
            //   other accesses only tears values of its own.
            Memory::Shared(page) => unsafe { page.base().cast::<Block>().as_ref() },
        }
    }

    #[inline(always)]
    pub(super) fn counter(&self) -> &AtomicU64 {
        // SAFETY: the counter lies in the block, or where the caller of `with_counter` promised
        // that it does, and `self` keeps that memory.
        unsafe { self.counter.as_ref() }
    }

    #[inline(always)]
    pub(super) fn wanted(&self, side: Side) -> &AtomicU64 {
        &self.block().wanted[side as usize].0
    }

    #[inline(always)]
    pub(super) fn closed(&self, side: Side) -> &AtomicU64 {
        &self.block().closed[side as usize].0
    }

    /// Returns true if this process can access the words: a child of fork(2) has no mapping of a
    /// page.
    pub(super) fn are_ours(&self) -> bool {
        match &self.memory {
            Memory::Own(_) => true,
            Memory::Shared(page) => page.is_ours(),
        }
    }
}
