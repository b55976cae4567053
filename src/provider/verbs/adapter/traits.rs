//! The properties that an adapter reports, and the capabilities that follow from them.
#![expect(unsafe_code, reason = "asks libibverbs")]

use std::io;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::super::ffi::*;
use crate::device::{Caps, Mtu, RdmaCaps};
use crate::error::{Error, ErrorKind, Result};

/// The maximum number of Segments on either side of a job.
pub(in super::super) const LIST: usize = 16;
/// The maximum number of requests of a copy. The boundaries of both lists cut the bytes into
/// pieces, and each request moves one of them.
pub(in super::super) const REQUESTS: usize = 2 * LIST - 1;
/// The number of entries in a send queue for probes, besides those for Jobs.
pub(in super::super) const PROBES: u32 = 8;
/// The maximum depth of a WorkQ, and length of a queue. An adapter may support millions, but a test
/// of such a depth would take minutes.
const MOST: u32 = 1 << 14;

/// The maximum length in bytes of a message in a shared receive queue. Each receive has this much
/// memory.
const POOLED: usize = 256 << 10;

/// The properties of an open device.
#[derive(Clone, Debug)]
pub(in super::super) struct Traits {
    pub(in super::super) iwarp: bool,
    /// True if the transport is InfiniBand, or InfiniBand over Ethernet (RoCE).
    ib: bool,
    /// The number of the adapter's ports.
    pub(in super::super) ports: u8,
    /// The number of the port that is used: the named one, or else the first that is up, or else
    /// the first.
    pub(in super::super) port: u8,
    pub(in super::super) ethernet: bool,
    pub(super) up: bool,
    pub(super) gids: u32,
    pkeys: u32,
    max_message: u64,
    max_sge: u32,
    /// The limit for reads, which is at most `max_sge`.
    max_sge_rd: u32,
    max_qp_wr: u32,
    comp_vectors: u32,
    pub(in super::super) max_cqe: u32,
    /// The longest shared receive queue; 0 if the device has none.
    max_srq_wr: u32,
    atomics: bool,
    /// The number of concurrent reads and atomics that a queue pair answers, and that it requests.
    pub(in super::super) rd_atomics: [u8; 2],
}

/// Properties that may change while a device is open: a subnet manager assigns the LID, and an
/// administrator sets the MTU.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Port {
    pub(in super::super) lid: u16,
    /// True if requests need a global header (GRH), also on InfiniBand.
    pub(in super::super) needs_grh: bool,
    /// The largest payload of a packet that the port passes now.
    pub(in super::super) mtu: Mtu,
}

const GRH_REQUIRED: u8 = 1;

impl Port {
    /// Returns the properties of a port.
    ///
    /// # Safety
    ///
    /// `context` belongs to this table, and is open.
    pub(super) unsafe fn ask(table: &Table, context: *mut ibv_context, number: u8) -> Result<Port> {
        // SAFETY: as the caller promises.
        let port = unsafe { query_port(table, context, number) }?;
        Ok(Port {
            lid: port.lid,
            needs_grh: port.flags & GRH_REQUIRED != 0,
            mtu: Mtu::ALL[port.active_mtu.clamp(1, 5) as usize - 1],
        })
    }
}

/// # Safety
///
/// As for `Port::ask`.
unsafe fn query_port(
    table: &Table,
    context: *mut ibv_context,
    number: u8,
) -> Result<ibv_port_attr> {
    let mut port = ibv_port_attr::default();
    // SAFETY: as the caller promises; the attributes are this function's.
    check("ibv_query_port", unsafe {
        (table.query_port)(context, number, &mut port)
    })?;
    Ok(port)
}

/// Splits the name of a device into that of its adapter and the port, if the name has one
/// (`mlx5_0/2`).
pub(in super::super) fn adapter_and_port(name: &str) -> (&str, Option<&str>) {
    let parts = name.split_once('/');
    parts.map_or((name, None), |(adapter, port)| (adapter, Some(port)))
}

