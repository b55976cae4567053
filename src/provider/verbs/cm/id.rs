//! An id of the connection manager (`rdma_cm_id`): a connection, or a listener.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use zerocopy::IntoBytes;

use super::super::adapter::{Context, adapter_and_port, check, device_name};
use super::super::ffi::*;
use super::channel::{Cm, Handler, step_at_once, wait_for_peer};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::log_later;

pub(in super::super) struct CmId {
    cm: &'static Cm,
    raw: Raw,
    number: u64,
    /// True if the id requests a connection from a peer over iWARP.
    asks: bool,
}

#[derive(Clone, Copy)]
struct Raw(NonNull<rdma_cm_id>);

// SAFETY: functions of librdmacm may be called from any thread on an id.
unsafe impl Send for Raw {}
// SAFETY: as above. The library changes an id before it hands out the event that reports the
// change, and the id's owner reads the id after that event.
unsafe impl Sync for Raw {}

/// The parameters that a side offers its peer when the two connect.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Offer<'a> {
    pub(in super::super) qp_num: u32,
    /// True if the queue pair takes its receives from a shared queue.
    pub(in super::super) srq: bool,
    pub(in super::super) private_data: &'a [u8],
    /// The number of concurrent reads and atomics that this side answers, and that it requests.
    pub(in super::super) reads: [u8; 2],
}

impl Offer<'_> {
    fn param(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // The caller has checked the length against the limit of the transport, which is lower.
            private_data_len: self.private_data.len().min(255) as u8,
            responder_resources: self.reads[0],
            initiator_depth: self.reads[1],
            retry_count: 7,
            rnr_retry_count: 7,
            srq: self.srq.into(),
            qp_num: self.qp_num,
            ..rdma_conn_param::default()
        }
    }
}

impl CmId {
    /// Creates an id. `asks` is true for a connection that this side requests over iWARP.
    pub(in super::super) fn create(cm: &'static Cm, asks: bool) -> Result<CmId> {
        let (mut raw, number) = (ptr::null_mut(), Cm::next_number());
        let context = ptr::without_provenance_mut(number as usize);
        let create_id = cm.table.create_id;
        // SAFETY: the channel is open; the pointer is this function's.
        let made = unsafe { create_id(cm.channel(), &mut raw, context, RDMA_PS_TCP) };
        check("rdma_create_id", made)?;
        let raw = Raw(NonNull::new(raw).expect("librdmacm has made an id"));
        Ok(CmId {
            cm,
            raw,
            number,
            asks,
        })
    }

    /// Returns the id of a connection that a peer requests.
    ///
    /// # Safety
    ///
    /// No other code has the id.
    pub(super) unsafe fn of_request(cm: &'static Cm, raw: NonNull<rdma_cm_id>) -> CmId {
        let number = Cm::next_number();
        // SAFETY: no other code has the id. Until now its context was that of the listener.
        unsafe { (*raw.as_ptr()).context = ptr::without_provenance_mut(number as usize) };
        let raw = Raw(raw);
        CmId {
            cm,
            raw,
            number,
            asks: false,
        }
    }

    fn raw(&self) -> *mut rdma_cm_id {
        self.raw.0.as_ptr()
    }

    /// Sets the handler of further events.
    pub(in super::super) fn set_handler(&self, handler: Weak<dyn Handler>) {
        self.cm.set_handler(self.number, handler);
    }

    /// Sets the time at which the watcher notifies the handler, and keeps the handler until then.
    pub(in super::super) fn set_deadline(&self, until: Instant, handler: Arc<dyn Handler>) {
        self.cm.set_deadline(self.number, until, handler);
    }

    pub(in super::super) fn clear_deadline(&self) {
        self.cm.clear_deadline(self.number);
    }

    /// Finds the adapter that reaches an address. An event reports the result.
    pub(in super::super) fn resolve_addr(
        &self,
        source: Option<IpAddr>,
        addr: SocketAddr,
        limit: Duration,
    ) -> Result<()> {
        let source = source.map(|source| SockaddrStorage::from(SocketAddr::new(source, 0)));
        let from = source.as_ref().map_or(ptr::null(), SockaddrLike::as_ptr);
        let to = SockaddrStorage::from(addr);
        let resolve_addr = self.cm.table.resolve_addr;
        // SAFETY: the id is alive; both addresses are this function's, and are read only.
        check("rdma_resolve_addr", unsafe {
            resolve_addr(
                self.raw(),
                from.cast_mut(),
                to.as_ptr().cast_mut(),
                millis(limit),
            )
        })
    }

