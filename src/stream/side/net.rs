//! What the sides of one listener or connector share: their device, their memory, and the offers
//! that they send.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use tracing::{info, warn};

use super::memory::{Memory, Pools};
use super::{Exchange, Side, not_met};
use crate::channel::Peer;
use crate::device::{Device, Mtu};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::RecvPool;
use crate::reactor::{WorkQ, polls_here};
use crate::stream::core::{Core, Parts};
use crate::stream::drain::Guests;
use crate::stream::options::{LARGEST, SURE, StreamOptions, has_network};
use crate::stream::wire::{MAY_TCP, Message, Offer, cm_offer};
use crate::sync::log;

/// The maximum number of a stream's frames that wait for a receive, on a device without a network.
const WAITING: usize = 4;

/// The state that the streams of one listener or connector share.
pub(in crate::stream) struct Net {
    pub(in crate::stream) options: StreamOptions,
    pub(in crate::stream) device: Device,
    workq: WorkQ,
    memory: Memory,
    pub(in crate::stream) guests: Guests,
}

impl Net {
    /// Checks everything that can be checked before a peer comes. Allocates nothing. `by_cm` is
    /// true if the sides may meet by rdma_cm.
    pub(in crate::stream) fn new(
        op: &'static str,
        mut options: StreamOptions,
        device: &Device,
        workq: &WorkQ,
        by_cm: bool,
    ) -> Result<Net> {
        options.check(op)?;
        options.confirms = is_iwarp(device);
        let connects = check_connects(op, device, by_cm);
        let has_rdma = connects.is_ok();
        match connects {
            Err(error) if !options.or_tcp => return Err(error),
            Err(error) => no_rdma(&error),
            Ok(()) => {
                // Options that the device refuses fail now, and not with the first peer.
                let checked = options.rdma(device, None, LARGEST).check_on(device);
                checked.map_err(|error| error.with_call(op))?;
                if options.recv_bufs.is_some() {
                    check_shared(op, options.frame_size, device)?;
                }
            }
        }
        Ok(Net {
            memory: Memory::new(options, has_rdma.then_some(device)),
            device: device.clone(),
            workq: workq.clone(),
            options,
            guests: Guests::new(),
        })
    }

    /// Allocates the memory of the first streams.
    pub(in crate::stream) async fn prepare(&self, op: &'static str) -> Result<()> {
        match self.memory.take(op, true).await {
            Err(error) if self.options.or_tcp && is_of_rdma(&error) => no_rdma(&error),
            taken => drop(taken?),
        }
        Ok(())
    }

    /// Returns true if a stream may continue over TCP after this error. It may not if the
    /// application has shut down the WorkQ.
    pub(in crate::stream) fn is_of_rdma(&self, error: &Error) -> bool {
        is_of_rdma(error) && !self.workq.is_closed()
    }

    /// Returns true if a stream of this thread may continue over TCP. A thread that polls cannot
    /// wait for sockets.
    pub(in crate::stream) fn may_tcp(&self) -> bool {
        self.options.or_tcp && !polls_here()
    }

    /// Adds to an error of RDMA the reason why its stream does not continue over TCP, if the
    /// options allow TCP.
    pub(in crate::stream) fn without_tcp(&self, op: &'static str, error: Error) -> Error {
        if self.may_tcp() || !self.options.or_tcp || !self.is_of_rdma(&error) {
            return error;
        }
        let text = "and a thread that polls hears no sockets: connect or accept it in a runtime";
        Error::new(error.kind(), op, format!("{}; {text}", error.message()))
    }

