//! The calls of the control path: devices, protection domains and memory.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_doca::verbs::ffi::Table;
use tokio_doca::verbs::ffi::*;

use super::fabric::{BELL, Bell, Context, Errno, Fabric, Mr, call, lock, wait_while_held};
use super::{cm, completion, events, pair, shared};

pub(super) const TABLE: Table = Table {
    get_device_list,
    free_device_list,
    get_device_name,
    open_device,
    close_device,
    query_device,
    query_port,
    query_gid_ex,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel: completion::create_comp_channel,
    destroy_comp_channel: completion::destroy_comp_channel,
    create_cq: completion::create_cq,
    resize_cq: completion::resize_cq,
    destroy_cq: completion::destroy_cq,
    get_cq_event: events::get_cq_event,
    ack_cq_events: events::ack_cq_events,
    create_qp: pair::create_qp,
    modify_qp: pair::modify_qp,
    destroy_qp: pair::destroy_qp,
    get_async_event: events::get_async_event,
    ack_async_event: events::ack_async_event,
    create_srq: Some(shared::create_srq),
    modify_srq: Some(shared::modify_srq),
    destroy_srq: Some(shared::destroy_srq),
    cm: cm::table,
};

pub(super) fn set_errno(errno: Errno) {
    // SAFETY: the function has no arguments.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the location belongs to this thread.
    unsafe { *place = errno };
}

/// Returns the object, or null with `errno` set.
pub(super) fn object<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// Returns 0, or the `errno` as a value.
pub(super) fn number(result: Result<(), Errno>) -> c_int {
    result.err().unwrap_or(0)
}

/// Returns 0, or -1 with `errno` set.
pub(super) fn minus_one(result: Result<(), Errno>) -> c_int {
    result.err().map_or(0, |errno| {
        set_errno(errno);
        -1
    })
}

/// Writes `value` to the place that the caller has provided.
pub(super) fn fill<T>(place: *mut T, value: T) {
    assert!(!place.is_null(), "no place for an answer");
    // SAFETY: the man page of each function requires a valid pointer from the caller.
    unsafe { place.write(value) };
}

/// Returns a key, or a part of one, that no other object has.
pub(super) fn fresh() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x11);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    assert!(text.len() < N, "{text} is too long");
    let mut all = [0; N];
    for (to, from) in all.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    all
}

/// Returns the struct that an entry of a device list points to.
pub(super) fn device_head(description: &super::Description) -> ibv_device {
    ibv_device {
        node_type: if description.is_iwarp() {
            IBV_NODE_RNIC
        } else {
            IBV_NODE_CA
        },
        transport_type: description.transport,
        name: text(&description.name),
        dev_name: text("uverbs0"),
        dev_path: text("/sys/class/infiniband_verbs/no-such-device"),
        ibdev_path: text(&description.ibdev_path),
        ..ibv_device::default()
    }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let list = call("ibv_get_device_list").map(|mut fabric| {
        let devices = fabric.adapters.iter().filter(|adapter| !adapter.removed);
        let mut list: Vec<_> = devices
            .map(|adapter| adapter.device as *mut ibv_device)
            .collect();
        if !count.is_null() {
            fill(count, list.len() as c_int);
        }
        list.push(ptr::null_mut());
        // Freed by `free_device_list`.
        let list: *mut *mut ibv_device = Box::leak(list.into_boxed_slice()).as_mut_ptr();
        fabric.lists.insert(list as usize);
        list
    });
    object(list)
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let mut fabric = lock();
    if !fabric.lists.remove(&(list as usize)) {
        fabric.unknown("ibv_free_device_list", list as usize);
        return;
    }
    let mut len = 1;
    let at = |index: usize| {
        // SAFETY: up to the null at its end.
        let place = unsafe { list.add(index) };
        // SAFETY: as above.
        unsafe { *place }
    };
    while !at(len - 1).is_null() {
        len += 1;
    }
    // SAFETY: leaked by `get_device_list` with this length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) });
    BELL.notify_all();
}

