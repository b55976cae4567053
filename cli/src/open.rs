//! Which device a command uses.

use tokio_doca::Device;

use crate::failure::{Result, cannot};

/// Opens the device of this name, or the first that copies.
pub(crate) fn device(name: Option<&str>) -> Result<Device> {
    Ok(match name {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    })
}

/// A runtime of this thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Ok(runtime.map_err(cannot("start", "the runtime".as_ref()))?)
}
