//! The failures that a test plans, and the control of an adapter from outside.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use tokio_doca::verbs::ffi::*;

use super::cm;
use super::describe::Description;
use super::fabric::{BELL, Element, Entry, Errno, Fabric, POLLS_ARE_PLANNED, lock, waiting};
use super::pair::Qp;

/// The calls that set something up, which [`World::fail_any`](super::World::fail_any) counts.
const SET_UP: [&str; 14] = [
    "ibv_get_device_list",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid_ex",
    "ibv_alloc_pd",
    "ibv_reg_mr",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_resize_cq",
    "ibv_create_srq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_req_notify_cq",
];

struct Failure {
    /// The call that fails; `None` for any call in `SET_UP`.
    call: Option<&'static str>,
    /// How many such calls are left until the failure.
    left: u64,
    errno: Errno,
    /// True if all later calls fail too.
    always: bool,
}

#[derive(Default)]
pub(super) struct Plan {
    failures: Vec<Failure>,
    pub(super) fired: Vec<&'static str>,
    /// Planned results: the number of work requests left, the status, and the vendor's code.
    statuses: Vec<(u64, ibv_wc_status, u32)>,
    /// Each event of a completion queue comes twice.
    pub(super) doubled: bool,
    /// Each queue pair that is destroyed takes a receive of its shared queue with it, as if it had
    /// failed in the middle of a message.
    pub(super) loses_receives: bool,
    /// Each new queue pair gets the number of the last one that was destroyed, if there is one.
    pub(super) repeats_numbers: bool,
    /// The number of the queue pair that was destroyed last.
    pub(super) free_number: Option<u32>,
    /// The calls that block. A call is listed once for each `HeldCalls` that holds it.
    pub(super) held: Vec<&'static str>,
}

impl Plan {
    /// Returns the planned error of this call, if there is one.
    pub(super) fn failure(&mut self, call: &'static str) -> Option<Errno> {
        let mut errno = None;
        self.failures.retain_mut(|failure| {
            let counts = match failure.call {
                Some(name) => name == call,
                None => SET_UP.contains(&call),
            };
            if !counts || errno.is_some() {
                return true;
            }
            failure.left = failure.left.saturating_sub(1);
            if failure.left > 0 {
                return true;
            }
            errno = Some(failure.errno);
            failure.always
        });
        if errno.is_some() {
            self.fired.push(call);
        }
        errno
    }

    /// Returns the status with which the next work request ends instead of being carried out.
    pub(super) fn status(&mut self) -> Option<(ibv_wc_status, u32)> {
        let mut status = None;
        self.statuses.retain_mut(|(left, ends, vendor)| {
            *left = left.saturating_sub(1);
            if *left == 0 && status.is_none() {
                status = Some((*ends, *vendor));
                return false;
            }
            true
        });
        status
    }

    fn fail(&mut self, call: Option<&'static str>, nth: u64, errno: Errno, always: bool) {
        if call == Some("ibv_poll_cq") {
            POLLS_ARE_PLANNED.store(true, Ordering::SeqCst);
        }
        self.failures.push(Failure {
            call,
            left: nth,
            errno,
            always,
        });
    }
}

/// Failures of the whole library.
#[derive(Clone, Copy)]
pub struct Faults;

impl Faults {
    /// Makes the `nth` call of this name from now fail. The names are those of the man pages;
    /// `ibv_modify_qp` stands for the transitions up to RTS, `ibv_modify_qp(ERR)` and
    /// `ibv_modify_qp(RESET)` for those to Error and Reset. For `ibv_post_send` and `ibv_post_recv`
    /// each work request counts, except for probes of the peer, which have no bytes.
    /// `ibv_post_send(doorbell)` and `ibv_post_recv(doorbell)` fail after all requests were queued,
    /// and name none of them.
    pub fn fail(self, call: &'static str, nth: u64, errno: c_int) {
        lock().plan.fail(Some(call), nth, errno, false);
    }

    /// Sets whether the ready-to-use messages of connecting sides are lost, so that accepting sides
    /// get no `ESTABLISHED` event.
    pub fn lose_words(self, lost: bool) {
        lock().cm.loses_words = lost;
    }

