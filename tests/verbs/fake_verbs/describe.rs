//! Descriptions of fake adapters.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio_doca::verbs::ffi::*;

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// RoCE or iWARP: the port has no LID, and each path needs a GID.
    Ethernet,
    /// The port has this LID; a path needs no GID.
    InfiniBand(u16),
}

/// An entry of the port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    pub raw: [u8; 16],
    pub kind: ibv_gid_type,
}

/// A fake adapter. Limits are exact: a request that exceeds a limit is refused, and no limit is
/// rounded up.
#[derive(Clone, Debug)]
pub struct Description {
    pub name: String,
    /// The device's path in sysfs. The default path does not exist.
    pub ibdev_path: String,
    pub transport: ibv_transport_type,
    pub link: Link,
    /// `None` is an empty entry, for which a query fails with `ENODATA`.
    pub gids: Vec<Option<Gid>>,
    pub atomics: bool,
    /// Support for immediates of writes and messages. iWARP has none, and refuses such requests.
    pub immediates: bool,
    pub max_sge: u32,
    /// Maximum number of pieces of a read; a read with more is refused.
    pub max_sge_rd: u32,
    pub max_qp_wr: u32,
    /// Maximum size of a send queue in bytes. An entry takes 64 and 16 for each of its pieces (as
    /// on mlx5), so that more entries mean fewer pieces.
    pub send_bytes: u32,
    /// Entries of a shared receive queue; 0 for an adapter without such queues.
    pub max_srq_wr: u32,
    pub max_cqe: c_int,
    /// True if completion queues can be resized.
    pub resizes: bool,
    pub max_msg_sz: u32,
    pub max_inline: u32,
    /// Number of partition keys.
    pub pkeys: u16,
    pub max_rd_atomic: u8,
    pub mtu: ibv_mtu,
    /// Maximum number of bytes in a packet that the network carries; larger packets are lost.
    pub path_bytes: usize,
    /// True if completions outlive the destruction and the reset of their queue pair (Soft-RoCE);
    /// on other adapters they are dropped (mlx5).
    pub keeps_completions: bool,
    /// True if a queue pair that refuses a request of its peer raises an asynchronous event.
    pub raises_access_errors: bool,
    /// True if a removal raises no event. The event descriptor stays open: `poll` returns `POLLERR`
    /// for it, but a non-blocking read does not report the removal (kernels before 6.5).
    pub removed_in_silence: bool,
    pub comp_vectors: c_int,
    /// The second port. Only its link, GID table, partition keys, MTU and maximum message size are
    /// used.
    pub second: Option<Box<Description>>,
    /// Divisor of the transport's timeouts, to speed up tests.
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

    /// Describes an Ethernet adapter with RoCE: each address has entries of both types, and some
    /// entries are empty.
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

    /// Describes Soft-RoCE: completions outlive their queue pair, and refused requests raise no
    /// events.
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

    /// Describes a port with a LID, which also has a GID.
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

    /// Describes iWARP: no atomics, no immediates and no partitions; reads of one piece.
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

    /// Adds a second port with the properties of the adapter `second`.
    pub fn with_second(self, second: Description) -> Description {
        Description {
            second: Some(Box::new(second)),
            ..self
        }
    }

    /// Returns the description of the port with this number, if it exists.
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
