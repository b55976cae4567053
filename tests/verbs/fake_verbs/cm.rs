//! A fake of librdmacm and of the kernel's connection manager for the adapters of a world. It
//! follows the man pages and the states of InfiniBand's connection manager; no packets are lost.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::{LazyLock, PoisonError};

use tokio_doca::verbs::ffi::{CmTable, *};

use super::control::{fill, minus_one, object};
use super::fabric::{BELL, Bell, Element, Errno, Fabric, call, lock, wait_while_held};

static TABLE: CmTable = CmTable {
    create_event_channel,
    create_id,
    destroy_id,
    bind_addr,
    resolve_addr,
    resolve_route,
    init_qp_attr,
    listen,
    connect,
    establish,
    accept,
    reject,
    notify,
    get_cm_event,
    ack_cm_event,
};

pub(super) fn table() -> Result<&'static CmTable, String> {
    Ok(&TABLE)
}

/// Lengths in bytes of the private data that the kernel delivers with a request, an answer and a
/// refusal.
const REQUEST: usize = 56;
const ANSWER: usize = 196;
const REFUSAL: usize = 148;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Bound,
    Resolved,
    Routed,
    Listening,
    /// This id has sent a connection request.
    Asks,
    /// This id was made for an incoming request.
    Asked,
    /// This id has accepted, and waits for the peer's ready-to-use message.
    Answered,
    /// The peer has accepted.
    Responded,
    Established,
    Gone,
}

struct Id {
    state: State,
    adapter: Option<usize>,
    iwarp: bool,
    local: SocketAddr,
    remote: SocketAddr,
    peer: usize,
    qp_num: u32,
    psn: u32,
    /// Events that were read and not yet acknowledged.
    unacked: usize,
}

struct Waiting {
    /// The id that receives the event; for a connection request, the listener's id.
    about: usize,
    id: usize,
    kind: rdma_cm_event_type,
    status: c_int,
    private_data: Vec<u8>,
    reads: [u8; 2],
}

/// The rdma_cm ids of a world, and their events.
#[derive(Default)]
pub(super) struct Manager {
    ids: HashMap<usize, Id>,
    events: VecDeque<Waiting>,
    /// Events that were read and not yet acknowledged, each with its id and its private data.
    read: HashMap<usize, (usize, Vec<u8>)>,
    ports: u16,
    /// If set, the ready-to-use messages of connecting sides are lost.
    pub(super) loses_words: bool,
    /// Accepting ids over iWARP whose `ESTABLISHED` event was withheld.
    untold: Vec<usize>,
    /// Events that wait for a port to come up: the manager, or TCP, retransmits them until then.
    delayed: Vec<Waiting>,
}

/// The event channel. The process has one, which outlives the worlds.
struct Channel(rdma_event_channel, Bell);

// SAFETY: the struct holds only a descriptor number.
unsafe impl Sync for Channel {}

static CHANNEL: LazyLock<Channel> = LazyLock::new(|| {
    let bell = Bell::new();
    Channel(rdma_event_channel { fd: bell.fd() }, bell)
});

impl Manager {
    pub(super) fn live(&self) -> usize {
        self.ids.len()
    }

    fn tell(&mut self, id: usize, kind: rdma_cm_event_type, status: c_int) {
        self.tell_more(id, kind, status, Vec::new(), [0; 2]);
    }

    fn tell_more(
        &mut self,
        id: usize,
        kind: rdma_cm_event_type,
        status: c_int,
        private_data: Vec<u8>,
        reads: [u8; 2],
    ) {
        self.put(Waiting {
            about: id,
            id,
            kind,
            status,
            private_data,
            reads,
        });
    }

    fn put(&mut self, event: Waiting) {
        self.events.push_back(event);
        CHANNEL.1.ring();
    }

