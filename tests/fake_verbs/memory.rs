//! Memory regions. A key of ours carries both of a region's: nothing promises that lkey and rkey are one.

use std::sync::Arc;

use tokio_doca::device::{Region, Registration};
use tokio_doca::{Error, Result};

use super::provider::Context;
use super::table::*;

/// Deregisters.
struct Guard {
    context: Arc<Context>,
    mr: *mut ibv_mr,
}

// SAFETY: libibverbs may be called from any thread, and the pointer is this guard's alone.
unsafe impl Send for Guard {}
// SAFETY: as above.
unsafe impl Sync for Guard {}

pub(super) fn register(context: &Arc<Context>, region: &Region) -> Result<Registration> {
    let access = match region.access.local_writable() {
        true => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        false => 0,
    };
    let reg_mr = context.table.reg_mr;
    // SAFETY: the range is valid until the Registration is dropped, and so is the domain, which the guard holds.
    let mr = unsafe { reg_mr(context.pd, region.addr.as_ptr().cast(), region.len, access) };
    if mr.is_null() {
        let text = format!("ibv_reg_mr of {} bytes", region.len);
        return Err(Error::os("register", text, std::io::Error::last_os_error()));
    }
    // SAFETY: a region that was just made.
    let ibv_mr { lkey, rkey, .. } = unsafe { mr.read() };
    let guard = Guard {
        context: Arc::clone(context),
        mr,
    };
    let key = u64::from(rkey) << 32 | u64::from(lkey);
    Ok(Registration::new(key, Some(Box::new(guard))))
}

pub(super) fn lkey(key: u64) -> u32 {
    key as u32
}

pub(super) fn rkey(key: u64) -> u32 {
    (key >> 32) as u32
}

impl Drop for Guard {
    fn drop(&mut self) {
        let dereg_mr = self.context.table.dereg_mr;
        // SAFETY: the region is this guard's, and nothing that could use it is in flight (`Registration`).
        let errno = unsafe { dereg_mr(self.mr) };
        assert_eq!(errno, 0, "ibv_dereg_mr");
    }
}
