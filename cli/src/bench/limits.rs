//! Checks what a device and this program refuse, before anything is measured.

use tokio_doca::channel::Channel;
use tokio_doca::device::{Caps, DevInfo};

use super::kind::{BASELINES, KINDS, name};
use super::load::{Baseline, Kind};
use super::peer::PEERS;
use crate::failure::{Failure, Result};

/// The most memory that all operations in flight may take together, in bytes.
pub(super) const MEMORY: u64 = 1 << 30;

/// The largest operation in bytes, and the most operations in flight per thread.
struct Most {
    size: u64,
    depth: u64,
}

/// Fails if a device lacks the operations of a kind, or if it or this program takes only smaller or
/// fewer ones.
pub(super) fn check(
    kind: Kind,
    info: &DevInfo,
    (sizes, depths): (&[usize], &[usize]),
    threads: usize,
) -> Result {
    let (device, what) = (info.name(), kind.name());
    let Some(most) = most(kind, info.caps()) else {
        let text = format!("device {device} has no {what}: try another --device");
        return Err(Failure::Failed(text));
    };
    let size = sizes.iter().copied().max().unwrap_or(0);
    let depth = depths.iter().copied().max().unwrap_or(0);
    if size as u64 > most.size {
        return Err(Failure::Usage(format!(
            "--size is {size} bytes, and device {device} takes {most} by {what}: say at most \
             {most}",
            most = most.size
        )));
    }
    if depth as u64 > most.depth {
        return Err(Failure::Usage(format!(
            "--depth is {depth}, and device {device} takes {most} by {what}: say at most {most}",
            most = most.depth
        )));
    }
    let each = kind.memory(size);
    let in_flight = threads as u64 * depth as u64;
    let memory = in_flight.saturating_mul(each);
    if memory > MEMORY {
        return Err(Failure::Usage(format!(
            "{in_flight} {what} of {size} bytes in flight take {} MiB of memory, and bench takes \
             {} MiB at most: lower --size, --depth or --threads",
            memory >> 20,
            MEMORY >> 20
        )));
    }
    Ok(())
}

/// Returns the limits of a device for a kind; `None` if the device has no such operations.
fn most(kind: Kind, caps: &Caps) -> Option<Most> {
    let jobs = u64::from(caps.max_depth) / kind.jobs() as u64;
    let most = |size| Most { size, depth: jobs };
    let rdma = || {
        let rdma = caps.rdma.as_ref()?;
        let queue = rdma.max_send_queue_size.min(rdma.max_recv_queue_size);
        Some(Most {
            size: rdma.max_message_size,
            depth: jobs.min(queue.into()),
        })
    };
    match kind {
        Kind::Dma | Kind::Graph => Some(most(caps.dma.as_ref()?.max_buf_size)),
        Kind::Sha => Some(most(caps.sha.as_ref()?.max_src_len)),
        Kind::Crc => Some(most(caps.crc.as_ref()?.max_buf_size)),
        Kind::RdmaAtomic if !caps.rdma.as_ref()?.atomics => None,
        Kind::RdmaRead | Kind::RdmaWrite | Kind::RdmaAtomic if !caps.share_rdma => None,
        Kind::RdmaSend | Kind::RdmaRead | Kind::RdmaWrite | Kind::RdmaAtomic => rdma(),
        Kind::SyncEvent => caps.sync_event.as_ref().map(|_| most(u64::MAX)),
        Kind::Channel => caps.channel.then_some(Most {
            size: Channel::MAX_MESSAGE_SIZE as u64,
            depth: Channel::MAX_QUEUE_SIZE as u64,
        }),
        Kind::Stream => Some(Most {
            size: u64::MAX,
            ..rdma()?
        }),
    }
}

/// Fails if a kind cannot be measured with a server in another process with these baselines, depths
/// and threads. The caller has checked `vs` with [`comparable`].
pub(super) fn with_peer(kind: Kind, vs: &[Baseline], depths: &[usize], threads: usize) -> Result {
    let what = kind.name();
    let most = depths.iter().copied().max().unwrap_or(0);
    // The kind and its baselines take turns, and stay connected all the time.
    let each = if kind == Kind::Stream { most } else { 1 };
    let streams = threads * (each + most * vs.len());
    let here = vs.iter().find(|&&it| it != Baseline::Tcp);
    Err(Failure::Usage(if !kind.has_peer() {
        let known = KINDS.iter().filter(|(_, kind)| kind.has_peer());
        let known: Vec<&str> = known.map(|(name, _)| *name).collect();
        format!(
            "{what} has no other side in another process: leave --peer out; {} have one",
            known.join(", ")
        )
    } else if let Some(here) = here {
        let here = name(&BASELINES, here);
        format!("{here} stays on this host: with --peer, compare with tcp")
    } else if streams > PEERS {
        format!(
            "{streams} connections at once, and bench serve has {PEERS} at most: lower --depth or \
             --threads"
        )
    } else {
        return Ok(());
    }))
}

/// Fails if a kind cannot be compared with one of the baselines `vs`.
pub(super) fn comparable(kind: Kind, vs: &[Baseline]) -> Result {
    let fit = kind.baselines();
    let Some(odd) = vs.iter().find(|it| !fit.contains(it)) else {
        return Ok(());
    };
    let (what, odd) = (kind.name(), name(&BASELINES, odd));
    let fit: Vec<&str> = fit.iter().map(|it| name(&BASELINES, it)).collect();
    Err(Failure::Usage(match fit.is_empty() {
        true => format!("{what} is compared with nothing yet: leave --vs out"),
        false => {
            let fit = fit.join(" or ");
            format!("{odd} does what {what} does not: compare {what} with {fit}")
        }
    }))
}
