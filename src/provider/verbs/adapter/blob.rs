//! The blobs of adapters: exports of memory and of endpoints, which peers exchange.
//!
//! Unlike the blobs of a software device, these carry no secret. The transport itself uses an rkey,
//! and a process that has an rkey and a connection reaches the memory.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::device::{Access, Audience, Mtu};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::envelope::{self, Envelope};
use crate::sync::EachProcess;

/// The origin of an export: a process, and a number that the process gave. Both are 0 for a peer
/// that does not use this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct BlobOrigin {
    pub(in super::super) process: u64,
    pub(in super::super) number: u64,
}

impl BlobOrigin {
    /// Returns the origin of a new export of this process.
    pub(in super::super) fn new() -> BlobOrigin {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        BlobOrigin {
            process: process(),
            number: NEXT.fetch_add(1, Relaxed),
        }
    }

    pub(in super::super) const FOREIGN: BlobOrigin = BlobOrigin {
        process: 0,
        number: 0,
    };

    pub(in super::super) fn is_own(&self) -> bool {
        self.process == process()
    }

    pub(in super::super) fn is_foreign(&self) -> bool {
        *self == BlobOrigin::FOREIGN
    }

    pub(super) fn format(self) -> [U64; 2] {
        [self.process.into(), self.number.into()]
    }

    pub(super) fn parse(fields: [U64; 2]) -> BlobOrigin {
        let [process, number] = fields.map(U64::get);
        BlobOrigin { process, number }
    }
}

/// Returns a number that no other process is likely to have. A child of `fork` gets another number.
fn process() -> u64 {
    static RANDOM: EachProcess<u64> = EachProcess::new(|| {
        let random = getrandom::u64();
        random.unwrap_or_else(|_| RandomState::new().build_hasher().finish()) | 1
    });
    *RANDOM.get()
}

/// Returns a random number of 24 bits, as the sequence number (PSN) of the first packet.
pub(in super::super) fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}

/// The content of the blob of exported memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryBlob {
    pub(in super::super) origin: BlobOrigin,
    pub(in super::super) addr: u64,
    pub(in super::super) len: u64,
    pub(in super::super) rkey: u32,
    pub(super) access: Access,
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MemoryFields {
    origin: [U64; 2],
    addr: U64,
    len: U64,
    rkey: U32,
    access: U32,
}

const MEMORY: Envelope = Envelope {
    kind: envelope::ADAPTER_MEMORY,
    version: 1,
    name_max: 0,
};

impl MemoryBlob {
    pub(in super::super) fn format(&self) -> Vec<u8> {
        let fields = MemoryFields {
            origin: self.origin.format(),
            addr: self.addr.into(),
            len: self.len.into(),
            rkey: self.rkey.into(),
            access: self.access.bits().into(),
        };
        MEMORY.format(&fields, &[])
    }

    pub(in super::super) fn parse(bytes: &[u8]) -> Result<MemoryBlob> {
        MEMORY.open(bytes, |fields: MemoryFields, _| {
            let blob = MemoryBlob {
                origin: BlobOrigin::parse(fields.origin),
                addr: fields.addr.get(),
                len: fields.len.get(),
                rkey: fields.rkey.get(),
                access: Access::from_bits(fields.access.get())?,
            };
            let right = blob.addr > 0
                && blob.len > 0
                && blob.addr.checked_add(blob.len).is_some()
                && !blob.access.is_empty()
                && Audience::Rdma.part_of(blob.access) == blob.access;
            right.then_some(blob)
        })
    }
}

/// The address of a queue pair, which peers exchange before they connect (LID, QPN, PSN, GID, MTU).
///
/// [`Rdma::export`](crate::Rdma::export) and [`Rdma::connect`](crate::Rdma::connect) carry the
/// address in a blob. A program without this library has another format for the same data. This
/// type is for exchanging addresses with such a program, as `examples/rc_pingpong.rs` does.
///
/// ```no_run
/// use tokio_doca::{Device, Rdma, WorkQ, verbs::Address};
///
/// # fn main() -> tokio_doca::Result<()> {
/// let device = Device::open("mlx5_0")?;
/// let rdma = Rdma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let Address { lid, qpn, psn, .. } = Address::of(&rdma.export()?)?;
/// println!("local address: LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The LID of an InfiniBand port; 0 for an Ethernet port.
    pub lid: u16,
    /// The number of the queue pair: 24 bits.
    pub qpn: u32,
    /// The number of the first packet: 24 bits.
    pub psn: u32,
    /// The GID of the port; zeros if the port has none.
    pub gid: [u8; 16],
    /// The maximum payload of a packet that the queue pair accepts; `None` if it is not known.
    pub mtu: Option<Mtu>,
}

