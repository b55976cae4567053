//! Completion channels and completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_doca::verbs::ffi::*;

use super::control::{fresh, number, object};
use super::fabric::{
    BELL, Bell, Channel, Cq, CqHead, Element, Errno, Fabric, POLLS, POLLS_ARE_PLANNED, call, lock,
    waiting,
};

pub(super) unsafe extern "C" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let made = call("ibv_create_comp_channel").and_then(|mut fabric| {
        fabric.adapter("ibv_create_comp_channel", context as usize)?;
        let bell = Bell::new();
        let channel = fabric.make(ibv_comp_channel {
            context,
            fd: bell.fd(),
        });
        let state = Channel {
            context: context as usize,
            bell,
            events: VecDeque::new(),
            cqs: 0,
        };
        fabric.channels.insert(channel as usize, state);
        Ok(channel)
    });
    object(made)
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let done = call("ibv_destroy_comp_channel").and_then(|mut fabric| {
        let Some(state) = fabric.channels.get(&(channel as usize)) else {
            return Err(fabric.unknown("ibv_destroy_comp_channel", channel as usize));
        };
        if state.cqs > 0 {
            fabric.sin("ibv_destroy_comp_channel before its completion queues");
            return Err(libc::EBUSY);
        }
        // Destroying a channel only closes its descriptor, so it succeeds even if the device is
        // gone.
        fabric.channels.remove(&(channel as usize));
        BELL.notify_all();
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let made = call("ibv_create_cq").and_then(|mut fabric| {
        let adapter = fabric.adapter("ibv_create_cq", context as usize)?;
        let description = &fabric.adapters[adapter].description;
        let fits = 0 < cqe && cqe <= description.max_cqe;
        if !fits || !(0..description.comp_vectors).contains(&comp_vector) {
            return Err(libc::EINVAL);
        }
        if !channel.is_null() {
            let of_context = |channel: &&mut Channel| channel.context == context as usize;
            match fabric
                .channels
                .get_mut(&(channel as usize))
                .filter(of_context)
            {
                Some(channel) => channel.cqs += 1,
                None => return Err(fabric.unknown("ibv_create_cq", channel as usize)),
            }
        }
        let head = ibv_cq {
            context,
            channel,
            cq_context,
            handle: fresh(),
            cqe,
        };
        let cq = fabric.make(CqHead {
            head,
            waiting: AtomicUsize::new(0),
        });
        let state = Cq {
            context: context as usize,
            channel: channel as usize,
            cqe: cqe as usize,
            comp_vector,
            entries: VecDeque::new(),
            armed: false,
            dead: false,
            unacked: 0,
            async_unacked: 0,
            qps: 0,
        };
        fabric.cqs.insert(cq as usize, state);
        Ok(cq.cast())
    });
    object(made)
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let done = call("ibv_resize_cq").and_then(|mut fabric| {
        let address = cq as usize;
        let Some(context) = fabric.cqs.get(&address).map(|cq| cq.context) else {
            return Err(fabric.unknown("ibv_resize_cq", address));
        };
        let adapter = fabric.adapter("ibv_resize_cq", context)?;
        let description = &fabric.adapters[adapter].description;
        if !description.resizes {
            return Err(libc::EOPNOTSUPP);
        }
        let most = description.max_cqe;
        let state = fabric.cqs.get_mut(&address).expect("just found");
        if cqe <= 0 || cqe > most || (cqe as usize) < state.entries.len() {
            return Err(libc::EINVAL);
        }
        state.cqe = cqe as usize;
        // SAFETY: an object that was found above; only this function writes this field.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let done = call("ibv_destroy_cq").and_then(|mut fabric| {
        let address = cq as usize;
        let Some(state) = fabric.cqs.get(&address) else {
            return Err(fabric.unknown("ibv_destroy_cq", address));
        };
        let (context, channel) = (state.context, state.channel);
        if state.qps > 0 {
            fabric.sin("ibv_destroy_cq before its queue pairs");
            return Err(libc::EBUSY);
        }
        if state.unacked > 0 || state.async_unacked > 0 {
            // The real library would wait here for ever.
            fabric.sin("ibv_destroy_cq with events that were read and not acknowledged");
            return Err(libc::EBUSY);
        }
        fabric.forget_events(context, Element::Cq(address));
        if let Some(channel) = fabric.channels.get_mut(&channel) {
            channel.cqs -= 1;
            let before = channel.events.len();
            channel.events.retain(|&event| event != address);
            (channel.events.len()..before).for_each(|_| channel.bell.unring());
        }
        // Makes later polls of this queue take the lock, where they are detected.
        waiting(address).store(1, Ordering::SeqCst);
        fabric.give_up(context, address, |fabric| &mut fabric.cqs)?;
        fabric.cqs.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    number(done)
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, max: c_int, to: *mut Wc) -> c_int {
    POLLS.fetch_add(1, Ordering::Relaxed);
    if !POLLS_ARE_PLANNED.load(Ordering::Relaxed) {
        let waiting = waiting(cq as usize);
        if waiting.load(Ordering::SeqCst) == 0 {
            return 0;
        }
    }
    let polled = poll(cq as usize, max, to.cast());
    polled.unwrap_or(-1)
}

fn poll(address: usize, max: c_int, to: *mut Wc) -> Result<c_int, Errno> {
    let mut fabric = match POLLS_ARE_PLANNED.load(Ordering::Relaxed) {
        true => call("ibv_poll_cq")?,
        false => lock(),
    };
    let Some(cq) = fabric.cqs.get_mut(&address) else {
        return Err(fabric.unknown("ibv_poll_cq", address));
    };
    if cq.dead || max < 0 {
        return Err(libc::EIO);
    }
    let count = cq.entries.len().min(max as usize);
    let entries: Vec<_> = cq.entries.drain(..count).collect();
    waiting(address).fetch_sub(count, Ordering::SeqCst);
    for (index, entry) in entries.into_iter().enumerate() {
        // SAFETY: the caller's array has `max` elements.
        let place = unsafe { to.add(index) };
        // SAFETY: as above.
        unsafe { place.write(entry.wc) };
        if let Some(srq) = entry
            .place
            .and_then(|place| fabric.srqs.get_mut(&place.srq))
        {
            srq.used -= 1;
            continue;
        }
        let freed = entry
            .place
            .and_then(|place| Some((place, fabric.qps.get_mut(&place.qp)?)));
        if let Some((place, qp)) = freed {
            let freed = match place.is_receive {
                true => &mut qp.receives_freed,
                false => &mut qp.sends_freed,
            };
            *freed = (*freed).max(place.number + 1);
        }
    }
    Ok(count as c_int)
}

impl Fabric {
    /// Drops the completions of a queue pair that is destroyed or reset, unless the adapter keeps
    /// them.
    pub(super) fn drop_completions(
        &mut self,
        qp_address: usize,
        qp_number: u32,
        adapter: usize,
        cqs: [usize; 2],
    ) {
        let keeps = self.adapters[adapter].description.keeps_completions;
        for address in cqs {
            let Some(cq) = self.cqs.get_mut(&address) else {
                continue;
            };
            let own =
                |entry: &super::fabric::Entry| entry.place.filter(|place| place.qp == qp_address);
            for srq in cq.entries.iter().filter_map(own).map(|place| place.srq) {
                if let Some(srq) = self.srqs.get_mut(&srq) {
                    srq.used -= 1;
                }
            }
            if keeps {
                // The adapter keeps these completions, but polling them frees no queue entry any
                // more.
                let kept = cq.entries.iter_mut().filter(|entry| own(entry).is_some());
                kept.for_each(|entry| entry.place = None);
                continue;
            }
            let before = cq.entries.len();
            cq.entries.retain(|entry| entry.wc.qp_num != qp_number);
            if !cq.dead {
                waiting(address).fetch_sub(before - cq.entries.len(), Ordering::SeqCst);
            }
        }
    }
}
