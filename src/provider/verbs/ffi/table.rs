//! The functions of libibverbs and librdmacm, which are found when the process runs.
//!
//! `dlopen(3)` opens a library, so that a program also starts without it. The fast functions of
//! queues (`ibv_post_send`, `ibv_poll_cq`, ..) have no symbol: the header calls them through
//! `ibv_context.ops`, and so does `ops`.
#![expect(unsafe_code, reason = "opens a library and calls what it finds there")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use libc::sockaddr;

use super::abi::*;
use super::values::*;

macro_rules! table {
    ($(#[$of_table:meta])* $table:ident of $library:ident as $prototypes:ident;
     $($(#[$doc:meta])* $name:ident = $symbol:literal, ($($arg:ty),*) $(-> $ret:ty)?;)*
     ; $($may:ident = $of_may:literal, ($($may_arg:ty),*) -> $may_ret:ty;)*
     ; $($(#[$of_more:meta])* $more:ident: $more_type:ty = $value:expr;)*) => {
        $(#[$of_table])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $($(#[$doc])* #[allow(missing_docs)] pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(#[allow(missing_docs)] pub $may: Option<unsafe extern "C" fn($($may_arg),*) -> $may_ret>,)*
            $($(#[$of_more])* pub $more: $more_type,)*
        }

        impl $table {
            /// Opens the library of the system, and finds its functions.
            pub(in super::super) fn load() -> Result<$table, Missing> {
                let library = Library::open($library)?;
                Ok($table {
                    $($name: {
                        let found = library.find($symbol)?;
                        // SAFETY: the symbol of the library, whose ABI is stable, has this
                        // signature (verbs.h, rdma_cma.h).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                    $($may: library.find($of_may).ok().map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($may_arg),*) -> $may_ret>(found) }
                    }),)*
                    $($more: $value,)*
                })
            }
        }

        impl fmt::Debug for $table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($table)).finish_non_exhaustive()
            }
        }

        /// The name, the arguments and the result of each function, for `headers`.
        #[cfg(test)]
        pub(super) const $prototypes: &[(&CStr, &[&str], &[&str])] =
            &[$(($symbol, &[$(stringify!($arg)),*], &[$(stringify!($ret))?]),)*
              $(($of_may, &[$(stringify!($may_arg)),*], &[stringify!($may_ret)]),)*];
    };
}

const VERBS: Names = Names {
    file: c"libibverbs.so.1",
    install: "rdma-core (Debian: libibverbs1 and ibverbs-providers)",
};

const CM: Names = Names {
    file: c"librdmacm.so.1",
    install: "rdma-core's librdmacm (Debian: librdmacm1)",
};

table! {
    /// The functions of libibverbs that the provider calls, with the signatures of their man pages.
    /// A function that is `None` is not in the library, and the device lacks the feature.
    Table of VERBS as PROTOTYPES;
    get_device_list = c"ibv_get_device_list", (*mut c_int) -> *mut *mut ibv_device;
    free_device_list = c"ibv_free_device_list", (*mut *mut ibv_device);
    get_device_name = c"ibv_get_device_name", (*mut ibv_device) -> *const c_char;
    open_device = c"ibv_open_device", (*mut ibv_device) -> *mut ibv_context;
    close_device = c"ibv_close_device", (*mut ibv_context) -> c_int;
    query_device = c"ibv_query_device", (*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// The symbol fills only the fields of the first version of the struct. The inline function of
    /// the header requests more.
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
    // Any of the following functions may be missing.
    ;
    create_srq = c"ibv_create_srq", (*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq = c"ibv_modify_srq", (*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    destroy_srq = c"ibv_destroy_srq", (*mut ibv_srq) -> c_int;
    ;
    /// Finds the functions of librdmacm, or returns why there are none.
    cm: fn() -> Result<&'static CmTable, String> = CmTable::system;
}

table! {
    /// The functions of librdmacm that the provider calls, with the signatures of their man pages.
    CmTable of CM as CM_PROTOTYPES;
    create_event_channel = c"rdma_create_event_channel", () -> *mut rdma_event_channel;
    create_id = c"rdma_create_id",
        (*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space) -> c_int;
    destroy_id = c"rdma_destroy_id", (*mut rdma_cm_id) -> c_int;
    bind_addr = c"rdma_bind_addr", (*mut rdma_cm_id, *mut sockaddr) -> c_int;
    resolve_addr = c"rdma_resolve_addr",
        (*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    resolve_route = c"rdma_resolve_route", (*mut rdma_cm_id, c_int) -> c_int;
    init_qp_attr = c"rdma_init_qp_attr", (*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    listen = c"rdma_listen", (*mut rdma_cm_id, c_int) -> c_int;
    connect = c"rdma_connect", (*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    establish = c"rdma_establish", (*mut rdma_cm_id) -> c_int;
    accept = c"rdma_accept", (*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    reject = c"rdma_reject", (*mut rdma_cm_id, *const c_void, u8) -> c_int;
    notify = c"rdma_notify", (*mut rdma_cm_id, ibv_event_type) -> c_int;
    get_cm_event = c"rdma_get_cm_event",
        (*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    ack_cm_event = c"rdma_ack_cm_event", (*mut rdma_cm_event) -> c_int;
    ;
    ;
}

impl CmTable {
    /// Returns the functions of the system's library, which is opened once.
    fn system() -> Result<&'static CmTable, String> {
        static TABLE: OnceLock<Result<CmTable, String>> = OnceLock::new();
        let load = || CmTable::load().map_err(|missing| missing.to_string());
        TABLE.get_or_init(load).as_ref().map_err(String::clone)
    }
}

/// The functions that work on queues, which are found through the context.
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
        /// Returns the functions of a device. Returns `None` if the driver lacks any of them,
        /// except `post_srq_recv`.
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
        /// As ibv_poll_cq(3): the queue is alive, and `to` has capacity for `max` completions.
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
        /// As ibv_post_send(3): the queue pair and the list are alive, and the memory that the list
        /// names is alive until the requests complete.
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

        /// Posts receives to a shared queue. If the driver does not have the function, returns
        /// `EOPNOTSUPP`, with the first receive as the bad one.
        ///
        /// # Safety
        ///
        /// As ibv_post_srq_recv(3): what `post_send` requires, with `srq` in place of the queue
        /// pair.
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

/// The names of a library, and of the package that installs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Names {
    file: &'static CStr,
    install: &'static str,
}

/// The reason why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Missing {
    Library(Names, String),
    Symbol(Names, &'static CStr),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Library(Names { file, install }, why) => write!(
                f,
                "{} cannot be opened ({why}): install {install}",
                file.to_string_lossy()
            ),
            Missing::Symbol(Names { file, .. }, name) => write!(
                f,
                "{} has no {}: install rdma-core 32 or newer",
                file.to_string_lossy(),
                name.to_string_lossy()
            ),
        }
    }
}

/// A library of the system. It is never closed, since its threads and tables may outlive the code
/// that opened it.
struct Library(Names, *mut c_void);

impl Library {
    fn open(names: Names) -> Result<Library, Missing> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the name ends with 0, and the library's constructors are those of the system's
        // own rdma-core.
        let handle = unsafe { libc::dlopen(names.file.as_ptr(), flags) };
        if handle.is_null() {
            return Err(Missing::Library(names, dl_error()));
        }
        Ok(Library(names, handle))
    }

    fn find(&self, symbol: &'static CStr) -> Result<*mut c_void, Missing> {
        // SAFETY: the handle is never closed, and the name ends with 0.
        let found = unsafe { libc::dlsym(self.1, symbol.as_ptr()) };
        if found.is_null() {
            return Err(Missing::Symbol(self.0, symbol));
        }
        Ok(found)
    }
}

fn dl_error() -> String {
    // SAFETY: there are no arguments. The text belongs to this thread until its next call of the dl
    // functions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the text is not null, and ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_the_way_out() {
        let library = Missing::Library(VERBS, "no such file".to_owned()).to_string();
        assert!(library.contains("no such file") && library.contains("rdma-core"));
        let symbol = Missing::Symbol(VERBS, c"_ibv_query_gid_ex").to_string();
        assert!(symbol.contains("_ibv_query_gid_ex") && symbol.contains("rdma-core 32"));
    }
}
