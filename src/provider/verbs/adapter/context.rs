//! An open adapter, and its protection domains, which its queues share.
//!
//! Each object of libibverbs on an adapter holds the context, so that the adapter is closed last.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::super::ffi::ops::Ops;
use super::super::ffi::*;
use super::traits::{Port, Traits, check, check_ptr};
use super::wake::wake;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Process, lock, log_later};

pub(in super::super) struct Context {
    pub(in super::super) table: Table,
    pub(in super::super) ops: Ops,
    /// The name that opened the device: the adapter's name, and the port, if one was given
    /// (`mlx5_0/2`).
    pub(in super::super) name: String,
    pub(in super::super) traits: Traits,
    raw: NonNull<ibv_context>,
    /// The protection domain of Rdma. Peers reach the memory that is exported in it.
    pd: NonNull<ibv_pd>,
    /// The protection domain of copies, which no peer reaches. A loopback write needs a remote
    /// permission on its destination. In `pd` that permission would open private memory to every
    /// peer that guesses a key.
    copies: Option<NonNull<ibv_pd>>,
    /// True if `pd` and the device belong to the application.
    lent: bool,
    dead: AtomicBool,
    removed: Mutex<bool>,
    told: Condvar,
    /// The process that opened the device.
    process: Process,
    /// The number of Jobs that were finished inline, or by queues that are gone. `Core` counts the
    /// others.
    pub(in super::super) jobs: AtomicU64,
}

// SAFETY: libibverbs may be called from any thread on any object; each is destroyed once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// How long the kernel may take to destroy the objects on a device that was removed.
const TEARDOWN: Duration = Duration::from_secs(2);

/// A device that is being opened. Dropping it closes the device, if a later step has failed.
struct Opened<'a>(&'a Table, NonNull<ibv_context>);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: no other code has the device.
        let _ = unsafe { (self.0.close_device)(self.1.as_ptr()) };
    }
}

impl Context {
    /// Opens a device of the list, with the port that `name` gives.
    ///
    /// # Safety
    ///
    /// `device` is in the list of this table, which is not freed yet.
    pub(in super::super) unsafe fn open(
        table: &Table,
        device: *mut ibv_device,
        name: &str,
    ) -> Result<Context> {
        // SAFETY: as the caller promises.
        let raw = check_ptr("ibv_open_device", unsafe { (table.open_device)(device) })?;
        let opened = Opened(table, raw);
        // SAFETY: the device was just opened.
        let traits = unsafe { Traits::ask(table, device, raw.as_ptr(), name) }?;
        // SAFETY: as above.
        let pd = check_ptr("ibv_alloc_pd", unsafe { (table.alloc_pd)(raw.as_ptr()) })?;
        // SAFETY: device and domain are this function's to give away.
        let context = unsafe { Context::new(table, raw, pd, name, traits, false) };
        // From here on the Context releases the device and the domain. If there is none, `opened`
        // closes the device.
        if context.is_ok() {
            std::mem::forget(opened);
        } else {
            // SAFETY: no object uses the domain.
            unsafe { (table.dealloc_pd)(pd.as_ptr()) };
        }
        context
    }

    /// Makes a context over a domain of the application.
    ///
    /// # Safety
    ///
    /// The domain belongs to this table's library, and stays alive until the Context is dropped.
    pub(in super::super) unsafe fn lent(table: &Table, pd: NonNull<ibv_pd>) -> Result<Context> {
        // SAFETY: as the caller promises.
        let raw = check_ptr("ibv_pd::context", unsafe { (*pd.as_ptr()).context })?;
        // SAFETY: as above.
        let device = unsafe { (*raw.as_ptr()).device };
        // SAFETY: as above.
        let name = unsafe { device_name(table, device) };
        // SAFETY: as above.
        let traits = unsafe { Traits::ask(table, device, raw.as_ptr(), &name) }?;
        // The watcher adds memory to shared receive queues. It must not hold objects on the
        // application's device, which it might destroy after the device was closed.
        let traits = traits.without_shared_receives();
        // SAFETY: as above. The context does not release the device and the domain.
        unsafe { Context::new(table, raw, pd, &name, traits, true) }
    }

    /// # Safety
    ///
    /// Device and domain are alive. If `lent` is true, they stay alive until this is dropped.
    /// Otherwise no other code has them.
    unsafe fn new(
        table: &Table,
        raw: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        name: &str,
        traits: Traits,
        lent: bool,
    ) -> Result<Context> {
        // SAFETY: as the caller promises. The functions are in the context since it was opened.
        let ops = Ops::of(unsafe { &(*raw.as_ptr()).ops }).ok_or_else(|| {
            let text = format!("the driver of {name} lacks functions of the data path");
            Error::new(ErrorKind::NotSupported, None, text)
        })?;
        let copies = match traits.caps().dma {
            // SAFETY: as the caller promises.
            Some(_) => Some(check_ptr("ibv_alloc_pd", unsafe {
                (table.alloc_pd)(raw.as_ptr())
            })?),
            None => None,
        };
        Ok(Context {
            table: *table,
            ops,
            name: name.to_owned(),
            traits,
            raw,
            pd,
            copies,
            lent,
            dead: AtomicBool::new(false),
            removed: Mutex::new(false),
            told: Condvar::new(),
            process: Process::current(),
            jobs: AtomicU64::new(0),
        })
    }