    /// Returns this side's offer, with the blob of its RDMA if it has RDMA.
    pub(in crate::stream) fn offer<'a>(
        &self,
        exchange: &Exchange,
        blob: &'a [u8],
        credits: u16,
        data: &'a [u8],
    ) -> Offer<'a> {
        Offer {
            frame: self.options.frame_size as u32,
            credits,
            flags: if exchange.may_tcp { MAY_TCP } else { 0 },
            blob,
            data,
        }
    }

    /// Returns this side's offer as private data of rdma_cm. It has no blob: rdma_cm carries the
    /// addresses.
    pub(in crate::stream) fn cm_offer(&self, data: &[u8]) -> Vec<u8> {
        cm_offer(self.options.frame_size, data)
    }

    /// Returns the address of rdma_cm at a [`StreamAddr::Cm`](crate::stream::StreamAddr::Cm): this
    /// address, or the next port if TCP has this one, and iWARP cannot share it with TCP.
    pub(in crate::stream) fn cm_addr(
        &self,
        op: &'static str,
        mut addr: SocketAddr,
    ) -> Result<SocketAddr> {
        if !self.options.or_tcp || !is_iwarp(&self.device) {
            return Ok(addr);
        }
        let next = addr.port().checked_add(1).ok_or_else(|| {
            let text = "with or_tcp iWARP takes the port after TCP's: there is none after 65535";
            Error::new(ErrorKind::InvalidValue, op, text)
        })?;
        addr.set_port(next);
        Ok(addr)
    }

    /// Sends a hello, and reads the answer. The hello has no credits: a connector with RDMA gives
    /// them in its first frame, and one without RDMA gives none.
    pub(in crate::stream) async fn ask(
        &self,
        exchange: &mut Exchange,
        blob: &[u8],
        data: &[u8],
    ) -> Result<Bytes> {
        let hello = Message::Hello(self.offer(exchange, blob, 0, data));
        exchange.say(hello).await?;
        exchange.read_message().await
    }

    /// Returns an error if this device cannot connect to a peer with this blob.
    pub(in crate::stream) fn check_peer(&self, op: &'static str, blob: &[u8]) -> Result<()> {
        check_connects(op, &self.device, false)?;
        let checked = self.device.adapter().check_peer(blob);
        checked.map_err(|error| not_met(op, error))
    }

    /// Takes memory for a stream over TCP.
    pub(in crate::stream) async fn tcp_pools(&self, op: &'static str) -> Result<Pools> {
        self.memory.take(op, false).await
    }

    /// Makes one side of a connection: for peers that meet in this exchange, or without one, for
    /// peers that meet by rdma_cm.
    pub(in crate::stream) async fn side(
        &self,
        op: &'static str,
        exchange: Option<&Exchange>,
    ) -> Result<Side> {
        check_connects(op, &self.device, exchange.is_none())?;
        let pools = self.memory.take(op, true).await?;
        let local = exchange.and_then(Exchange::local_ip);
        let side = self.side_of(op, local, pools, LARGEST)?;
        match side.core.has_receives() {
            true => Ok(side),
            false => Err(self.memory.full(op)),
        }
    }

    /// Makes another connection in place of `before`, with packets that pass wherever Ethernet
    /// does. Waits until the memory of `before` was given back.
    pub(in crate::stream) async fn side_again(
        &self,
        exchange: &Exchange,
        before: Side,
    ) -> Result<Side> {
        let local = exchange.local_ip();
        let mut side = self.side_of(exchange.op, local, before.into_pools(), SURE)?;
        poll_fn(|cx| side.core.poll_receives(cx)).await;
        Ok(side)
    }

    fn side_of(
        &self,
        op: &'static str,
        local: Option<IpAddr>,
        pools: Pools,
        mtu: Mtu,
    ) -> Result<Side> {
        let mut send_window = self.options.send_window;
        if !has_network(&self.device) {
            send_window = send_window.min(WAITING);
        }
        let mut rdma = self.options.rdma(&self.device, local, mtu);
        if self.options.recv_bufs.is_some() {
            let credits = self.options.receives() as u32;
            rdma = rdma.recv_pool(&RecvPool::new(&pools.receives).credits(credits));
        }
        let rdma = rdma
            .attach(&self.workq)
            .map_err(|error| error.with_call(op))?;
        let wakers = Arc::default();
        let parts = Parts {
            receives: &pools.receives,
            sends: &pools.sends,
            control: pools.control,
            recv_window: self.options.window(),
            send_window,
            confirms: self.options.confirms,
        };
        Ok(Side {
            core: Box::new(Core::new(rdma, parts, &wakers)),
            wakers,
            pools: (pools.receives, pools.sends),
        })
    }
}

/// Refuses a device without RDMA, and an iWARP adapter, which connects by rdma_cm alone.
fn check_connects(op: &'static str, device: &Device, by_cm: bool) -> Result<()> {
    let why = match device.info().caps().rdma {
        Some(_) if by_cm || !is_iwarp(device) => return Ok(()),
        Some(_) => {
            "is an iWARP adapter, which connects by rdma_cm alone: use a StreamAddr::Cm, or TCP"
        }
        None => "has no RDMA: use another device, or TCP",
    };
    let text = format!("{} {why} (StreamOptions::or_tcp)", device.info().name());
    Err(Error::new(ErrorKind::NotSupported, op, text))
}

/// Returns true for an iWARP adapter: no other device leaves messages unacknowledged.
fn is_iwarp(device: &Device) -> bool {
    let caps = device.info().caps().rdma.as_ref();
    caps.is_some_and(|caps| !caps.acknowledged)
}

/// Returns true if a stream may continue over TCP after this error of RDMA. It may not after the
/// errors that a stranger can cause by using up resources such as memory and descriptors.
pub(super) fn is_of_rdma(error: &Error) -> bool {
    use ErrorKind::{Full, NoMemory, Shutdown};
    let is_full = matches!(
        error.errno(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::EUSERS)
    );
    !is_full && !matches!(error.kind(), Full | NoMemory | Shutdown)
}

/// Logs that no stream of this listener or connector will have RDMA, unless its device recovers.
pub(in crate::stream) fn no_rdma(error: &Error) {
    log(|| warn!(target: "tokio_doca::stream", %error, "no RDMA"));
}

/// Logs that a stream runs on TCP. The side that has found no RDMA warns, with the error.
pub(in crate::stream) fn fell_back(peer: &Peer, why: Option<Error>) {
    log(|| match &why {
        Some(error) => warn!(target: "tokio_doca::stream", %peer, %error, "fell back"),
        None => info!(target: "tokio_doca::stream", %peer, "fell back"),
    });
}

/// Refuses a device whose endpoints cannot share buffers of this size.
fn check_shared(op: &'static str, frame: usize, device: &Device) -> Result<()> {
    let caps = device.info().caps().rdma.as_ref();
    match caps.map_or(0, |caps| caps.max_pooled_len) {
        most if most < frame => {
            let text = format!(
                "the device shares buffers of at most {most} bytes between connections, and a \
                 frame has {frame}: leave StreamOptions::recv_bufs out, or set a smaller frame_size"
            );
            Err(Error::new(ErrorKind::NotSupported, op, text))
        }
        _ => Ok(()),
    }
}
