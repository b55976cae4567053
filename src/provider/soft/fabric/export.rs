//! Memory as a service: each client gets a descriptor of the memfd, and the control page.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Weak};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::control::Words;
use super::current;
use super::memory::sent;
use super::protocol::{MEMORY, PAYLOAD, Payload, Refusal, fields_of, payload};
use super::publish::publish;
use super::service::{Client, Grant, Service};
use crate::device::{Access, Audience, ExportRequest, Exported};
use crate::error::{Error, ErrorKind, Result};

/// The description of exported memory in tickets and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct MemoryInfo {
    pub(in super::super) audience: Audience,
    /// The port of the device that exported the memory.
    pub(in super::super) port: u8,
    /// The access flags for the audience.
    pub(super) access: Access,
    /// The length in bytes.
    pub(super) len: u64,
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Fields {
    audience: u8,
    port: u8,
    access: U32,
    len: U64,
}

impl MemoryInfo {
    /// Returns true if a client may write the memory.
    pub(super) fn may_write(&self) -> bool {
        self.audience.may_write(self.access) || self.audience.may_do_atomics(self.access)
    }

    pub(super) fn format(&self) -> Payload {
        payload(&Fields {
            audience: match self.audience {
                Audience::Rdma => 0,
                Audience::Dpu => 1,
            },
            port: self.port,
            access: self.access.bits().into(),
            len: self.len.into(),
        })
    }

    /// Returns `None` if the payload is no valid description.
    pub(in super::super) fn parse(payload: &Payload) -> Option<MemoryInfo> {
        let fields: Fields = fields_of(payload)?;
        let audience = match fields.audience {
            0 => Audience::Rdma,
            1 => Audience::Dpu,
            _ => return None,
        };
        let access = Access::from_bits(fields.access.get())?;
        let len = fields.len.get();
        let right = (1..=isize::MAX as u64).contains(&len)
            && !access.is_empty()
            && audience.part_of(access) == access;
        right.then_some(MemoryInfo {
            audience,
            port: fields.port,
            access,
            len,
        })
    }
}

/// Memory that this process exports.
pub(super) struct Memory {
    pub(super) info: MemoryInfo,
    memfd: Arc<OwnedFd>,
    control: Arc<OwnedFd>,
    /// The words of the control page, for importers of this process.
    pub(super) words: Words,
    /// The address in this process. This value never accesses the memory; an `AtomicPtr` is used
    /// because it is `Send`.
    pub(super) addr: AtomicPtr<u8>,
    pub(super) owner: Weak<dyn Any + Send + Sync>,
}

impl Service for Memory {
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal> {
        if client.payload != [0; PAYLOAD] {
            return Err(Refusal::UNEXPECTED);
        }
        let memfd = sent::reopen(self.memfd.as_fd(), self.info.may_write())?;
        Ok(Grant {
            payload: self.info.format(),
            descriptors: Some([Arc::new(memfd), Arc::clone(&self.control)]),
            keep: None,
            unsent: None,
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Exports memory by a device of this port.
///
/// # Errors
///
/// - `NotSupported` for memory that is in no memfd, or in huge pages that a peer may write.
/// - `NotPermitted` for a part of a memfd, and for a memfd whose seals prevent it.
/// - `Full` if all slots are taken.
/// - `BadState` in a fork of a process that exports.
/// - `OperatingSystem` if a system call fails.
pub(in super::super) fn export(port: u8, offer: &ExportRequest) -> Result<Exported> {
    let region = offer.region();
    let Some(backing) = offer.backing() else {
        let text = "only memory in a memfd can be exported to another process: take it with MmapBuilder::alloc, or from_memfd";
        return Err(Error::new(ErrorKind::NotSupported, None, text));
    };
    let info = MemoryInfo {
        audience: offer.audience(),
        port,
        access: offer.audience().part_of(region.access()),
        len: region.len() as u64,
    };
    let fabric = current::fabric()?;
    let server = fabric.open_server()?;
    sent::check_whole(&backing.memfd, backing.offset, region.len())?;
    // Seals cannot be removed, so this comes late: hardly anything after it fails, unless the table
    // is full.
    let peer_writable = region.access().peer_writable();
    sent::seal(&backing.memfd, peer_writable, info.may_write())?;
    // This opens the memfd once, so that an error shows here and not in the importer.
    sent::reopen(backing.memfd.as_fd(), info.may_write()).map_err(|errno| {
        let what = "a descriptor of the memfd for the importer";
        Error::os(None, what, errno.into())
    })?;
    let memory = Arc::new(Memory {
        info,
        memfd: Arc::clone(&backing.memfd),
        control: Arc::clone(server.control.memfd()),
        words: server.control.words().clone(),
        addr: AtomicPtr::new(region.addr().as_ptr()),
        owner: offer.owner().clone(),
    });
    let this: Weak<Memory> = Arc::downgrade(&memory);
    let published = publish(&MEMORY, info.format(), this as _)?;
    let blob = published.blob().to_vec();
    Ok(Exported::new(blob, Box::new((published, memory))))
}
