//! Events of completion queues, and asynchronous events. Each is read and acknowledged.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::MutexGuard;

use tokio_doca::verbs::ffi::*;

use super::control::{fill, minus_one, number};
use super::fabric::{BELL, Element, Errno, Event, Fabric, call, lock};

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let done = call("ibv_req_notify_cq").and_then(|mut fabric| {
        let Some(state) = fabric.cqs.get_mut(&(cq as usize)) else {
            return Err(fabric.unknown("ibv_req_notify_cq", cq as usize));
        };
        if solicited_only != 0 {
            return Err(libc::EINVAL);
        }
        state.armed = true;
        Ok(())
    });
    number(done)
}

/// Waits until the descriptor is readable, or returns `EAGAIN` if it does not block. The lock is
/// not held meanwhile.
fn wait_readable(fd: c_int) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let timeout = if flags & libc::O_NONBLOCK != 0 { 0 } else { -1 };
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: passes one valid struct.
    match unsafe { libc::poll(&raw mut poll, 1, timeout) } {
        1 if poll.revents & libc::POLLIN != 0 => Ok(()),
        _ => Err(libc::EAGAIN),
    }
}

/// Takes the next event. Waits for one if the descriptor is a blocking one.
fn next<T>(
    fd: c_int,
    mut take: impl FnMut(&mut Fabric) -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    loop {
        let taken = take(&mut lock())?;
        match taken {
            Some(event) => return Ok(event),
            // Another thread may take the event first.
            None => wait_readable(fd)?,
        }
    }
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let address = channel as usize;
    let got = call("ibv_get_cq_event").and_then(|mut fabric: MutexGuard<'_, Fabric>| {
        let Some(fd) = fabric
            .channels
            .get(&address)
            .map(|channel| channel.bell.fd())
        else {
            return Err(fabric.unknown("ibv_get_cq_event", address));
        };
        drop(fabric);
        next(fd, |fabric| {
            let channel = fabric.channels.get_mut(&address).ok_or(libc::EBADF)?;
            let event = channel.events.pop_front();
            if let Some(cq) = event {
                channel.bell.unring();
                fabric
                    .cqs
                    .get_mut(&cq)
                    .expect("its events go with it")
                    .unacked += 1;
            }
            Ok(event)
        })
    });
    minus_one(got.map(|event| {
        let event = event as *mut ibv_cq;
        fill(cq, event);
        // SAFETY: an object of the fabric, which lives until the test ends.
        fill(cq_context, unsafe { (*event).cq_context });
    }))
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let mut fabric = lock();
    let Some(state) = fabric.cqs.get_mut(&(cq as usize)) else {
        fabric.unknown("ibv_ack_cq_events", cq as usize);
        return;
    };
    match state.unacked.checked_sub(count as usize) {
        Some(left) => state.unacked = left,
        None => fabric.sin("ibv_ack_cq_events of more than were read"),
    }
    BELL.notify_all();
}

pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    to: *mut ibv_async_event,
) -> c_int {
    let address = context as usize;
    let got = call("ibv_get_async_event").and_then(|mut fabric| {
        let fd = fabric.context("ibv_get_async_event", address)?.bell.fd();
        drop(fabric);
        next(fd, |fabric| {
            let context = fabric.contexts.get_mut(&address).ok_or(libc::EBADF)?;
            let event = context.events.pop_front();
            let adapter = &fabric.adapters[context.adapter];
            if event.is_none() && adapter.removed && !adapter.description.removed_in_silence {
                return Err(libc::EIO);
            }
            if let Some(event) = event {
                context.bell.unring();
                context.unacked += 1;
                fabric.count_async(event, true);
            }
            Ok(event)
        })
    });
    minus_one(got.map(|event: Event| {
        let element = match event.element {
            Element::Qp(qp) => ibv_async_event_element {
                qp: qp as *mut ibv_qp,
            },
            Element::Cq(cq) => ibv_async_event_element {
                cq: cq as *mut ibv_cq,
            },
            Element::Srq(srq) => ibv_async_event_element {
                srq: srq as *mut ibv_srq,
            },
            Element::Port(port) => ibv_async_event_element {
                port_num: port.into(),
            },
            Element::Device => ibv_async_event_element { port_num: 1 },
        };
        let event_type = event.kind;
        fill(
            to,
            ibv_async_event {
                element,
                event_type,
            },
        );
    }))
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes a valid struct.
    let event = unsafe { *event };
    let element = match event.event_type {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED
        | IBV_EVENT_COMM_EST => {
            // SAFETY: the event types above carry a queue pair.
            Element::Qp(unsafe { event.element.qp } as usize)
        }
        // SAFETY: this event type carries a shared receive queue.
        IBV_EVENT_SRQ_LIMIT_REACHED => Element::Srq(unsafe { event.element.srq } as usize),
        // SAFETY: this event type carries a completion queue.
        IBV_EVENT_CQ_ERR => Element::Cq(unsafe { event.element.cq } as usize),
        _ => Element::Device,
    };
    let kind = event.event_type;
    lock().count_async(Event { kind, element }, false);
    BELL.notify_all();
}

impl Fabric {
    /// Counts an event that was read or acknowledged: in between its queue cannot be destroyed.
    fn count_async(&mut self, event: Event, read: bool) {
        let counter = match event.element {
            Element::Qp(qp) => self.qps.get_mut(&qp).map(|qp| &mut qp.async_unacked),
            Element::Cq(cq) => self.cqs.get_mut(&cq).map(|cq| &mut cq.async_unacked),
            Element::Srq(srq) => self.srqs.get_mut(&srq).map(|srq| &mut srq.async_unacked),
            Element::Port(_) | Element::Device => return,
        };
        match (counter, read) {
            (Some(counter), true) => *counter += 1,
            (Some(counter), false) if *counter > 0 => *counter -= 1,
            _ => self.sin("ibv_ack_async_event of what was not read"),
        }
    }
}