    /// Delivers the lost ready-to-use messages, each followed by `messages` events of a first
    /// message.
    pub fn find_words(self, messages: usize) {
        lock().find_words(messages);
    }

    /// Delivers the withheld `ESTABLISHED` events to sides that have accepted over iWARP.
    pub fn tell_late(self) {
        lock().tell_late();
    }

    /// Raises the event of a first message at accepting sides that still wait for their peer.
    pub fn messages_come_first(self) {
        lock().messages_come_first();
    }

    /// Raises two events of a first message for each of these queue pairs.
    pub fn messages_came(self, numbers: &[u32]) {
        let mut fabric = lock();
        for number in [numbers, numbers].concat() {
            fabric.message_came(number);
        }
    }

    /// Makes all calls of this name fail from now on.
    pub fn fail_always(self, call: &'static str, errno: c_int) {
        lock().plan.fail(Some(call), 1, errno, true);
    }

    /// Makes the `nth` call from now fail. Only the calls of `SET_UP` count, whatever their names.
    pub fn fail_any(self, nth: u64, errno: c_int) {
        lock().plan.fail(None, nth, errno, false);
    }

    /// Makes the `nth` work request from now that has any bytes complete with this status. Its
    /// queue pair fails too.
    pub fn end_with(self, nth: u64, status: ibv_wc_status, vendor: u32) {
        lock().plan.statuses.push((nth, status, vendor));
    }

    /// Sets whether each event of a completion queue comes twice.
    pub fn double_events(self, doubled: bool) {
        lock().plan.doubled = doubled;
    }

    /// From now on each queue pair that is destroyed takes a receive of its shared queue with it,
    /// as if it had failed in the middle of a message.
    pub fn lose_receives(self) {
        lock().plan.loses_receives = true;
    }

    /// From now on a new queue pair gets the number of the last one that was destroyed.
    pub fn repeat_numbers(self) {
        lock().plan.repeats_numbers = true;
    }

    /// Blocks calls of this name until the guard is dropped. `ibv_create_qp`, `ibv_destroy_qp` and
    /// `ibv_reg_mr` block at their end; `ibv_destroy_qp(first)`, `ibv_modify_qp(RTR)`,
    /// `rdma_connect` and `rdma_get_cm_event` block before they do anything.
    pub fn hold_calls(self, call: &'static str) -> HeldCalls {
        lock().plan.held.push(call);
        HeldCalls(call)
    }

    /// Cancels all planned failures. Returns the calls that have failed as planned.
    pub fn clear(self) -> Vec<&'static str> {
        POLLS_ARE_PLANNED.store(false, Ordering::SeqCst);
        std::mem::take(&mut lock().plan).fired
    }
}

/// A guard: the calls of this name block until it is dropped.
#[must_use]
pub struct HeldCalls(&'static str);

impl Drop for HeldCalls {
    fn drop(&mut self) {
        let mut fabric = lock();
        let held = &mut fabric.plan.held;
        let at = held.iter().position(|call| *call == self.0);
        held.remove(at.expect("it is held once for each of these"));
        BELL.notify_all();
    }
}

/// A handle by which a test controls one adapter.
#[derive(Clone, Copy, Debug)]
pub struct Fake(pub(super) usize);

/// While this guard exists, the adapter carries out nothing.
#[must_use]
pub struct Hold(usize);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut fabric = lock();
        let adapter = &mut fabric.adapters[self.0];
        adapter.holds -= 1;
        adapter.work.notify_all();
    }
}

impl Fake {
    /// Suspends the adapter: posted requests wait.
    pub fn hold(self) -> Hold {
        lock().adapters[self.0].holds += 1;
        Hold(self.0)
    }

    /// Removes the device, with an event unless the description says otherwise. Each command then
    /// fails with `EIO`, and no more completions arrive.
    pub fn remove(self) {
        let mut fabric = lock();
        fabric.adapters[self.0].removed = true;
        if fabric.adapters[self.0].description.removed_in_silence {
            let contexts = fabric.contexts.values_mut();
            contexts
                .filter(|context| context.adapter == self.0)
                .for_each(|context| context.bell.close());
            BELL.notify_all();
            return;
        }
        fabric.tell(self, IBV_EVENT_DEVICE_FATAL, Element::Device);
        fabric.remove_ids(self.0);
        // From now on the event descriptor is always readable, and reading it fails with `EIO`.
        let contexts = fabric.contexts.values();
        contexts
            .filter(|context| context.adapter == self.0)
            .for_each(|context| context.bell.ring());
        BELL.notify_all();
    }

