//! The C side: types of `ibverbs-sys`, which nothing else names, and the functions of libibverbs,
//! found when the process runs.
//!
//! The library is opened by `dlopen(3)`, so that a program with this feature starts where there is
//! none. What works on queues at speed (`ibv_post_send`, `ibv_poll_cq`, ..) has no symbol: the
//! header calls it through `ibv_context.ops`, and so does `ops`.
#![expect(unsafe_code, reason = "opens a library and calls what it finds there")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

pub use ibverbs_sys::{
    IBV_ATOMIC_NONE, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_WQ_FATAL, IBV_GID_TYPE_IB,
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, ibv_access_flags, ibv_async_event, ibv_comp_channel, ibv_context,
    ibv_context_ops, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_flags,
    ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

/// `struct ibv_wc`: the one of `ibverbs-sys` has private fields, so that a fake adapter could not
/// fill it.
///
/// If `status` is not `IBV_WC_SUCCESS`, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid
/// (ibv_poll_cq(3)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // the names of the C header
pub struct Wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big-endian.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

const _: () = {
    assert!(size_of::<Wc>() == size_of::<ibverbs_sys::ibv_wc>());
    assert!(align_of::<Wc>() == align_of::<ibverbs_sys::ibv_wc>());
};

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal, ($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of libibverbs that the provider calls, as their man pages have them.
        #[derive(Clone, Copy)]
        pub struct Table {
            $($(#[$doc])* #[allow(missing_docs)] pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Table {
            /// Opens the library of the system, and finds all functions.
            pub(super) fn load() -> Result<Table, Missing> {
                let library = Library::open()?;
                Ok(Table {
                    $($name: {
                        let found = library.find($symbol)?;
                        // SAFETY: the symbol of libibverbs.so.1, whose ABI is stable, has this
                        // signature (verbs.h).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                })
            }
        }
    };
}

table! {
    get_device_list = c"ibv_get_device_list", (*mut c_int) -> *mut *mut ibv_device;
    free_device_list = c"ibv_free_device_list", (*mut *mut ibv_device);
    get_device_name = c"ibv_get_device_name", (*mut ibv_device) -> *const c_char;
    open_device = c"ibv_open_device", (*mut ibv_device) -> *mut ibv_context;
    close_device = c"ibv_close_device", (*mut ibv_context) -> c_int;
    query_device = c"ibv_query_device", (*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// The symbol fills the struct as far as its first version went; the header's inline function
    /// asks for more.
    query_port = c"ibv_query_port", (*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid_ex = c"_ibv_query_gid_ex", (*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    alloc_pd = c"ibv_alloc_pd", (*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = c"ibv_dealloc_pd", (*mut ibv_pd) -> c_int;
    reg_mr = c"ibv_reg_mr", (*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr = c"ibv_dereg_mr", (*mut ibv_mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel", (*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = c"ibv_destroy_comp_channel", (*mut ibv_comp_channel) -> c_int;
    create_cq = c"ibv_create_cq",
        (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    resize_cq = c"ibv_resize_cq", (*mut ibv_cq, c_int) -> c_int;
    destroy_cq = c"ibv_destroy_cq", (*mut ibv_cq) -> c_int;
    get_cq_event = c"ibv_get_cq_event",
        (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events", (*mut ibv_cq, c_uint);
    create_qp = c"ibv_create_qp", (*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = c"ibv_modify_qp", (*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp", (*mut ibv_qp) -> c_int;
    get_async_event = c"ibv_get_async_event", (*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = c"ibv_ack_async_event", (*mut ibv_async_event);
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// What works on queues, found through their context.
pub(super) mod ops {
    use super::*;

    type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut Wc) -> c_int;

    /// The functions of an open device.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Ops {
        poll_cq: PollCq,
        req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
        post_send:
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
        post_recv:
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    }

    impl Ops {
        /// `None` if the driver has not all of them.
        pub(in super::super) fn of(ops: &ibv_context_ops) -> Option<Ops> {
            let poll_cq = ops.poll_cq?;
            Some(Ops {
                // SAFETY: `Wc` is `ibv_wc`, field by field.
                poll_cq: unsafe {
                    std::mem::transmute::<
                        unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibverbs_sys::ibv_wc) -> c_int,
                        PollCq,
                    >(poll_cq)
                },
                req_notify_cq: ops.req_notify_cq?,
                post_send: ops.post_send?,
                post_recv: ops.post_recv?,
            })
        }

        /// # Safety
        ///
        /// As ibv_poll_cq(3): the queue is alive, and there is room for `max`.
        #[inline(always)]
        pub(in super::super) unsafe fn poll_cq(
            &self,
            cq: *mut ibv_cq,
            max: c_int,
            to: *mut Wc,
        ) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.poll_cq)(cq, max, to) }
        }

        /// # Safety
        ///
        /// As ibv_req_notify_cq(3): the queue is alive.
        #[inline(always)]
        pub(in super::super) unsafe fn req_notify_cq(&self, cq: *mut ibv_cq) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.req_notify_cq)(cq, 0) }
        }

        /// # Safety
        ///
        /// As ibv_post_send(3): the queue pair and the list are alive, and so is the memory that it
        /// names until it completes.
        #[inline(always)]
        pub(in super::super) unsafe fn post_send(
            &self,
            qp: *mut ibv_qp,
            first: *mut ibv_send_wr,
            bad: *mut *mut ibv_send_wr,
        ) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.post_send)(qp, first, bad) }
        }

        /// # Safety
        ///
        /// As ibv_post_recv(3): as for `post_send`.
        #[inline(always)]
        pub(in super::super) unsafe fn post_recv(
            &self,
            qp: *mut ibv_qp,
            first: *mut ibv_recv_wr,
            bad: *mut *mut ibv_recv_wr,
        ) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.post_recv)(qp, first, bad) }
        }
    }
}

/// Why there is no libibverbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Library(String),
    Symbol(&'static CStr),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Library(why) => write!(
                f,
                "libibverbs.so.1 cannot be opened ({why}): install rdma-core (Debian: libibverbs1 and ibverbs-providers)"
            ),
            Missing::Symbol(name) => write!(
                f,
                "libibverbs.so.1 has no {}: install rdma-core 32 or newer",
                name.to_string_lossy()
            ),
        }
    }
}