    /// Drops the unread events of the id `about`, and returns the ids of the connection requests
    /// among them.
    fn forget(&mut self, about: usize) -> Vec<usize> {
        let is_kept = |event: &Waiting| event.about != about;
        let (kept, gone) = std::mem::take(&mut self.events)
            .into_iter()
            .partition::<VecDeque<_>, _>(is_kept);
        self.events = kept;
        gone.iter().for_each(|_| CHANNEL.1.unring());
        let (kept, late) = std::mem::take(&mut self.delayed)
            .into_iter()
            .partition::<Vec<_>, _>(is_kept);
        self.delayed = kept;
        let gone = gone.into_iter().chain(late);
        gone.filter(|event| event.kind == RDMA_CM_EVENT_CONNECT_REQUEST)
            .map(|event| event.id)
            .collect()
    }

    fn set(&mut self, id: usize, state: State) {
        if let Some(id) = self.ids.get_mut(&id) {
            id.state = state;
        }
    }

    fn port(&mut self) -> u16 {
        self.ports = self.ports.max(20_000) + 1;
        self.ports
    }
}

impl Fabric {
    fn cm_id(&mut self, call: &str, id: *mut rdma_cm_id) -> Result<&mut Id, Errno> {
        let address = id as usize;
        if !self.cm.ids.contains_key(&address) {
            return Err(self.unknown(call, address));
        }
        Ok(self.cm.ids.get_mut(&address).expect("just found"))
    }

    /// Notifies the peer of this id that the connection or the attempt has ended.
    fn leave(&mut self, id: usize, private_data: &[u8]) {
        let Some(Id {
            state, peer, iwarp, ..
        }) = self.cm.ids.get(&id)
        else {
            return;
        };
        let (state, peer, iwarp) = (*state, *peer, *iwarp);
        let theirs = self.cm.ids.get(&peer).map(|peer| peer.state);
        let (kind, status) = match (state, theirs) {
            (State::Asked | State::Answered | State::Responded, Some(_)) => {
                let reset = -libc::ECONNRESET;
                (RDMA_CM_EVENT_REJECTED, if iwarp { reset } else { 28 })
            }
            // A timeout of the attempt (InfiniBand specification, 12.6.7.2).
            (State::Asks, Some(State::Asked | State::Answered)) => (RDMA_CM_EVENT_REJECTED, 4),
            (State::Established, Some(State::Established)) => (RDMA_CM_EVENT_DISCONNECTED, 0),
            // The ready-to-use message was lost, and this side no longer waits for an answer.
            (State::Established, Some(State::Answered)) => (RDMA_CM_EVENT_REJECTED, 4),
            _ => return,
        };
        if matches!(theirs, Some(State::Gone)) {
            return;
        }
        if kind == RDMA_CM_EVENT_REJECTED && iwarp {
            // The kernel flushes the queue pair of an attempt over siw that was rejected.
            let number = self.cm.ids[&peer].qp_num;
            if let Some(&qp) = self.by_number.get(&number) {
                self.fail_qp(qp);
            }
        }
        self.cm.set(peer, State::Gone);
        self.cm.set(id, State::Gone);
        let said = match kind {
            RDMA_CM_EVENT_REJECTED if iwarp => private_data.to_vec(),
            RDMA_CM_EVENT_REJECTED => padded(private_data, REFUSAL),
            _ => Vec::new(),
        };
        self.send(id, peer, kind, status, said, [0; 2]);
    }

    /// Sends an event to the id `to`, once the ports of both sides are up.
    fn send(
        &mut self,
        from: usize,
        to: usize,
        kind: rdma_cm_event_type,
        status: c_int,
        private_data: Vec<u8>,
        reads: [u8; 2],
    ) {
        let event = Waiting {
            about: to,
            id: to,
            kind,
            status,
            private_data,
            reads,
        };
        self.send_event(from, event);
    }

    fn send_event(&mut self, from: usize, event: Waiting) {
        match self.is_up(from) && self.is_up(event.id) {
            true => self.cm.put(event),
            false => self.cm.delayed.push(event),
        }
    }

    fn is_up(&self, id: usize) -> bool {
        let adapter = self.cm.ids.get(&id).and_then(|id| id.adapter);
        adapter.is_none_or(|adapter| !self.adapters[adapter].ports_down[0])
    }