    /// Finds the route to the peer, after `resolve_addr`. An event reports the result.
    pub(in super::super) fn resolve_route(&self, limit: Duration) -> Result<()> {
        let resolve_route = self.cm.table.resolve_route;
        // SAFETY: the id is alive.
        check("rdma_resolve_route", unsafe {
            resolve_route(self.raw(), millis(limit))
        })
    }

    /// Binds the id to an address of this host.
    pub(in super::super) fn bind(&self, addr: SocketAddr) -> Result<()> {
        let addr = SockaddrStorage::from(addr);
        let bind_addr = self.cm.table.bind_addr;
        // SAFETY: the id is alive; the address is this function's, and is read only.
        check("rdma_bind_addr", unsafe {
            bind_addr(self.raw(), addr.as_ptr().cast_mut())
        })
    }

    /// Listens at the bound address, with up to `backlog` requests that were not read yet.
    pub(in super::super) fn listen(&self, backlog: u32) -> Result<()> {
        let (listen, backlog) = (self.cm.table.listen, i32::try_from(backlog));
        // SAFETY: the id is alive.
        check("rdma_listen", unsafe {
            listen(self.raw(), backlog.unwrap_or(i32::MAX))
        })
    }

    /// Requests a connection from the peer.
    pub(in super::super) fn connect(&self, offer: &Offer<'_>) -> Result<()> {
        let (mut param, connect) = (offer.param(), self.cm.table.connect);
        // SAFETY: the id is alive; the parameters and their bytes are copied.
        check("rdma_connect", unsafe { connect(self.raw(), &mut param) })
    }

    /// Accepts the peer's request.
    pub(in super::super) fn accept(&self, offer: &Offer<'_>) -> Result<()> {
        let (mut param, accept) = (offer.param(), self.cm.table.accept);
        // SAFETY: the id is alive; the parameters and their bytes are copied.
        check("rdma_accept", unsafe { accept(self.raw(), &mut param) })
    }

