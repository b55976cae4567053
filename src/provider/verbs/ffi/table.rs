//! The functions of libibverbs, found when the process runs.
//!
//! The library is opened by `dlopen(3)`, so that a program starts where there is none. What works
//! on queues at speed (`ibv_post_send`, `ibv_poll_cq`, ..) has no symbol: the header calls it
//! through `ibv_context.ops`, and so does `ops`.
#![expect(unsafe_code, reason = "opens a library and calls what it finds there")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

use super::abi::*;

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal, ($($arg:ty),*) $(-> $ret:ty)?;)*
     ; $($may:ident = $of_may:literal, ($($may_arg:ty),*) -> $may_ret:ty;)*) => {
        /// The functions of libibverbs that the provider calls, as their man pages have them. One
        /// that is `None` is not in the library: the device lacks what it is for.
        #[derive(Clone, Copy)]
        pub struct Table {
            $($(#[$doc])* #[allow(missing_docs)] pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(#[allow(missing_docs)] pub $may: Option<unsafe extern "C" fn($($may_arg),*) -> $may_ret>,)*
        }

        impl Table {
            /// Opens the library of the system, and finds its functions.
            pub(in super::super) fn load() -> Result<Table, Missing> {
                let library = Library::open()?;
                Ok(Table {
                    $($name: {
                        let found = library.find($symbol)?;
                        // SAFETY: the symbol of libibverbs.so.1, whose ABI is stable, has this
                        // signature (verbs.h).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                    $($may: library.find($of_may).ok().map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($may_arg),*) -> $may_ret>(found) }
                    }),)*
                })
            }
        }

        /// Of each function its name, its arguments and what it returns, for `headers`.
        #[cfg(test)]
        pub(super) const PROTOTYPES: &[(&CStr, &[&str], &[&str])] =
            &[$(($symbol, &[$(stringify!($arg)),*], &[$(stringify!($ret))?]),)*
              $(($of_may, &[$(stringify!($may_arg)),*], &[stringify!($may_ret)]),)*];
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
    // Of these any may be missing.
    ;
    create_srq = c"ibv_create_srq", (*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq = c"ibv_modify_srq", (*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    destroy_srq = c"ibv_destroy_srq", (*mut ibv_srq) -> c_int;
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// What works on queues, found through their context.
pub(in super::super) mod ops {
    use super::*;

    /// The functions of an open device.
    #[derive(Clone, Copy)]
    pub(in super::super::super) struct Ops {
        poll_cq: PollCq,
        req_notify_cq: ReqNotifyCq,
        post_send: PostSend,
        post_recv: PostRecv,
        post_srq_recv: Option<PostSrqRecv>,
    }

    impl Ops {
        /// `None` if the driver has not all of them; shared receive queues may be missing.
        pub(in super::super::super) fn of(ops: &ibv_context_ops) -> Option<Ops> {
            Some(Ops {
                poll_cq: ops.poll_cq?,
                req_notify_cq: ops.req_notify_cq?,
                post_send: ops.post_send?,
                post_recv: ops.post_recv?,
                post_srq_recv: ops.post_srq_recv,
            })
        }

        /// # Safety
        ///
        /// As ibv_poll_cq(3): the queue is alive, and there is room for `max`.
        #[inline(always)]
        pub(in super::super::super) unsafe fn poll_cq(
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
        pub(in super::super::super) unsafe fn req_notify_cq(&self, cq: *mut ibv_cq) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.req_notify_cq)(cq, 0) }
        }

        /// # Safety
        ///
        /// As ibv_post_send(3): the queue pair and the list are alive, and so is the memory that it
        /// names until it completes.
        #[inline(always)]
        pub(in super::super::super) unsafe fn post_send(
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
        pub(in super::super::super) unsafe fn post_recv(
            &self,
            qp: *mut ibv_qp,
            first: *mut ibv_recv_wr,
            bad: *mut *mut ibv_recv_wr,
        ) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { (self.post_recv)(qp, first, bad) }
        }

        /// Returns `EOPNOTSUPP`, and blames the first, if the driver does not have it.
        ///
        /// # Safety
        ///
        /// As ibv_post_srq_recv(3): as for `post_send`.
        pub(in super::super::super) unsafe fn post_srq_recv(
            &self,
            srq: *mut ibv_srq,
            first: *mut ibv_recv_wr,
            bad: &mut *mut ibv_recv_wr,
        ) -> c_int {
            let Some(post_srq_recv) = self.post_srq_recv else {
                *bad = first;
                return libc::EOPNOTSUPP;
            };
            // SAFETY: as the caller promises.
            unsafe { post_srq_recv(srq, first, bad) }
        }
    }
}

/// Why there is no libibverbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Missing {
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

    #[test]
    fn what_is_missing_says_the_way_out() {
        let library = Missing::Library("no such file".to_owned()).to_string();
        assert!(library.contains("no such file") && library.contains("rdma-core"));
        let symbol = Missing::Symbol(c"_ibv_query_gid_ex").to_string();
        assert!(symbol.contains("_ibv_query_gid_ex") && symbol.contains("rdma-core 32"));
    }
}