    /// Sends the delayed events again, after a port has come up.
    pub(super) fn send_delayed(&mut self) {
        for event in std::mem::take(&mut self.cm.delayed) {
            let peer = self.cm.ids.get(&event.id).map_or(0, |id| id.peer);
            self.send_event(peer, event);
        }
    }

    /// Records a sin if `param.srq` does not say whether the queue pair uses a shared receive
    /// queue.
    fn check_srq(&mut self, call: &str, param: &rdma_conn_param) {
        let qp = self.by_number.get(&param.qp_num);
        let shares = qp.and_then(|qp| self.qps.get(qp)).map(|qp| qp.srq != 0);
        if shares.is_some_and(|shares| shares != (param.srq != 0)) {
            self.sin(format!("{call} with srq {}, which is not so", param.srq));
        }
    }

    /// Returns the adapter that has this address, and its index in the adapter's GID table.
    fn adapter_of(&self, ip: IpAddr) -> Option<(usize, usize)> {
        let raw = gid_of(ip);
        self.adapters.iter().enumerate().find_map(|(at, adapter)| {
            let is = |gid: &Option<super::Gid>| {
                gid.as_ref()
                    .is_some_and(|gid| gid.raw == raw && gid.kind == IBV_GID_TYPE_ROCE_V2)
            };
            let index = adapter.description.gids.iter().position(is)?;
            (!adapter.removed).then_some((at, index))
        })
    }

    /// Binds an id to an adapter, which gives the id a device context.
    fn bind(&mut self, address: usize, adapter: usize) {
        let device = self.adapters[adapter].device as *mut ibv_device;
        let verbs = self.make(ibv_context {
            device,
            ..ibv_context::default()
        });
        let id = address as *mut rdma_cm_id;
        // SAFETY: an object of the fabric, which the caller reads only after an event.
        unsafe { (*id).verbs = verbs };
        // SAFETY: as above.
        unsafe { (*id).port_num = 1 };
        let iwarp = self.adapters[adapter].description.is_iwarp();
        let id = self.cm.ids.get_mut(&address).expect("it is alive");
        (id.adapter, id.iwarp) = (Some(adapter), iwarp);
    }

    /// Connects the queue pair of an id over TCP, as the kernel does for iWARP once the peer has
    /// accepted or has asked. Such a connection never gives up on a silent peer.
    fn connect_iwarp(&mut self, id: usize) -> Result<(), Errno> {
        let Id {
            psn, peer, qp_num, ..
        } = self.cm.ids[&id];
        let adapter = self.cm.ids[&id].adapter.ok_or(libc::EINVAL)?;
        let peer = &self.cm.ids[&peer];
        let (there, index) = self.adapter_of(peer.local.ip()).ok_or(libc::EINVAL)?;
        let mut attr = ibv_qp_attr {
            path_mtu: self.adapters[adapter].description.mtu,
            dest_qp_num: peer.qp_num,
            rq_psn: peer.psn,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ..ibv_qp_attr::default()
        };
        let gid = self.adapters[there].description.gid(index);
        attr.ah_attr.grh.dgid.raw = gid.ok_or(libc::EINVAL)?.raw;
        attr.ah_attr.grh.sgid_index = index as u8;
        let qp = *self.by_number.get(&qp_num).ok_or(libc::EINVAL)?;
        let of = self.qps.get_mut(&qp).ok_or(libc::EINVAL)?;
        (of.attr, of.rq_psn, of.sq_psn) = (attr, attr.rq_psn, psn);
        of.state = IBV_QPS_RTS;
        self.wake(qp);
        Ok(())
    }

    fn write_addrs(&mut self, address: usize) {
        let Id { local, remote, .. } = &self.cm.ids[&address];
        let (local, remote) = (storage(*local), storage(*remote));
        let id = address as *mut rdma_cm_id;
        // SAFETY: an object of the fabric, as in `bind`.
        unsafe { (*id).route.addr.src_addr = local };
        // SAFETY: as above.
        unsafe { (*id).route.addr.dst_addr = remote };
    }