    pub(in super::super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(in super::super) fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    pub(in super::super) fn copies_pd(&self) -> Option<*mut ibv_pd> {
        self.copies.map(NonNull::as_ptr)
    }

    /// Returns the descriptor of the device's events, or `None` if the application reads them.
    pub(in super::super) fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.lent {
            return None;
        }
        // SAFETY: the context is open as long as `self`.
        let fd = unsafe { (*self.raw()).async_fd };
        // SAFETY: the descriptor is open as long as the context.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    pub(in super::super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Returns true if a call that destroys an object has failed because the device is gone,
    /// together with the object.
    ///
    /// The kernel returns EIO for all commands once a device is removed. It then destroys all
    /// objects on the device, and closes the descriptor of the device's events last. A driver may
    /// also return EIO for an object that stays.
    fn is_gone(&self, answer: i32) -> bool {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the device is open; the attributes are this function's.
        let mut ask = || unsafe { (self.table.query_device)(self.raw(), &mut attr) };
        if answer != libc::EIO || self.lent || ask() != libc::EIO {
            return false;
        }
        let removed = lock(&self.removed);
        let waited = self
            .told
            .wait_timeout_while(removed, TEARDOWN, |removed| !*removed);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records that the kernel has destroyed all objects on the device.
    pub(in super::super) fn set_removed(&self) {
        *lock(&self.removed) = true;
        self.told.notify_all();
    }

    pub(in super::super) fn is_removed(&self) -> bool {
        *lock(&self.removed)
    }

    /// Destroys an object of the device. Returns false if the object may still exist. In a child of
    /// fork this does nothing and returns true, since the object belongs to the parent.
    pub(in super::super) fn destroy(
        &self,
        call: &'static str,
        destroy: impl FnOnce() -> i32,
    ) -> bool {
        if self.is_forked() {
            return true;
        }
        let answer = destroy();
        let gone = answer == 0 || self.is_gone(answer);
        if !gone {
            let (device, stays) = (self.name.clone(), "failed: what it is about stays");
            log_later(move || {
                tracing::error!(target: "tokio_doca::verbs", device, answer, "{call} {stays}");
            });
        }
        gone
    }

    /// Returns true if this is a copy in a child of fork(2). The parent owns what the copy would
    /// destroy.
    pub(in super::super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    pub(in super::super) fn set_dead(&self) {
        self.dead.store(true, Relaxed);
    }

    /// Returns true if device and domain belong to the application.
    pub(in super::super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Returns the present state of the port.
    pub(in super::super) fn port(&self) -> Result<Port> {
        // SAFETY: the device is open.
        unsafe { Port::ask(&self.table, self.raw(), self.traits.port) }
    }

    /// Returns the port's address (GID) at `index` of its table. Returns an error if there is none.
    pub(in super::super) fn gid(&self, index: u32) -> Result<ibv_gid_entry> {
        let mut entry = ibv_gid_entry::default();
        let port = u32::from(self.traits.port);
        // SAFETY: the device is open. The entry is this function's, and has the size that is
        // passed.
        check("ibv_query_gid_ex", unsafe {
            (self.table.query_gid_ex)(
                self.raw(),
                port,
                index,
                &mut entry,
                0,
                size_of::<ibv_gid_entry>(),
            )
        })?;
        Ok(entry)
    }
}

pub(in super::super) fn bytes(entry: &ibv_gid_entry) -> [u8; 16] {
    // SAFETY: both forms of a GID are 16 bytes, any of which are initialized.
    unsafe { entry.gid.raw }
}

/// Returns the name of a device.
///
/// # Safety
///
/// The device belongs to this table's library, and is alive.
pub(in super::super) unsafe fn device_name(table: &Table, device: *mut ibv_device) -> String {
    // SAFETY: as the caller promises.
    let name = unsafe { (table.get_device_name)(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the device has this text, which ends with 0.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        wake();
        let mut failed = false;
        for pd in [self.copies.take(), (!self.lent).then_some(self.pd)] {
            let pd = pd.map_or(ptr::null_mut(), NonNull::as_ptr);
            if !pd.is_null() {
                // SAFETY: all objects in the domain held this, and are gone.
                failed |= unsafe { (self.table.dealloc_pd)(pd) } != 0;
            }
        }
        if !self.lent {
            // SAFETY: as above.
            failed |= unsafe { (self.table.close_device)(self.raw()) } != 0;
        }
        if failed && !self.is_dead() {
            let (device, text) = (self.name.clone(), "the adapter was not closed cleanly");
            log_later(move || tracing::error!(target: "tokio_doca::verbs", device, "{text}"));
        }
    }
}
