//! The words of a sync event: the counter, and what each side says to the other.
//!
//! | at | word | meaning |
//! |---|---|---|
//! | 0 | counter | of an event in memory of the device's |
//! | 128, 256 | wanted | what the counter must exceed for this side to be rung for; all ones: nobody sleeps |
//! | 384, 512 | closed | the number of the import: this side has stopped or dropped it |
//!
//! The party that has imported the event once can write the page for as long as it exists. The
//! number of an import is told to its importer alone, so that an importer before cannot close the
//! event.
//!
//! Each has a cache line of its own, so that who spins on one is not disturbed by the others.
#![expect(unsafe_code, reason = "words in memory that processes share")]

use std::ptr::NonNull;

use super::super::fabric::Mapping;
use crate::device::KeepAlive;
use crate::sync::atomic::AtomicU64;

/// Nobody sleeps: no value is greater.
pub(super) const NOBODY: u64 = u64::MAX;

/// Bytes of the page.
pub(super) const PAGE: usize = 4096;

/// Which side of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Who made it.
    Owner,
    /// Who imported it.
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

/// What keeps the block.
enum Memory {
    Own(Box<Block>),
    Shared(Mapping),
}

pub(super) struct Words {
    memory: Memory,
    counter: NonNull<AtomicU64>,
    /// Keeps a counter that lies somewhere else.
    _elsewhere: Option<KeepAlive>,
}

// SAFETY: the pointer is to an atomic, which is Sync, in memory that this value keeps, and so is
// the rest.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Words of this process alone.
    pub(super) fn own() -> Words {
        let line = |value| Line(AtomicU64::new(value));
        let block = Box::new(Block {
            counter: line(0),
            wanted: [line(NOBODY), line(NOBODY)],
            closed: [line(0), line(0)],
        });
        let counter = NonNull::from(&block.counter.0);
        Words {
            memory: Memory::Own(block),
            counter,
            _elsewhere: None,
        }
    }

    /// Words in a page that both sides map, of at least [`PAGE`] bytes. This process reaches it by
    /// Words alone.
    pub(super) fn shared(page: Mapping) -> Words {
        let counter = page.base().cast();
        Words {
            memory: Memory::Shared(page),
            counter,
            _elsewhere: None,
        }
    }

    /// The same, with the counter somewhere else.
    ///
    /// # Safety
    ///
    /// Eight aligned bytes are there as long as `elsewhere` is, and nobody of this process reaches
    /// them but by atomics, or by the opaque routine.
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
            // - A page is mapped as long as `self` is there, aligned, and has more bytes than a
            //   Block; any bytes are one.
            // - This process reaches it by atomics only (`shared`); another one that does not tears
            //   its own.
            Memory::Shared(page) => unsafe { page.base().cast::<Block>().as_ref() },
        }
    }

    #[inline(always)]
    pub(super) fn counter(&self) -> &AtomicU64 {
        // SAFETY: it lies in the block, or where `with_counter` was promised it does, and is kept
        // by `self`.
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

    /// Returns true if this process has them: a child of fork(2) has no mapping.
    pub(super) fn are_ours(&self) -> bool {
        match &self.memory {
            Memory::Own(_) => true,
            Memory::Shared(page) => page.is_ours(),
        }
    }
}