    /// Returns the address that a connection by rdma_cm uses.
    pub fn ip(self) -> IpAddr {
        cm::ip_of(&lock(), self.0)
    }

    /// Plugs in another device of the same name. (Handles to the removed one stay as they were.)
    pub fn put_back(self) {
        lock().adapters[self.0].removed = false;
    }

    /// Takes the first port's link down or up, with an event. A port that is down passes nothing in
    /// either direction.
    pub fn set_port(self, up: bool) {
        self.set_port_of(1, up);
    }

    /// Takes the link of the port with this number down or up.
    pub fn set_port_of(self, port: u8, up: bool) {
        let mut fabric = lock();
        fabric.adapters[self.0].ports_down[usize::from(port) - 1] = !up;
        let kind = if up {
            IBV_EVENT_PORT_ACTIVE
        } else {
            IBV_EVENT_PORT_ERR
        };
        fabric.tell(self, kind, Element::Port(port));
        fabric.send_delayed();
    }

    /// Changes the port as the subnet manager would: its address or the MTU of its network.
    pub fn change_port(self, change: impl FnOnce(&mut Description)) {
        change(&mut lock().adapters[self.0].description);
    }

    /// Lets all queue pairs of the adapter fail, with an event. If `flushes`, their requests are
    /// flushed; otherwise there are no completions.
    pub fn fail_queue_pairs(self, flushes: bool) {
        let mut fabric = lock();
        for qp in fabric.of_adapter(self).0 {
            if !flushes && let Some(qp) = fabric.qps.get_mut(&qp) {
                qp.sends.clear();
                qp.receives.clear();
            }
            fabric.fail_qp(qp);
            let context = fabric.qps[&qp].context;
            fabric.raise(context, IBV_EVENT_QP_FATAL, Element::Qp(qp));
        }
    }

    /// Takes all queue pairs to the state Error, as the kernel does over iWARP once the peer's TCP
    /// connection ends: all posted requests are flushed, and no event tells the reason.
    pub fn flush_queue_pairs(self) {
        let mut fabric = lock();
        for qp in fabric.of_adapter(self).0 {
            fabric.fail_qp(qp);
        }
    }

    /// Lets all completion queues of the adapter fail, with an event: polling them returns -1 from
    /// now on.
    pub fn fail_completion_queues(self) {
        let mut fabric = lock();
        for cq in fabric.of_adapter(self).1 {
            let state = fabric.cqs.get_mut(&cq).expect("just found");
            state.dead = true;
            let context = state.context;
            waiting(cq).store(1, Ordering::SeqCst);
            fabric.notify(cq, 1);
            fabric.raise(context, IBV_EVENT_CQ_ERR, Element::Cq(cq));
        }
        BELL.notify_all();
    }

    /// Returns the completion vectors of the adapter's completion queues, in order.
    pub fn completion_vectors(self) -> Vec<c_int> {
        let fabric = lock();
        let cqs = fabric.of_adapter(self).1;
        let mut vectors: Vec<_> = cqs.iter().map(|cq| fabric.cqs[cq].comp_vector).collect();
        vectors.sort_unstable();
        vectors
    }

    /// Returns how many receives are posted to the adapter's shared receive queues.
    pub fn shared_receives(self) -> usize {
        let fabric = lock();
        let srqs = fabric.srqs_of(self);
        srqs.iter().map(|srq| fabric.srqs[srq].receives.len()).sum()
    }

    /// Returns the number of the adapter's shared receive queues.
    pub fn shared_queues(self) -> usize {
        lock().srqs_of(self).len()
    }

    /// Adds a completion without a posted request to each of the adapter's completion queues.
    pub fn stray(self, wc: Wc) {
        let mut fabric = lock();
        for cq in fabric.of_adapter(self).1 {
            fabric.complete(cq, Entry { wc, place: None });
        }
    }

