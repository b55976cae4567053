//! What endpoints say to each other to connect: in a blob, in a guest's request, and in a host's reply.

use sha2::{Digest, Sha256};

use super::super::fabric::{HELLO, Hello, Id};
use super::doorbell::RINGS;
use super::messages::MAX_RECEIVES;
use crate::device::{Access, Mtu};

/// Who a peer is, by its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) instance: Id,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// A hash of the blob's key.
    pub(super) proof: Id,
    /// What it lets its peer do.
    pub(super) permissions: Access,
}

/// What an endpoint says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndpointInfo {
    /// The number of its queue.
    pub(super) queue: u64,
    /// Its receives: a power of two.
    pub(super) receives: u32,
    /// What it lets its peer do.
    pub(super) permissions: Access,
    pub(super) mtu: Mtu,
}

/// What a guest says: its info, who it is by its own blob, and which doorbell page there is
/// already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectRequest {
    pub(super) info: EndpointInfo,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) proof: Id,
    /// The latest doorbell page between the two queues; 0 if there is none.
    pub(super) doorbell: u64,
}

/// What the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectReply {
    /// The doorbell page, which is a new one if it is not the one of the request.
    pub(super) doorbell: u64,
    /// The message ring's number in it.
    pub(super) index: u32,
}

/// What shows that somebody knows the key of a blob, and does not tell it.
pub(super) fn proof(key: &Id) -> Id {
    let hash = Sha256::new()
        .chain_update(b"tokio-doca endpoint")
        .chain_update(key)
        .finalize();
    let mut proof = Id::default();
    let len = proof.len();
    proof.copy_from_slice(&hash[..len]);
    proof
}

const RDMA: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// Numbers of eight bytes, one after the other.
struct Words<'a>(&'a mut Hello, usize);

impl Words<'_> {
    fn put(&mut self, word: u64) -> &mut Self {
        self.0[self.1..self.1 + 8].copy_from_slice(&word.to_le_bytes());
        self.1 += 8;
        self
    }
}

fn word(hello: &Hello, number: usize) -> u64 {
    let bytes = hello[8 * number..8 * number + 8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

impl EndpointInfo {
    fn words(&self) -> [u64; 2] {
        let rest = u64::from(self.receives) << 32
            | u64::from(self.permissions.bits()) << 8
            | self.mtu as u64;
        [self.queue, rest]
    }

    pub(super) fn format(&self) -> Hello {
        let mut hello = [0; HELLO];
        let [queue, rest] = self.words();
        Words(&mut hello, 0).put(queue).put(rest);
        hello
    }

    /// `None` for what no endpoint says.
    pub(super) fn parse(hello: &Hello) -> Option<EndpointInfo> {
        let (queue, rest) = (word(hello, 0), word(hello, 1));
        let receives = (rest >> 32) as u32;
        let permissions = Access::from_bits((rest as u32) >> 8)?;
        let mtu = *Mtu::ALL.get((rest & 0xff) as usize)?;
        let right = queue != 0
            && receives.is_power_of_two()
            && receives <= MAX_RECEIVES
            && RDMA.contains(permissions);
        right.then_some(EndpointInfo {
            queue,
            receives,
            permissions,
            mtu,
        })
    }
}

impl ConnectRequest {
    pub(super) fn format(&self) -> Hello {
        let mut hello = [0; HELLO];
        let [queue, rest] = self.info.words();
        let [first, second] =
            [0, 8].map(|at| u64::from_le_bytes(self.proof[at..at + 8].try_into().expect("eight")));
        Words(&mut hello, 0)
            .put(queue)
            .put(rest)
            .put(u64::from(self.slot) << 32 | u64::from(self.generation))
            .put(first)
            .put(second)
            .put(self.doorbell);
        hello
    }

    /// `None` for what no endpoint asks.
    pub(super) fn parse(hello: &Hello) -> Option<ConnectRequest> {
        let name = word(hello, 2);
        let mut proof = Id::default();
        proof.copy_from_slice(&hello[24..40]);
        Some(ConnectRequest {
            info: EndpointInfo::parse(hello)?,
            slot: (name >> 32) as u32,
            generation: name as u32,
            proof,
            doorbell: word(hello, 5),
        })
    }

    /// Who asks.
    pub(super) fn identity(&self, instance: Id) -> Identity {
        Identity {
            instance,
            slot: self.slot,
            generation: self.generation,
            proof: self.proof,
            permissions: self.info.permissions,
        }
    }
}

impl ConnectReply {
    pub(super) fn format(&self) -> Hello {
        let mut hello = [0; HELLO];
        Words(&mut hello, 0)
            .put(self.doorbell)
            .put(self.index.into());
        hello
    }

    /// `None` for what no host answers.
    pub(super) fn parse(hello: &Hello) -> Option<ConnectReply> {
        let (doorbell, index) = (word(hello, 0), word(hello, 1));
        (doorbell != 0 && index < u64::from(RINGS)).then_some(ConnectReply {
            doorbell,
            index: index as u32,
        })
    }
}
