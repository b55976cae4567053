//! What a fake adapter is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio_doca::verbs::ffi::*;

/// The port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// RoCE or iWARP: no LID, and each path has a GID.
    Ethernet,
    /// With the port's LID; a path needs no GID.
    InfiniBand(u16),
}

/// An entry of the port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    pub raw: [u8; 16],
    pub kind: ibv_gid_type,
}

/// A fake adapter. Limits are kept to the letter: one more is refused, and nothing is rounded up.
#[derive(Clone, Debug)]
pub struct Description {
    pub name: String,
    /// Where sysfs has it; there is nothing at the default.
    pub ibdev_path: String,
    pub transport: ibv_transport_type,
    pub link: Link,
    /// `None` is a hole: `ENODATA`.
    pub gids: Vec<Option<Gid>>,
    pub atomics: bool,
    /// Of writes and messages. iWARP has none, and what is posted is refused.
    pub immediates: bool,
    pub max_sge: u32,
    /// Pieces of a read; more are refused.
    pub max_sge_rd: u32,
    pub max_qp_wr: u32,
    /// Bytes of the longest send queue, where a request takes 64 and 16 for each of its pieces
    /// (mlx5): more requests than that are fewer pieces.
    pub send_bytes: u32,
    /// Places of a shared receive queue; 0 for an adapter that has none.
    pub max_srq_wr: u32,
    pub max_cqe: c_int,
    /// Completion queues can be made larger.
    pub resizes: bool,
    pub max_msg_sz: u32,
    pub max_inline: u32,
    /// Partition keys.
    pub pkeys: u16,
    pub max_rd_atomic: u8,
    pub mtu: ibv_mtu,
    /// The most bytes of a packet that the network carries: larger ones are lost.
    pub path_bytes: usize,
    /// Completions of a queue pair outlive it, and its reset (Soft-RoCE); on others they go with it
    /// (mlx5).
    pub keeps_completions: bool,
    /// A queue pair that refused a request of its peer's raises an asynchronous event.
    pub raises_access_errors: bool,
    /// Its removal is no event, and reads no error from a descriptor that does not block: it is
    /// closed, which alone `poll` says (kernels before 6.5).
    pub removed_in_silence: bool,
    pub comp_vectors: c_int,
    /// The second port, of which the link, the addresses, the keys, the MTU and the longest message
    /// count.
    pub second: Option<Box<Description>>,
    /// The transport's timeout runs so many times faster than it was set.
    pub hurry: u32,
}

fn next() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Description {
    fn new(name: &str, link: Link, gids: Vec<Option<Gid>>) -> Description {
        Description {
            name: name.to_owned(),
            ibdev_path: format!("/sys/class/infiniband/no-such-device/{name}"),
            transport: IBV_TRANSPORT_IB,
            link,
            gids,
            atomics: true,
            immediates: true,
            max_sge: 16,
            max_sge_rd: 16,
            max_qp_wr: 1 << 14,
            send_bytes: u32::MAX,
            max_srq_wr: 1 << 14,
            max_cqe: 1 << 18,
            resizes: true,
            max_msg_sz: 1 << 20,
            max_inline: 128,
            pkeys: 1,
            max_rd_atomic: 16,
            mtu: IBV_MTU_4096,
            path_bytes: usize::MAX,
            keeps_completions: false,
            raises_access_errors: true,
            removed_in_silence: false,
            comp_vectors: 2,
            second: None,
            hurry: 1,
        }
    }

    /// As an adapter for Ethernet has it: both types of each address, and holes between them.
    pub fn roce(name: &str) -> Description {
        let [high, low] = next().to_be_bytes();
        let local = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, high, low,
        ];
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low];
        let entry = |raw, kind| Some(Gid { raw, kind });
        let gids = vec![
            entry(local, IBV_GID_TYPE_ROCE_V1),
            entry(local, IBV_GID_TYPE_ROCE_V2),
            None,
            entry(ipv4, IBV_GID_TYPE_ROCE_V1),
            None,
            entry(ipv4, IBV_GID_TYPE_ROCE_V2),
            None,
            None,
        ];
        Description::new(name, Link::Ethernet, gids)
    }

    /// As Soft-RoCE has it: no inline data to speak of, completions that outlive their queue pair,
    /// and no events.
    pub fn soft_roce(name: &str) -> Description {
        Description {
            max_sge: 32,
            max_inline: 512,
            mtu: IBV_MTU_1024,
            keeps_completions: true,
            raises_access_errors: false,
            ..Description::roce(name)
        }
    }

    /// A port with a LID, and an address for those who want one.
    pub fn infiniband(name: &str) -> Description {
        let number = next();
        let [high, low] = number.to_be_bytes();
        let raw = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, high, low];
        let gids = vec![
            Some(Gid {
                raw,
                kind: IBV_GID_TYPE_IB,
            }),
            None,
        ];
        Description::new(name, Link::InfiniBand(number), gids)
    }

    /// No atomics, no immediates, and no partitions; reads of one piece.
    pub fn iwarp(name: &str) -> Description {
        Description {
            transport: IBV_TRANSPORT_IWARP,
            atomics: false,
            immediates: false,
            max_sge_rd: 1,
            pkeys: 0,
            ..Description::roce(name)
        }
    }

    /// The same with a second port, which has what the adapter `second` would have.
    pub fn with_second(self, second: Description) -> Description {
        Description {
            second: Some(Box::new(second)),
            ..self
        }
    }

    /// What a port is, if there is one of this number.
    pub fn port(&self, number: u8) -> Option<&Description> {
        match number {
            1 => Some(self),
            2 => self.second.as_deref(),
            _ => None,
        }
    }

    pub fn lid(&self) -> u16 {
        match self.link {
            Link::Ethernet => 0,
            Link::InfiniBand(lid) => lid,
        }
    }

    pub fn is_iwarp(&self) -> bool {
        self.transport == IBV_TRANSPORT_IWARP
    }

    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied().flatten()
    }
}