    /// Raises `count` events of each completion queue, although nothing has completed.
    pub fn spurious_events(self, count: usize) {
        let mut fabric = lock();
        for cq in fabric.of_adapter(self).1 {
            fabric.notify(cq, count);
        }
    }

    /// Returns the numbers of the adapter's queue pairs.
    pub fn queue_pairs(self) -> Vec<u32> {
        let fabric = lock();
        let numbers = fabric.of_adapter(self).0;
        numbers.iter().map(|qp| fabric.qps[qp].number).collect()
    }

    /// Returns how many work requests and receives are posted to the adapter's queue pairs and not
    /// yet carried out.
    pub fn posted(self) -> (usize, usize) {
        let fabric = lock();
        let qps = fabric.of_adapter(self).0;
        let count = |(sends, receives), qp: &usize| {
            let qp = &fabric.qps[qp];
            (sends + qp.sends.len(), receives + qp.receives.len())
        };
        qps.iter().fold((0, 0), count)
    }

    /// Returns the state and the access flags of each of the adapter's queue pairs.
    pub fn permissions(self) -> Vec<(ibv_qp_state, u32)> {
        let fabric = lock();
        let qps = fabric.of_adapter(self).0;
        let permissions = |qp: &usize| (fabric.qps[qp].state, fabric.qps[qp].access);
        qps.iter().map(permissions).collect()
    }

    /// Returns the attributes of the adapter's connected queue pairs, with the partition key index,
    /// and the maximum number of inline bytes of each.
    pub fn connected(self) -> Vec<(ibv_qp_attr, u32)> {
        let fabric = lock();
        let qps = fabric.of_adapter(self).0;
        let qps = qps.iter().map(|qp| &fabric.qps[qp]);
        let of = |qp: &Qp| {
            let attr = ibv_qp_attr {
                pkey_index: qp.pkey_index,
                ..qp.attr
            };
            (attr, qp.cap.max_inline_data)
        };
        qps.filter(|qp| qp.state == IBV_QPS_RTS).map(of).collect()
    }

    /// Returns all memory regions that are registered with the adapter.
    pub fn regions(self) -> Vec<Region> {
        let fabric = lock();
        let here = |context: &usize| {
            fabric
                .contexts
                .get(context)
                .is_some_and(|c| c.adapter == self.0)
        };
        let all = fabric
            .mrs
            .values()
            .filter(|mr| fabric.pds.get(&mr.pd).is_some_and(here));
        all.map(|mr| Region {
            pd: mr.pd,
            addr: mr.addr,
            len: mr.len,
            access: mr.access,
            rkey: mr.rkey,
        })
        .collect()
    }
}

/// A registered memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The protection domain: equal for regions of the same domain.
    pub pd: usize,
    pub addr: u64,
    pub len: u64,
    pub access: u32,
    pub rkey: u32,
}

impl Fabric {
    /// Returns the queue pairs and the completion queues of an adapter.
    fn of_adapter(&self, fake: Fake) -> (Vec<usize>, Vec<usize>) {
        let here = |context: &usize| {
            self.contexts
                .get(context)
                .is_some_and(|c| c.adapter == fake.0)
        };
        let mut qps: Vec<usize> = (self.qps.iter())
            .filter(|(_, qp)| here(&qp.context))
            .map(|(&address, _)| address)
            .collect();
        qps.sort_by_key(|qp| self.qps[qp].number);
        let cqs = self.cqs.iter().filter(|(_, cq)| here(&cq.context));
        (qps, cqs.map(|(&address, _)| address).collect())
    }

    fn srqs_of(&self, fake: Fake) -> Vec<usize> {
        let here = |context: &usize| {
            self.contexts
                .get(context)
                .is_some_and(|c| c.adapter == fake.0)
        };
        let srqs = self.srqs.iter().filter(|(_, srq)| here(&srq.context));
        srqs.map(|(&address, _)| address).collect()
    }

    /// Raises an event for each context of the adapter.
    fn tell(&mut self, fake: Fake, kind: ibv_event_type, element: Element) {
        let contexts = self.contexts.iter().filter(|(_, c)| c.adapter == fake.0);
        let contexts: Vec<usize> = contexts.map(|(&address, _)| address).collect();
        for context in contexts {
            self.raise(context, kind, element);
        }
    }
}