/// The content of an endpoint's blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct EndpointBlob {
    pub(in super::super) origin: BlobOrigin,
    pub(in super::super) address: Address,
    /// The access that the endpoint grants its peer. Both sides enforce it.
    pub(in super::super) permissions: Access,
    /// The number of concurrent reads and atomics that the endpoint answers.
    pub(in super::super) answers: u8,
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct EndpointFields {
    origin: [U64; 2],
    gid: [u8; 16],
    qpn: U32,
    psn: U32,
    lid: U16,
    /// The index of the MTU in `Mtu::ALL`, plus one; 0 if the peer does not send an MTU.
    mtu: u8,
    answers: u8,
    permissions: U32,
}

const ENDPOINT: Envelope = Envelope {
    kind: envelope::ADAPTER_ENDPOINT,
    version: 1,
    name_max: 0,
};

impl EndpointBlob {
    pub(in super::super) fn format(&self) -> Vec<u8> {
        let Address {
            lid,
            qpn,
            psn,
            gid,
            mtu,
        } = self.address;
        let fields = EndpointFields {
            origin: self.origin.format(),
            gid,
            qpn: qpn.into(),
            psn: psn.into(),
            lid: lid.into(),
            mtu: mtu.map_or(0, |mtu| mtu as u8 + 1),
            answers: self.answers,
            permissions: self.permissions.bits().into(),
        };
        ENDPOINT.format(&fields, &[])
    }

    pub(in super::super) fn parse(bytes: &[u8]) -> Result<EndpointBlob> {
        ENDPOINT.open(bytes, |fields: EndpointFields, _| {
            let mtu = match fields.mtu {
                0 => None,
                number => Some(*Mtu::ALL.get(usize::from(number) - 1)?),
            };
            let blob = EndpointBlob {
                origin: BlobOrigin::parse(fields.origin),
                address: Address {
                    lid: fields.lid.get(),
                    qpn: fields.qpn.get(),
                    psn: fields.psn.get(),
                    gid: fields.gid,
                    mtu,
                },
                answers: fields.answers,
                permissions: Access::from_bits(fields.permissions.get())?,
            };
            // A peer that answers no reads cannot be probed, and a read from it would wait for
            // ever.
            let right = blob.answers > 0
                && blob.address.is_plausible()
                && Audience::Rdma.part_of(blob.permissions) == blob.permissions;
            right.then_some(blob)
        })
    }
}

impl EndpointBlob {
    /// Returns an error if the blob comes from a program without this library. An untrusted peer
    /// might pretend to be such a program: it would not be probed while the connection is idle, and
    /// its end would not be noticed.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the origin of the blob is [`BlobOrigin::FOREIGN`].
    pub(in super::super) fn is_of_this_library(&self) -> Result<()> {
        if !self.origin.is_foreign() {
            return Ok(());
        }
        let text = "the blob is of a program without this library: connect to it with Rdma::connect, which trusts it";
        Err(Error::new(ErrorKind::InvalidValue, None, text))
    }
}

impl Address {
    /// Reads the address from a blob that an Rdma on an adapter has exported.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `blob` is not such a blob.
    pub fn of(blob: &[u8]) -> Result<Address> {
        EndpointBlob::parse(blob)
            .map(|blob| blob.address)
            .map_err(|error| error.with_call("Address::of"))
    }