    /// Notifies each id of an adapter that the adapter is being removed.
    pub(super) fn remove_ids(&mut self, adapter: usize) {
        let of = |(at, id): (&usize, &Id)| (id.adapter == Some(adapter)).then_some(*at);
        let ids: Vec<usize> = self.cm.ids.iter().filter_map(of).collect();
        for id in ids {
            self.cm.tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
    }

    /// Raises the event of a first message for the queue pairs of all ids that have accepted.
    pub(super) fn messages_come_first(&mut self) {
        let answered = self
            .cm
            .ids
            .values()
            .filter(|id| id.state == State::Answered);
        let numbers: Vec<u32> = answered.map(|id| id.qp_num).collect();
        numbers
            .into_iter()
            .for_each(|number| self.message_came(number));
    }

    /// Delivers the lost ready-to-use messages, each followed by `messages` events of a first
    /// message.
    pub(super) fn find_words(&mut self, messages: usize) {
        self.cm.loses_words = false;
        let answered = (self.cm.ids.iter()).filter(|(_, id)| id.state == State::Answered);
        let answered: Vec<_> = answered.map(|(at, id)| (*at, id.qp_num)).collect();
        for (id, number) in answered {
            self.cm.set(id, State::Established);
            self.cm.tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            (0..messages).for_each(|_| self.message_came(number));
        }
    }

    /// Raises the event that a message has arrived at the queue pair of this number.
    pub(super) fn message_came(&mut self, number: u32) {
        if let Some(&qp) = self.by_number.get(&number) {
            let context = self.pds[&self.qps[&qp].pd];
            self.raise(context, IBV_EVENT_COMM_EST, Element::Qp(qp));
        }
    }

    /// Delivers the withheld `ESTABLISHED` events to ids that have accepted over iWARP.
    pub(super) fn tell_late(&mut self) {
        for id in std::mem::take(&mut self.cm.untold) {
            self.cm.tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
        }
    }

    /// Drops all events at the end of a test; the channel remains for the next test.
    pub(super) fn clear_events(&mut self) {
        self.cm.events.drain(..).for_each(|_| CHANNEL.1.unring());
        self.cm.delayed.clear();
    }
}

fn padded(said: &[u8], len: usize) -> Vec<u8> {
    let mut said = said.to_vec();
    said.resize(len, 0);
    said
}

/// Converts `addr` to the layout of `sockaddr_storage`.
fn storage(addr: SocketAddr) -> [u64; 16] {
    let mut bytes = [0; 128];
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    let family = match addr {
        SocketAddr::V4(addr) => {
            bytes[4..8].copy_from_slice(&addr.ip().octets());
            libc::AF_INET
        }
        SocketAddr::V6(addr) => {
            bytes[8..24].copy_from_slice(&addr.ip().octets());
            bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
            libc::AF_INET6
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

/// Reads the socket address that a caller has passed.
fn addr(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: an address of any family begins with this header.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is an IPv4 address.
            let addr = unsafe { *addr.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
            Ok((ip, u16::from_be(addr.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is an IPv6 address.
            let addr = unsafe { *addr.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
            Ok((ip, u16::from_be(addr.sin6_port)).into())
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Returns the address as a GID; an IPv4 address is mapped to IPv6.
fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns true if `listener` receives requests that are sent to `at`. `::` includes IPv4.
fn is_heard(listener: SocketAddr, at: SocketAddr) -> bool {
    let anywhere = match listener.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() && at.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    (anywhere || listener.ip() == at.ip()) && listener.port() == at.port()
}

fn private_data(param: &rdma_conn_param, most: usize) -> Result<Vec<u8>, Errno> {
    let len = usize::from(param.private_data_len);
    if len > most {
        return Err(libc::EINVAL);
    }
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller passes this many bytes.
    Ok(unsafe { std::slice::from_raw_parts(param.private_data.cast(), len) }.to_vec())
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    object(call("rdma_create_event_channel").map(|_| ptr::from_ref(&CHANNEL.0).cast_mut()))
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let made = call("rdma_create_id").map(|mut fabric| {
        let id = fabric.make(rdma_cm_id {
            channel,
            context,
            ps,
            ..rdma_cm_id::default()
        });
        fabric.cm.ids.insert(id as usize, new(State::Idle));
        id
    });
    minus_one(made.map(|id| fill(to, id)))
}

fn new(state: State) -> Id {
    Id {
        state,
        adapter: None,
        iwarp: false,
        local: (Ipv4Addr::UNSPECIFIED, 0).into(),
        remote: (Ipv4Addr::UNSPECIFIED, 0).into(),
        peer: 0,
        qp_num: 0,
        psn: super::control::fresh() & 0xff_ffff,
        unacked: 0,
    }
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    let address = id as usize;
    let done = call("rdma_destroy_id").and_then(|mut fabric| {
        fabric.cm_id("rdma_destroy_id", id)?;
        fabric.leave(address, b"");
        // Unread events are dropped with the id, and so are the requests that they announce.
        for request in fabric.cm.forget(address) {
            fabric.leave(request, b"");
            fabric.cm.ids.remove(&request);
        }
        // Waits until the events that were read are acknowledged.
        let unread = |fabric: &mut Fabric| {
            let id = fabric.cm.ids.get(&address);
            id.is_some_and(|id| id.unacked > 0)
        };
        let mut fabric = BELL
            .wait_while(fabric, unread)
            .unwrap_or_else(PoisonError::into_inner);
        fabric.cm.ids.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, to: *mut libc::sockaddr) -> c_int {
    let done = call("rdma_bind_addr").and_then(|mut fabric| {
        let mut to = addr(to)?;
        fabric.cm_id("rdma_bind_addr", id)?;
        let bound = fabric.cm.ids.values();
        let taken = bound.filter(|id| matches!(id.state, State::Bound | State::Listening));
        if to.port() != 0 && taken.clone().any(|id| id.local == to) {
            return Err(libc::EADDRINUSE);
        }
        if !to.ip().is_unspecified() {
            let (adapter, _) = fabric.adapter_of(to.ip()).ok_or(libc::EADDRNOTAVAIL)?;
            fabric.bind(id as usize, adapter);
        }
        if to.port() == 0 {
            to.set_port(fabric.cm.port());
        }
        let state = fabric.cm_id("rdma_bind_addr", id)?;
        (state.local, state.state) = (to, State::Bound);
        fabric.write_addrs(id as usize);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    let done = call("rdma_resolve_addr").and_then(|mut fabric| {
        let remote = addr(to)?;
        let source = match source.is_null() {
            true => None,
            false => Some(addr(source)?.ip()),
        };
        if fabric.cm_id("rdma_resolve_addr", id)?.state != State::Idle {
            return Err(libc::EINVAL);
        }
        if source.is_some_and(|source| source.is_ipv4() != remote.is_ipv4()) {
            return Err(libc::EINVAL);
        }
        let address = id as usize;
        // All adapters are in the same network.
        let known = fabric.adapter_of(remote.ip());
        let own = source.map_or(known, |ip| fabric.adapter_of(ip));
        let (Some((adapter, _)), Some(_)) = (own, known) else {
            let silent = -libc::EHOSTUNREACH;
            fabric.cm.tell(address, RDMA_CM_EVENT_ADDR_ERROR, silent);
            return Ok(());
        };
        fabric.bind(address, adapter);
        let port = fabric.cm.port();
        let state = fabric.cm_id("rdma_resolve_addr", id)?;
        state.local = (source.unwrap_or(remote.ip()), port).into();
        (state.remote, state.state) = (remote, State::Resolved);
        fabric.write_addrs(address);
        fabric.cm.tell(address, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    let done = call("rdma_resolve_route").and_then(|mut fabric| {
        let state = fabric.cm_id("rdma_resolve_route", id)?;
        if state.state != State::Resolved {
            return Err(libc::EINVAL);
        }
        state.state = State::Routed;
        fabric.cm.tell(id as usize, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    let done = call("rdma_listen").and_then(|mut fabric| {
        let state = fabric.cm_id("rdma_listen", id)?;
        if state.state != State::Bound {
            return Err(libc::EINVAL);
        }
        state.state = State::Listening;
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes a valid struct.
    let param = unsafe { *param };
    wait_while_held(lock(), "rdma_connect");
    let done = call("rdma_connect").and_then(|mut fabric| {
        let said = private_data(&param, REQUEST)?;
        let state = fabric.cm_id("rdma_connect", id)?;
        if state.state != State::Routed {
            return Err(libc::EINVAL);
        }
        (state.state, state.qp_num) = (State::Asks, param.qp_num);
        let (local, remote) = (state.local, state.remote);
        let listens =
            |listener: &Id| listener.state == State::Listening && is_heard(listener.local, remote);
        fabric.check_srq("rdma_connect", &param);
        let found = fabric.cm.ids.iter().find(|(_, id)| listens(id));
        let iwarp = fabric.cm.ids[&(id as usize)].iwarp;
        let Some(listener) = found.map(|(at, _)| *at) else {
            fabric.cm.set(id as usize, State::Gone);
            if iwarp {
                return Err(libc::ECONNREFUSED);
            }
            let said = padded(b"", REFUSAL);
            let asker = id as usize;
            fabric
                .cm
                .tell_more(asker, RDMA_CM_EVENT_REJECTED, 8, said, [0; 2]);
            return Ok(());
        };
        let asked = fabric.make(rdma_cm_id {
            // No context, until the caller sets one.
            context: ptr::null_mut(),
            ..rdma_cm_id::default()
        }) as usize;
        let (adapter, _) = fabric.adapter_of(remote.ip()).ok_or(libc::EHOSTUNREACH)?;
        let other = Id {
            local: remote,
            remote: local,
            peer: id as usize,
            ..new(State::Asked)
        };
        fabric.cm.ids.insert(asked, other);
        fabric.bind(asked, adapter);
        fabric.write_addrs(asked);
        fabric.cm_id("rdma_connect", id)?.peer = asked;
        let request = Waiting {
            about: listener,
            id: asked,
            kind: RDMA_CM_EVENT_CONNECT_REQUEST,
            status: 0,
            private_data: if iwarp { said } else { padded(&said, REQUEST) },
            reads: [param.initiator_depth, param.responder_resources],
        };
        fabric.send_event(id as usize, request);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes a valid struct.
    let param = unsafe { *param };
    let done = call("rdma_accept").and_then(|mut fabric| {
        let said = private_data(&param, ANSWER)?;
        let state = fabric.cm_id("rdma_accept", id)?;
        if state.state != State::Asked {
            return Err(libc::EINVAL);
        }
        (state.state, state.qp_num) = (State::Answered, param.qp_num);
        let (peer, iwarp) = (state.peer, state.iwarp);
        let reads = [param.initiator_depth, param.responder_resources];
        fabric.check_srq("rdma_accept", &param);
        let own = id as usize;
        if iwarp {
            for side in [peer, own] {
                fabric.connect_iwarp(side)?;
                fabric.cm.set(side, State::Established);
            }
            let established = RDMA_CM_EVENT_ESTABLISHED;
            fabric.send(own, peer, established, 0, said, reads);
            match fabric.cm.loses_words {
                true => fabric.cm.untold.push(own),
                false => fabric.cm.tell(own, established, 0),
            }
            return Ok(());
        }
        fabric.cm.set(peer, State::Responded);
        let said = padded(&said, ANSWER);
        fabric.send(own, peer, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, said, reads);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    let done = call("rdma_establish").and_then(|mut fabric| {
        let state = fabric.cm_id("rdma_establish", id)?;
        if state.state != State::Responded {
            return Err(libc::EINVAL);
        }
        state.state = State::Established;
        let peer = state.peer;
        if !fabric.cm.loses_words {
            fabric.cm.set(peer, State::Established);
            let none = Vec::new();
            fabric.send(
                id as usize,
                peer,
                RDMA_CM_EVENT_ESTABLISHED,
                0,
                none,
                [0; 2],
            );
        }
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    let done = call("rdma_notify").and_then(|mut fabric| {
        let state = fabric.cm_id("rdma_notify", id)?;
        if event != IBV_EVENT_COMM_EST || state.state != State::Answered {
            return Err(libc::EINVAL);
        }
        state.state = State::Established;
        fabric.cm.tell(id as usize, RDMA_CM_EVENT_ESTABLISHED, 0);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let done = call("rdma_reject").and_then(|mut fabric| {
        let param = rdma_conn_param {
            private_data: data,
            private_data_len: len,
            ..rdma_conn_param::default()
        };
        let said = private_data(&param, REFUSAL)?;
        if fabric.cm_id("rdma_reject", id)?.state != State::Asked {
            return Err(libc::EINVAL);
        }
        fabric.leave(id as usize, &said);
        Ok(())
    });
    minus_one(done)
}

/// Fills in the attributes that the manager knows, including some that the caller must overwrite.
unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    to: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's struct. Its state says which attributes the caller wants.
    let wanted = unsafe { *to };
    let done = call("rdma_init_qp_attr").and_then(|mut fabric| {
        let state = fabric.cm_id("rdma_init_qp_attr", id)?;
        let known = [
            State::Asked,
            State::Answered,
            State::Responded,
            State::Established,
        ];
        // The kernel itself connects the queue pairs of iWARP.
        if state.iwarp || !known.contains(&state.state) {
            return Err(libc::EINVAL);
        }
        let (psn, local, remote, peer) = (state.psn, state.local, state.remote, state.peer);
        let peer = fabric.cm.ids.get(&peer).ok_or(libc::EINVAL)?;
        let (dest_qp_num, rq_psn) = (peer.qp_num, peer.psn);
        let (adapter, index) = fabric.adapter_of(local.ip()).ok_or(libc::EINVAL)?;
        let mut attr = ibv_qp_attr {
            qp_state: wanted.qp_state,
            path_mtu: fabric.adapters[adapter].description.mtu,
            dest_qp_num,
            rq_psn,
            sq_psn: psn,
            timeout: 19,
            retry_cnt: 7,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = gid_of(remote.ip());
        attr.ah_attr.grh.sgid_index = index as u8;
        attr.ah_attr.grh.hop_limit = 64;
        fill(to, attr);
        fill(mask, 0);
        Ok(())
    });
    minus_one(done)
}

unsafe extern "C" fn get_cm_event(
    _channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    wait_while_held(lock(), "rdma_get_cm_event");
    let got = call("rdma_get_cm_event").and_then(|mut fabric| {
        let event = fabric.cm.events.pop_front().ok_or(libc::EAGAIN)?;
        CHANNEL.1.unring();
        let Waiting { about, id, .. } = event;
        if let Some(about) = fabric.cm.ids.get_mut(&about) {
            about.unacked += 1;
        }
        let said = event.private_data;
        let conn = rdma_conn_param {
            private_data: said.as_ptr().cast(),
            private_data_len: said.len() as u8,
            responder_resources: event.reads[0],
            initiator_depth: event.reads[1],
            ..rdma_conn_param::default()
        };
        let is_request = event.kind == RDMA_CM_EVENT_CONNECT_REQUEST;
        let made = fabric.make(rdma_cm_event {
            id: id as *mut rdma_cm_id,
            listen_id: if is_request { about } else { 0 } as *mut rdma_cm_id,
            event: event.kind,
            status: event.status,
            conn,
        });
        fabric.cm.read.insert(made as usize, (about, said));
        Ok(made)
    });
    minus_one(got.map(|event| fill(to, event)))
}

unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let mut fabric = lock();
    let Some((about, _)) = fabric.cm.read.remove(&(event as usize)) else {
        return minus_one(Err(fabric.unknown("rdma_ack_cm_event", event as usize)));
    };
    if let Some(about) = fabric.cm.ids.get_mut(&about) {
        about.unacked -= 1;
    }
    BELL.notify_all();
    0
}

/// Returns the adapter's address that a connection by rdma_cm uses.
pub(super) fn ip_of(fabric: &Fabric, adapter: usize) -> IpAddr {
    let gids = fabric.adapters[adapter].description.gids.iter().flatten();
    let routed = gids.filter(|gid| gid.kind == IBV_GID_TYPE_ROCE_V2);
    let ips = routed.filter_map(|gid| std::net::Ipv6Addr::from(gid.raw).to_ipv4_mapped());
    ips.map(IpAddr::from).next().expect("an IPv4 address")
}