    pub(in super::super) fn reject(&self, private_data: &[u8]) -> Result<()> {
        if self.cm.is_forked() {
            let text = "this process is a fork of the one that was asked";
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        let reject = self.cm.table.reject;
        let (data, len) = (private_data.as_ptr().cast::<c_void>(), private_data.len());
        // SAFETY: the id is alive; the bytes are copied.
        check("rdma_reject", unsafe {
            reject(self.raw(), data, len.min(255) as u8)
        })
    }

    /// Notifies the peer, after its response, that the queue pair of this side is ready.
    pub(in super::super) fn establish(&self) -> Result<()> {
        let establish = self.cm.table.establish;
        // SAFETY: the id is alive.
        check("rdma_establish", unsafe { establish(self.raw()) })
    }

    /// Notifies the manager that a message has come, which proves that the peer is connected.
    pub(in super::super) fn notify_established(&self) -> Result<()> {
        let notify = self.cm.table.notify;
        // SAFETY: the id is alive.
        check("rdma_notify", unsafe {
            notify(self.raw(), IBV_EVENT_COMM_EST)
        })
    }

    /// Returns the attributes that the manager knows for a queue pair's transition to `state`.
    pub(in super::super) fn qp_attr(&self, state: ibv_qp_state) -> Result<ibv_qp_attr> {
        let mut attr = ibv_qp_attr {
            qp_state: state,
            ..ibv_qp_attr::default()
        };
        let (mut mask, init_qp_attr) = (0, self.cm.table.init_qp_attr);
        // SAFETY: the id is alive; attributes and mask are this function's.
        check("rdma_init_qp_attr", unsafe {
            init_qp_attr(self.raw(), &mut attr, &mut mask)
        })?;
        Ok(attr)
    }

    /// Returns the adapter and port that reach the peer, or `None` for an address that is not
    /// resolved, and for a listener on all adapters.
    pub(in super::super) fn device(&self, context: &Context) -> Option<(String, u8)> {
        // SAFETY: the id is alive.
        let verbs = unsafe { (*self.raw()).verbs };
        if verbs.is_null() {
            return None;
        }
        // SAFETY: librdmacm keeps the device open.
        let device = unsafe { (*verbs).device };
        // SAFETY: as above.
        let name = unsafe { device_name(&context.table, device) };
        // SAFETY: the id is alive.
        Some((name, unsafe { (*self.raw()).port_num }))
    }

    pub(in super::super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        socket_addr(&unsafe { (*self.raw()).route.addr.src_addr })
    }

    pub(in super::super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        socket_addr(&unsafe { (*self.raw()).route.addr.dst_addr })
    }
}

/// Returns true if the adapter and port that [`CmId::device`] returned are those of the device of
/// `context`.
pub(in super::super) fn is_of(context: &Context, (name, port): &(String, u8)) -> bool {
    (name.as_str(), *port) == (adapter_and_port(&context.name).0, context.traits.port)
}

/// Returns the peer's GID, from the attributes of the route.
pub(in super::super) fn peer_gid(attr: &ibv_qp_attr) -> [u8; 16] {
    // SAFETY: both forms of a GID are 16 bytes, any of which are initialized.
    unsafe { attr.ah_attr.grh.dgid.raw }
}

/// Returns a time in milliseconds, at least 1, since 0 means no limit.
fn millis(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Returns the address in a `sockaddr_storage`, or `None` if it is not an IP address.
fn socket_addr(storage: &[u64; 16]) -> Option<SocketAddr> {
    let bytes = storage.as_bytes();
    let at = |from: usize| <[u8; 4]>::try_from(&bytes[from..from + 4]).expect("four bytes");
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Some((Ipv4Addr::from(at(4)), port).into()),
        libc::AF_INET6 => {
            let addr = <[u8; 16]>::try_from(&bytes[8..24]).expect("sixteen bytes");
            let (flow, scope) = (u32::from_be_bytes(at(4)), u32::from_ne_bytes(at(24)));
            Some(SocketAddrV6::new(Ipv6Addr::from(addr), port, flow, scope).into())
        }
        _ => None,
    }
}

/// An id that is no longer used, and is destroyed when this is dropped.
struct Destroyed(&'static Cm, Raw);

impl Drop for Destroyed {
    fn drop(&mut self) {
        let Destroyed(cm, raw) = *self;
        // SAFETY: the holder of the id has dropped it, and the watcher acknowledges its events.
        let answer = unsafe { (cm.table.destroy_id)(raw.0.as_ptr()) };
        if let Err(error) = check("rdma_destroy_id", answer) {
            let (error, text) = (error.to_string(), "an id of rdma_cm stays");
            log_later(move || tracing::error!(target: "tokio_doca::verbs", error, "{text}"));
        }
    }
}

impl Drop for CmId {
    /// Ends the connection or the listener, which notifies the peer. This does not wait.
    fn drop(&mut self) {
        // In a child of fork(2) the id belongs to the parent. This comes before any lock, since the
        // child may have inherited a locked one.
        if self.cm.is_forked() {
            return;
        }
        self.cm.forget(self.number);
        let destroyed = Destroyed(self.cm, self.raw);
        // If no thread can be started, the id is destroyed here.
        let _ = match self.asks {
            // This waits until the peer has answered, or 10 seconds have passed
            // (`iw_destroy_cm_id`).
            true => wait_for_peer(move || drop(destroyed)),
            false => step_at_once(move || drop(destroyed)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_system_writes_them() {
        let cases = ["10.77.0.1:7471", "[fe80::1%3]:1", "[::]:65535", "0.0.0.0:0"];
        for text in cases {
            let addr: SocketAddr = text.parse().unwrap();
            let written = SockaddrStorage::from(addr);
            let mut storage = [0; 16];
            let len = written.len() as usize;
            // SAFETY: both are at least `len` bytes long.
            unsafe {
                ptr::copy_nonoverlapping(
                    written.as_ptr().cast::<u8>(),
                    storage.as_mut_bytes().as_mut_ptr(),
                    len,
                )
            };
            assert_eq!(socket_addr(&storage), Some(addr));
        }
        assert_eq!(socket_addr(&[0; 16]), None);
    }
}
