//! Imported memory, and the words that say whether it is still exported.
#![expect(unsafe_code, reason = "Segments carry it as an address")]

use std::sync::Arc;

use super::super::control::Word;
use super::super::memory::Mapping;
use super::super::peer::Peer;
use super::super::protocol::{Contact, place};
use crate::device::Origin;
use crate::error::JobError;

/// What keeps imported memory, and what the key of its Segments points to.
#[repr(align(8))]
pub(in super::super::super) struct Import {
    word: Word,
    generation: u32,
    peer: Arc<Peer>,
    /// Of the exporter's fabric.
    instance: [u64; 2],
    /// `None` for memory of this process.
    _memory: Option<Mapping>,
}

impl Import {
    /// `None` for a slot that no control page has.
    pub(in super::super) fn new(
        peer: Arc<Peer>,
        contact: &Contact,
        memory: Option<Mapping>,
    ) -> Option<Arc<Import>> {
        Some(Arc::new(Import {
            word: peer.words().word(contact.slot)?,
            generation: contact.generation,
            peer,
            instance: place::words_of(&contact.instance),
            _memory: memory,
        }))
    }

    /// The key of Segments of this memory: a multiple of 8, and not 0.
    pub(in super::super) fn key(self: &Arc<Import>) -> u64 {
        Arc::as_ptr(self).expose_provenance() as u64
    }

    /// What a key points to.
    ///
    /// # Safety
    ///
    /// The key is one of `Imported::key` of this provider, and its `Imported::origin` lives as long as the reference.
    #[inline]
    pub(in super::super::super) unsafe fn from_key<'a>(key: u64) -> &'a Import {
        let import: *const Import = std::ptr::with_exposed_provenance(key as usize);
        // SAFETY: as the caller promises it points into an Arc that lives; `key` has exposed its address.
        unsafe { &*import }
    }

    /// Whether the process exported it whose fabric has this instance, in its two halves.
    #[inline]
    pub(in super::super::super) fn is_of(&self, instance: &[u64; 2]) -> bool {
        self.instance == *instance
    }

    /// Whether the memory is still exported: three loads.
    #[inline]
    pub(in super::super::super) fn check(&self) -> Result<(), JobError> {
        // First, so that an exporter that was killed is called so: its page may say anything.
        if self.peer.is_gone() {
            return Err(JobError::exporter_gone());
        }
        if self.word.get() != self.generation {
            return Err(JobError::export_revoked());
        }
        Ok(())
    }
}

impl Origin for Import {
    fn check(&self) -> Result<(), JobError> {
        Import::check(self)
    }
}