    /// Returns a blob for [`Rdma::connect`](crate::Rdma::connect), for a peer that does not use
    /// this library. The blob has all permissions, and the peer's adapter refuses operations that
    /// the peer does not permit. The connection is not probed while it is idle, so that only the
    /// next operation notices the end of the peer.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `qpn` or `psn` has more than 24 bits, or if the address has neither a LID
    /// nor a GID.
    pub fn to_blob(&self) -> Result<Vec<u8>> {
        if !self.is_plausible() {
            let text = format!("{self:?}: numbers have 24 bits, and a LID or a GID is needed");
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "Address::to_blob",
                text,
            ));
        }
        let all = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
        let blob = EndpointBlob {
            origin: BlobOrigin::FOREIGN,
            address: *self,
            permissions: all,
            answers: 1,
        };
        Ok(blob.format())
    }

    fn is_plausible(&self) -> bool {
        let small = |number: u32| number < 1 << 24;
        let somewhere = self.lid != 0 || self.gid != [0; 16];
        small(self.qpn) && small(self.psn) && somewhere
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::provider::envelope::seal;

    fn origin() -> impl Strategy<Value = BlobOrigin> {
        (any::<u64>(), any::<u64>()).prop_map(|(process, number)| BlobOrigin { process, number })
    }

    fn access() -> impl Strategy<Value = Access> {
        (0..8_u32).prop_map(|bits| {
            let flags = [Access::RDMA_READ, Access::RDMA_WRITE, Access::RDMA_ATOMIC];
            let chosen = (0..3).filter(|bit| bits >> bit & 1 == 1);
            chosen.map(|bit: usize| flags[bit]).collect()
        })
    }

    fn endpoint() -> impl Strategy<Value = EndpointBlob> {
        let numbers = (0..1_u32 << 24, 0..1_u32 << 24, 1..u16::MAX);
        let rest = (any::<[u8; 16]>(), 0..6_usize, 1..=u8::MAX);
        (origin(), numbers, rest, access()).prop_map(
            |(origin, (qpn, psn, lid), (gid, mtu, answers), permissions)| EndpointBlob {
                origin,
                address: Address {
                    lid,
                    qpn,
                    psn,
                    gid,
                    mtu: mtu.checked_sub(1).map(|mtu| Mtu::ALL[mtu]),
                },
                permissions,
                answers,
            },
        )
    }

    fn memory() -> impl Strategy<Value = MemoryBlob> {
        let access = access().prop_filter("some", |access| !access.is_empty());
        (
            origin(),
            1..1_u64 << 40,
            1..1_u64 << 40,
            any::<u32>(),
            access,
        )
            .prop_map(|(origin, addr, len, rkey, access)| MemoryBlob {
                origin,
                addr,
                len,
                rkey,
                access,
            })
    }

    /// Checks that bytes which were cut off, changed or made longer do not parse, and that bytes
    /// which were changed and sealed again either do not parse, or parse and format to the same
    /// bytes.
    fn holds(bytes: &[u8], at: usize, to: u8, parses_as_itself: impl Fn(&[u8]) -> Option<bool>) {
        assert!(bytes.len() <= 1024);
        for len in 0..bytes.len() {
            assert_eq!(parses_as_itself(&bytes[..len]), None);
        }
        assert_eq!(parses_as_itself(&[bytes, &[0]].concat()), None);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parses_as_itself(&changed), None, "bit {bit}");
        }
        let mut forged = bytes.to_vec();
        forged[12 + at % (bytes.len() - 20)] = to;
        seal(&mut forged);
        assert_ne!(parses_as_itself(&forged), Some(false));
    }

    proptest! {
        #[test]
        fn exports_of_memory_are_read_as_they_were_written(blob in memory(), at: usize, to: u8) {
            let bytes = blob.format();
            prop_assert_eq!(&MemoryBlob::parse(&bytes).unwrap(), &blob);
            holds(&bytes, at, to, |bytes| MemoryBlob::parse(bytes).ok().map(|it| it.format() == bytes));
        }

        #[test]
        fn exports_of_endpoints_are_read_as_they_were_written(blob in endpoint(), at: usize, to: u8) {
            let bytes = blob.format();
            prop_assert_eq!(EndpointBlob::parse(&bytes).unwrap(), blob);
            prop_assert_eq!(Address::of(&bytes).unwrap(), blob.address);
            holds(&bytes, at, to, |bytes| EndpointBlob::parse(bytes).ok().map(|it| it.format() == bytes));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
            prop_assert!(MemoryBlob::parse(&bytes).is_err() && EndpointBlob::parse(&bytes).is_err());
        }
    }

    #[test]
    fn an_address_of_another_program_becomes_a_blob() {
        let address = Address {
            lid: 0,
            qpn: 0x11,
            psn: 0xabcdef,
            gid: [7; 16],
            mtu: None,
        };
        let blob = EndpointBlob::parse(&address.to_blob().unwrap()).unwrap();
        assert!(blob.origin.is_foreign() && !blob.origin.is_own());
        assert_eq!(blob.address, address);
        let deaf = EndpointBlob { answers: 0, ..blob };
        assert!(EndpointBlob::parse(&deaf.format()).is_err());
        let wrong = [
            Address {
                qpn: 1 << 24,
                ..address
            },
            Address {
                psn: 1 << 24,
                ..address
            },
            Address {
                gid: [0; 16],
                ..address
            },
        ];
        for address in wrong {
            let error = address.to_blob().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
        }
    }
}