/// Chooses one of `count` ports: the named one, or else the first that is up, or else the first.
/// Returns its number and attributes, and true if the port is up.
fn choose_port(
    count: u8,
    named: Option<&str>,
    query: impl Fn(u8) -> Result<ibv_port_attr>,
) -> Result<(u8, ibv_port_attr, bool)> {
    let mut chosen = None;
    let is_named = |number: &u8| named.is_none_or(|name| name == number.to_string());
    for number in (1..=count).filter(is_named) {
        let port = query(number)?;
        let up = port.state == IBV_PORT_ACTIVE;
        if chosen.is_none() || up {
            chosen = Some((number, port, up));
        }
        if up {
            break;
        }
    }
    chosen.ok_or_else(|| {
        let name = named.unwrap_or_default();
        let text = format!(
            "it has no port \"{name}\": ports are numbered from 1, and the adapter has {count}"
        );
        Error::new(ErrorKind::NotFound, None, text)
    })
}

impl Traits {
    /// Returns the properties of a device that was opened by this name.
    ///
    /// # Safety
    ///
    /// `device` and `context` belong to this table, and are alive.
    pub(super) unsafe fn ask(
        table: &Table,
        device: *mut ibv_device,
        context: *mut ibv_context,
        name: &str,
    ) -> Result<Traits> {
        // SAFETY: as the caller promises.
        let transport = unsafe { (*device).transport_type };
        let mut attr = ibv_device_attr::default();
        // SAFETY: as the caller promises; the attributes are this function's.
        check("ibv_query_device", unsafe {
            (table.query_device)(context, &mut attr)
        })?;
        let ports = attr.phys_port_cnt.max(1);
        // SAFETY: as above.
        let query = |number| unsafe { query_port(table, context, number) };
        let (port, of_port, up) = choose_port(ports, adapter_and_port(name).1, query)?;
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let max_sge = count(attr.max_sge).clamp(1, LIST as u32);
        // SAFETY: as above. The functions are in the context since it was opened.
        let post_srq_recv = unsafe { (*context).ops.post_srq_recv };
        // SAFETY: as above. The number is in the context as well.
        let comp_vectors = unsafe { (*context).num_comp_vectors };
        let has_srqs = attr.max_srq > 0 && attr.max_srq_sge > 0 && post_srq_recv.is_some();
        let has_srqs = has_srqs && table.create_srq.is_some() && table.destroy_srq.is_some();
        let rd = |number: i32| number.clamp(0, 16) as u8;
        Ok(Traits {
            iwarp: transport == IBV_TRANSPORT_IWARP,
            ib: transport == IBV_TRANSPORT_IB,
            ports,
            port,
            ethernet: of_port.link_layer == IBV_LINK_LAYER_ETHERNET,
            up,
            // A route has 8 bits for the index (`ibv_global_route`).
            gids: count(of_port.gid_tbl_len).clamp(1, 256),
            pkeys: u32::from(of_port.pkey_tbl_len).max(1),
            max_message: match of_port.max_msg_sz {
                0 => 1 << 31,
                bytes => u64::from(bytes).min(1 << 31),
            },
            max_sge,
            // Not every driver reports this limit.
            max_sge_rd: match count(attr.max_sge_rd) {
                0 => max_sge,
                of_reads => of_reads.min(max_sge),
            },
            max_qp_wr: count(attr.max_qp_wr),
            comp_vectors: count(comp_vectors).max(1),
            max_cqe: count(attr.max_cqe),
            max_srq_wr: if has_srqs { count(attr.max_srq_wr) } else { 0 },
            atomics: attr.atomic_cap != IBV_ATOMIC_NONE,
            rd_atomics: [rd(attr.max_qp_rd_atom), rd(attr.max_qp_init_rd_atom)],
        })
    }

    /// Returns the maximum length of a request's local list.
    pub(in super::super) fn sges(&self) -> u32 {
        self.max_sge
    }

    /// Returns these properties without shared receive queues.
    pub(super) fn without_shared_receives(self) -> Traits {
        Traits {
            max_srq_wr: 0,
            ..self
        }
    }