/// The library of the system. It is never closed: its threads and tables may outlive what opened
/// it.
struct Library(*mut c_void);

impl Library {
    fn open() -> Result<Library, Missing> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: a name that ends with 0; the library's constructors are those of the system's own
        // libibverbs.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
        if handle.is_null() {
            return Err(Missing::Library(dl_error()));
        }
        Ok(Library(handle))
    }

    fn find(&self, symbol: &'static CStr) -> Result<*mut c_void, Missing> {
        // SAFETY: a handle that is never closed, and a name that ends with 0.
        let found = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        if found.is_null() {
            return Err(Missing::Symbol(symbol));
        }
        Ok(found)
    }
}

fn dl_error() -> String {
    // SAFETY: no arguments; the text is this thread's until its next call of the dl functions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null: a text that ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the provider relies on beyond what bindgen has checked: the sizes of rdma-core's stable
    /// ABI on machines of 64 bits.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_are_laid_out_as_the_abi_has_them() {
        assert_eq!(size_of::<ibv_send_wr>(), 128);
        assert_eq!(size_of::<ibv_recv_wr>(), 32);
        assert_eq!(size_of::<ibv_sge>(), 16);
        assert_eq!(size_of::<Wc>(), 48);
        assert_eq!(size_of::<ibv_context>(), 328);
        assert_eq!(size_of::<ibv_qp_attr>(), 144);
        assert_eq!(size_of::<ibv_gid_entry>(), 32);
        let offsets = [
            std::mem::offset_of!(Wc, status),
            std::mem::offset_of!(Wc, vendor_err),
            std::mem::offset_of!(Wc, byte_len),
            std::mem::offset_of!(Wc, imm_data),
            std::mem::offset_of!(Wc, qp_num),
            std::mem::offset_of!(Wc, wc_flags),
            std::mem::offset_of!(Wc, dlid_path_bits),
        ];
        assert_eq!(offsets, [8, 16, 20, 24, 28, 36, 45]);
        assert_eq!(std::mem::offset_of!(ibv_qp, qp_num), 52);
        assert_eq!(std::mem::offset_of!(ibv_context, async_fd), 268);
    }

    #[test]
    fn what_is_missing_says_the_way_out() {
        let library = Missing::Library("no such file".to_owned()).to_string();
        assert!(library.contains("no such file") && library.contains("rdma-core"));
        let symbol = Missing::Symbol(c"_ibv_query_gid_ex").to_string();
        assert!(symbol.contains("_ibv_query_gid_ex") && symbol.contains("rdma-core 32"));
    }
}