/// Returns the adapter of a device. A device that is neither open nor in a list is a sin.
fn adapter_of(fabric: &mut Fabric, name: &str, device: usize) -> Result<usize, Errno> {
    let found = fabric
        .adapters
        .iter()
        .position(|adapter| adapter.device == device);
    let Some(adapter) = found else {
        return Err(fabric.unknown(name, device));
    };
    let open = fabric
        .contexts
        .values()
        .any(|context| context.adapter == adapter);
    if fabric.lists.is_empty() && !open {
        return Err(fabric.unknown(name, device));
    }
    Ok(adapter)
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    let mut fabric = lock();
    if adapter_of(&mut fabric, "ibv_get_device_name", device as usize).is_err() {
        return ptr::null();
    }
    // SAFETY: a device that was found above; its name lives as long as the device.
    unsafe { &raw const (*device).name }.cast()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let opened = call("ibv_open_device").and_then(|mut fabric| {
        let adapter = adapter_of(&mut fabric, "ibv_open_device", device as usize)?;
        if fabric.adapters[adapter].removed {
            return Err(libc::EIO);
        }
        let bell = match fabric.adapters[adapter].description.removed_in_silence {
            true => Bell::silent(),
            false => Bell::new(),
        };
        let mut head = ibv_context {
            device,
            cmd_fd: -1,
            async_fd: bell.fd(),
            num_comp_vectors: fabric.adapters[adapter].description.comp_vectors,
            ..ibv_context::default()
        };
        head.ops.poll_cq = Some(completion::poll_cq);
        head.ops.req_notify_cq = Some(events::req_notify_cq);
        head.ops.post_send = Some(pair::post_send);
        head.ops.post_recv = Some(pair::post_recv);
        head.ops.post_srq_recv = Some(shared::post_srq_recv);
        let context = fabric.make(head);
        let state = Context {
            adapter,
            bell,
            events: VecDeque::new(),
            unacked: 0,
        };
        fabric.contexts.insert(context as usize, state);
        Ok(context)
    });
    object(opened)
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let closed = call("ibv_close_device").and_then(|mut fabric| {
        let address = context as usize;
        fabric.context("ibv_close_device", address)?;
        let left = [
            fabric.pds.values().any(|&context| context == address),
            fabric.cqs.values().any(|cq| cq.context == address),
            fabric
                .channels
                .values()
                .any(|channel| channel.context == address),
        ];
        if left.contains(&true) {
            fabric.sin("ibv_close_device before what was made on it was destroyed");
            return Err(libc::EBUSY);
        }
        fabric.contexts.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    minus_one(closed)
}

unsafe extern "C" fn query_device(context: *mut ibv_context, to: *mut ibv_device_attr) -> c_int {
    let queried = call("ibv_query_device").and_then(|mut fabric| {
        let adapter = fabric.adapter("ibv_query_device", context as usize)?;
        let description = &fabric.adapters[adapter].description;
        let attr = ibv_device_attr {
            fw_ver: text("1.0"),
            max_mr_size: u64::MAX,
            page_size_cap: 4096,
            max_qp: 1 << 16,
            max_qp_wr: description.max_qp_wr as c_int,
            max_sge: description.max_sge as c_int,
            max_sge_rd: description.max_sge_rd as c_int,
            max_cq: 1 << 16,
            max_cqe: description.max_cqe,
            max_mr: 1 << 16,
            max_pd: 1 << 16,
            max_qp_rd_atom: description.max_rd_atomic.into(),
            max_qp_init_rd_atom: description.max_rd_atomic.into(),
            max_res_rd_atom: 1 << 16,
            atomic_cap: if description.atomics {
                IBV_ATOMIC_HCA
            } else {
                IBV_ATOMIC_NONE
            },
            max_srq: (description.max_srq_wr > 0).into(),
            max_srq_wr: description.max_srq_wr as c_int,
            max_srq_sge: (description.max_srq_wr > 0).into(),
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            phys_port_cnt: 1 + u8::from(description.second.is_some()),
            ..ibv_device_attr::default()
        };
        fill(to, attr);
        Ok(())
    });
    number(queried)
}

/// Queries a port as the exported symbol does: fills the struct up to the end of its first version,
/// and leaves the rest as the caller set it.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    to: *mut ibv_port_attr,
) -> c_int {
    let queried = call("ibv_query_port").and_then(|mut fabric| {
        let adapter = fabric.adapter("ibv_query_port", context as usize)?;
        let adapter = &fabric.adapters[adapter];
        let description = adapter.description.port(port).ok_or(libc::EINVAL)?;
        let ethernet = description.link == super::Link::Ethernet;
        let state = if adapter.ports_down[usize::from(port) - 1] {
            IBV_PORT_DOWN
        } else {
            IBV_PORT_ACTIVE
        };
        let attr = ibv_port_attr {
            state,
            max_mtu: IBV_MTU_4096,
            active_mtu: description.mtu,
            gid_tbl_len: description.gids.len() as c_int,
            max_msg_sz: description.max_msg_sz,
            pkey_tbl_len: description.pkeys,
            lid: description.lid(),
            sm_lid: description.lid(),
            link_layer: if ethernet {
                IBV_LINK_LAYER_ETHERNET
            } else {
                IBV_LINK_LAYER_INFINIBAND
            },
            ..ibv_port_attr::default()
        };
        assert!(!to.is_null(), "no place for an answer");
        let first_version = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
        let from = (&raw const attr).cast::<u8>();
        // SAFETY: the caller's struct has at least these bytes.
        unsafe { ptr::copy_nonoverlapping(from, to.cast(), first_version) };
        Ok(())
    });
    number(queried)
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let queried = call("ibv_query_gid_ex").and_then(|mut fabric| {
        let adapter = fabric.adapter("ibv_query_gid_ex", context as usize)?;
        let description = fabric.adapters[adapter].description.port(port as u8);
        let description = description.ok_or(libc::EINVAL)?;
        let is_in_table = (index as usize) < description.gids.len();
        if flags != 0 || size != size_of::<ibv_gid_entry>() || !is_in_table {
            return Err(libc::EINVAL);
        }
        let gid = description.gid(index as usize).ok_or(libc::ENODATA)?;
        let entry = ibv_gid_entry {
            gid: ibv_gid { raw: gid.raw },
            gid_index: index,
            port_num: port,
            gid_type: gid.kind,
            ndev_ifindex: 0,
        };
        fill(to, entry);
        Ok(())
    });
    number(queried)
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let made = call("ibv_alloc_pd").and_then(|mut fabric| {
        fabric.adapter("ibv_alloc_pd", context as usize)?;
        let head = ibv_pd {
            context,
            handle: fresh(),
        };
        let pd = fabric.make(head);
        fabric.pds.insert(pd as usize, context as usize);
        Ok(pd)
    });
    object(made)
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let done = call("ibv_dealloc_pd").and_then(|mut fabric| {
        let address = pd as usize;
        let Some(&context) = fabric.pds.get(&address) else {
            return Err(fabric.unknown("ibv_dealloc_pd", address));
        };
        let used = fabric.mrs.values().any(|mr| mr.pd == address)
            || fabric.qps.values().any(|qp| qp.pd == address)
            || fabric.srqs.values().any(|srq| srq.pd == address);
        if used {
            fabric.sin("ibv_dealloc_pd before what belongs to it");
            return Err(libc::EBUSY);
        }
        fabric.give_up(context, address, |fabric| &mut fabric.pds)?;
        fabric.pds.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let made = call("ibv_reg_mr").and_then(|mut fabric| {
        let Some(&context) = fabric.pds.get(&(pd as usize)) else {
            return Err(fabric.unknown("ibv_reg_mr", pd as usize));
        };
        fabric.adapter("ibv_reg_mr", context)?;
        let has = |flag: ibv_access_flags| access as c_uint & flag.0 != 0;
        let peers_write = has(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
            || has(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC);
        let may_not = peers_write && !has(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE);
        if length == 0 || may_not || (addr as usize).checked_add(length).is_none() {
            return Err(libc::EINVAL);
        }
        let number = fresh();
        // The two keys differ, since nothing promises that they are equal.
        let (lkey, rkey) = (number << 8 | 1, number << 8 | 0x80);
        let mr = fabric.make(ibv_mr {
            context: context as *mut ibv_context,
            pd,
            addr,
            length,
            handle: number,
            lkey,
            rkey,
        });
        let state = Mr {
            pd: pd as usize,
            addr: addr as u64,
            len: length as u64,
            access: access as u32,
            lkey,
            rkey,
        };
        fabric.mrs.insert(mr as usize, state);
        fabric.by_lkey.insert(lkey, mr as usize);
        fabric.by_rkey.insert(rkey, mr as usize);
        wait_while_held(fabric, "ibv_reg_mr");
        Ok(mr)
    });
    object(made)
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let done = call("ibv_dereg_mr").and_then(|mut fabric| {
        let address = mr as usize;
        let Some(state) = fabric.mrs.get(&address) else {
            return Err(fabric.unknown("ibv_dereg_mr", address));
        };
        let (lkey, rkey, pd) = (state.lkey, state.rkey, state.pd);
        // Messages may arrive in this memory at any time.
        let names = |srq: &shared::Srq| {
            let mut sges = srq.receives.iter().flat_map(|it| &it.sges);
            sges.any(|sge| sge.lkey == lkey)
        };
        if fabric.srqs.values().any(names) {
            fabric.sin("ibv_dereg_mr of memory that a shared receive queue has");
        }
        fabric.by_lkey.remove(&lkey);
        fabric.by_rkey.remove(&rkey);
        let context = fabric.pds.get(&pd).copied().unwrap_or(0);
        fabric.give_up(context, address, |fabric| &mut fabric.mrs)?;
        fabric.mrs.remove(&address);
        BELL.notify_all();
        Ok(())
    });
    number(done)
}