    /// Returns the capacity of the send queue for copies.
    pub(in super::super) fn copy_requests(&self, depth: u32) -> u32 {
        let wanted = depth.saturating_mul(2).max(2 * REQUESTS as u32);
        wanted.min(self.max_qp_wr).min(self.max_cqe / 4)
    }

    /// Returns the capacity of a shared receive queue; 0 if there is none.
    pub(in super::super) fn shared_receives(&self) -> u32 {
        // iWARP ends a connection whose message finds no receive.
        match self.iwarp {
            true => 0,
            false => self.max_srq_wr.min(self.max_cqe / 4),
        }
    }

    /// Returns the capabilities of a device with these properties.
    pub(in super::super) fn caps(&self) -> Caps {
        // One queue takes a quarter of the largest completion queue, so that one of each kind fits.
        let queue = self.max_qp_wr.saturating_sub(PROBES).min(self.max_cqe / 4);
        let queue = match queue.min(MOST) {
            0 => 1,
            queue => 1 << queue.ilog2(),
        };
        let mut rdma = RdmaCaps::new(self.max_message, queue, self.max_sge);
        rdma.atomics = self.atomics;
        rdma.max_read_list_len = self.max_sge_rd;
        // The protocol of iWARP has neither immediates (RFC 5040) nor acknowledgements.
        (rdma.write_imm, rdma.send_imm) = (!self.iwarp, !self.iwarp);
        rdma.acknowledged = !self.iwarp;
        if self.shared_receives() > 0 {
            rdma.max_pooled_len =
                usize::try_from(self.max_message).map_or(POOLED, |max| max.min(POOLED));
        }
        rdma.gid_table_size = self.gids;
        rdma.transport = true;
        rdma.pkey_table_size = self.pkeys;
        // Copies are requests of a queue pair that is connected to itself without rdma_cm, which
        // iWARP does not support. The send queue must hold all requests of a copy.
        let copies = self.up && self.ib && self.copy_requests(1) >= REQUESTS as u32;
        let mut caps = match copies {
            true => Caps::for_dma(self.max_message, LIST as u32, queue),
            false => Caps::default(),
        }
        .with_cpu_jobs(1 << 31, LIST as u32);
        caps.max_depth = queue;
        caps.completion_vectors = self.comp_vectors;
        // The crate probes connections by reads, which other transports (those of EFA and usNIC) do
        // not have.
        let connections = self.ib || self.iwarp;
        if connections && self.rd_atomics.iter().all(|&most| most > 0) {
            caps.rdma = Some(rdma);
            caps.share_rdma = true;
        }
        caps
    }
}

/// Checks the result of a call that returns an errno, or that returns -1 and sets errno.
pub(in super::super) fn check(call: &'static str, answer: i32) -> Result<()> {
    match answer {
        0 => Ok(()),
        answer => Err(failed(call, answer)),
    }
}

/// Checks the result of a call that returns null and sets errno.
pub(in super::super) fn check_ptr<T>(
    call: &'static str,
    answer: *mut T,
) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(answer)
        .ok_or_else(|| not_had(call.to_owned(), "", io::Error::last_os_error()))
}

/// Returns the error for something that the adapter did not provide. If a limit may be the cause,
/// names it: adapters lock the memory of registrations and of queues. `way_out` is an alternative
/// to a higher limit.
pub(super) fn not_had(what: String, way_out: &str, source: io::Error) -> Error {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let limited = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
    if !limited || limit == RLIM_INFINITY {
        return Error::os(None, what, source);
    }
    let text = format!(
        "{what}: {source}; memory of an adapter is locked, and the limit of this process is {} KiB: raise it with ulimit -l \
         (LimitMEMLOCK= of a service){way_out}",
        limit / 1024
    );
    Error::new(ErrorKind::NoMemory, None, text)
}

pub(in super::super) fn failed(call: &'static str, answer: i32) -> Error {
    let source = match answer {
        1.. => io::Error::from_raw_os_error(answer),
        _ => io::Error::last_os_error(),
    };
    Error::os(None, call, source)
}
