//! The adapters of the system, and those that are open.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

use super::adapter::{Context, adapter_and_port, device_name, sysfs};
use super::device::VerbsDevice;
use super::ffi::*;
use super::watcher;
use crate::device::{DevInfo, Device, Liveness, Provider, WeakDevice};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log};

/// The provider of adapters, over libibverbs.
///
/// It is one of the built-in providers. [`Device::list`](crate::Device::list) shows its devices,
/// and [`Device::open`](crate::Device::open) opens them by the names that `ibv_devices` shows
/// (`mlx5_0`, `rxe0`). If there are no devices, [`Verbs::unavailable`] returns the reason.
///
/// A device uses one port of its adapter. The adapter's name opens it with the first port that is
/// up, or with the first port if none is up; `mlx5_0/2` opens it with its second port. An adapter
/// with several ports is listed by its name, and then once for each port (`mlx5_0/1`, `mlx5_0/2`).
/// Each of these names is a separate device, whose memory and contexts cannot be used with the
/// others.
///
/// ```
/// use tokio_doca::device::contract::Provider;
/// use tokio_doca::verbs::Verbs;
///
/// let verbs = Verbs::system();
/// match verbs.unavailable() {
///     Some(why) => println!("no adapters: {why}"),
///     None => println!("{} adapters", verbs.devices()?.len()),
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
pub struct Verbs {
    table: OnceLock<std::result::Result<Table, String>>,
    open: Mutex<Open>,
}

/// The devices that are open, by name, with the number of ports of their adapter.
type Open = HashMap<String, (WeakDevice, u8)>;

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").finish_non_exhaustive()
    }
}

/// The list of adapters that libibverbs returns. Dropping it frees the list.
struct List<'a> {
    table: &'a Table,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl Verbs {
    /// Returns a provider over the system's library, which is opened at the first use.
    pub fn system() -> Verbs {
        Verbs {
            table: OnceLock::new(),
            open: Mutex::default(),
        }
    }

    /// Returns a provider that calls the functions of `table` instead of the system's library.
    ///
    /// # Safety
    ///
    /// The functions do what the man pages of libibverbs say.
    #[doc(hidden)]
    pub unsafe fn over(table: Table) -> Verbs {
        Verbs {
            table: OnceLock::from(Ok(table)),
            open: Mutex::default(),
        }
    }

    /// Returns why there are no devices: there is no library, the kernel has no support, the
    /// process has no right to use them, or none is plugged in. Returns `None` if there are
    /// devices.
    pub fn unavailable(&self) -> Option<Error> {
        let none = |text| Some(Error::new(ErrorKind::NotFound, None, text));
        let list = match self.table().and_then(List::get) {
            Ok(list) => list,
            Err(why) => return none(why),
        };
        match list.count {
            0 => none("there is no RDMA device (rdma link shows them)".to_owned()),
            _ => None,
        }
    }

    /// Returns the adapters that the system has now.
    fn list(&self) -> Result<List<'_>> {
        let list = self.table().and_then(List::get);
        list.map_err(|why| Error::new(ErrorKind::NotFound, None, why))
    }

    /// Returns the information about the device with this name, and the number of its adapter's
    /// ports. Returns `None` if the device cannot be opened, so that other devices are still
    /// listed.
    fn describe(&self, list: &List<'_>, name: &str) -> Option<(DevInfo, u8)> {
        if let Some((open, ports)) = is_open(&lock(&self.open), name) {
            return Some((open.info().clone(), ports));
        }
        match list.open(name) {
            Ok(context) => context.map(|context| (info(&context), context.traits.ports)),
            Err(error) => {
                log(|| {
                    let text = "an adapter is left out";
                    tracing::warn!(target: "tokio_doca::verbs", device = name, %error, "{text}");
                });
                None
            }
        }
    }

    fn table(&self) -> std::result::Result<&Table, String> {
        let load = || Table::load().map_err(|missing| missing.to_string());
        self.table.get_or_init(load).as_ref().map_err(String::clone)
    }

    /// Returns a device over the application's protection domain.
    ///
    /// # Safety
    ///
    /// As for [`Device::from_pd`].
    #[doc(hidden)]
    pub unsafe fn device_from_pd(&self, pd: NonNull<ibv_pd>) -> Result<Device> {
        let table = self
            .table()
            .map_err(|why| Error::new(ErrorKind::NotFound, None, why))?;
        if let Some(why) = why_not_here() {
            return Err(Error::new(ErrorKind::NotSupported, None, why));
        }
        // SAFETY: as the caller promises.
        let context = unsafe { Context::lent(table, pd) }?;
        open(context)
    }
}

/// Returns the device of this name if it is open already. A device that was removed is not
/// returned, since another one may have replaced it.
fn is_open(all: &Open, name: &str) -> Option<(Device, u8)> {
    let (device, ports) = all.get(name)?;
    let device = device.upgrade()?;
    (device.liveness() == Liveness::Alive).then_some((device, *ports))
}

/// Returns the information about a device with this context.
fn info(context: &Context) -> DevInfo {
    let name = context.name.as_str();
    let (addr, function) = sysfs::pci_address(adapter_and_port(name).0);
    DevInfo::new("verbs", name, addr, function, context.traits.caps())
}

fn open(context: Context) -> Result<Device> {
    let info = info(&context);
    let context = Arc::new(context);
    let watched = Arc::default();
    watcher::watch(&context, &watched)?;
    Ok(Device::from_adapter(Arc::new(VerbsDevice::new(
        info, watched, context,
    ))))
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn devices(&self) -> Result<Vec<DevInfo>> {
        let list = match self.table().and_then(List::get) {
            Ok(list) => list,
            Err(why) => {
                log(|| tracing::debug!(target: "tokio_doca::verbs", why, "no adapters"));
                return Ok(Vec::new());
            }
        };
        let mut infos = Vec::new();
        for (_, name) in list.devices() {
            let Some((first, ports)) = self.describe(&list, &name) else {
                continue;
            };
            infos.push(first);
            if ports > 1 {
                let names = (1..=ports).map(|port| format!("{name}/{port}"));
                infos.extend(names.filter_map(|name| Some(self.describe(&list, &name)?.0)));
            }
        }
        Ok(infos)
    }

    fn find(&self, name: &str) -> Result<Option<DevInfo>> {
        let devices = self.devices()?;
        let named = |name: &str| devices.iter().find(|info| info.is_named(name)).cloned();
        // If an adapter has only one port, that port is not listed, and the adapter's name opens
        // it.
        let only_port = || {
            let adapter = named(adapter_and_port(name).0)?;
            let context = self.list().ok()?.open(name).ok()??;
            (context.traits.ports == 1).then_some(adapter)
        };
        Ok(named(name).or_else(only_port))
    }

    fn open(&self, info: &DevInfo) -> Result<Device> {
        let mut all = lock(&self.open);
        if let Some((device, _)) = is_open(&all, info.name()) {
            return Ok(device);
        }
        let Some(context) = self.list()?.open(info.name())? else {
            let text = format!("there is no adapter {} any more", info.name());
            return Err(Error::new(ErrorKind::NotFound, None, text));
        };
        let ports = context.traits.ports;
        let device = open(context)?;
        all.insert(info.name().to_owned(), (device.downgrade(), ports));
        Ok(device)
    }

    fn why_not(&self, name: &str) -> Option<String> {
        if let Some(why) = self.unavailable() {
            return Some(format!("there is no adapter, because {why}"));
        }
        let opened = self.list().and_then(|list| list.open(name));
        opened.err().map(|error| error.to_string())
    }
}

impl<'a> List<'a> {
    fn get(table: &'a Table) -> std::result::Result<List<'a>, String> {
        if let Some(why) = why_not_here() {
            return Err(why.to_owned());
        }
        let mut count = 0;
        // SAFETY: the count is this function's.
        let first = unsafe { (table.get_device_list)(&mut count) };
        match NonNull::new(first) {
            Some(first) => Ok(List {
                table,
                first,
                count: usize::try_from(count).unwrap_or(0),
            }),
            None => Err(why(&io::Error::last_os_error())),
        }
    }

    /// Returns the adapters, with their names.
    fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> + '_ {
        (0..self.count).map(|at| {
            // SAFETY: the list has `count` entries.
            let place = unsafe { self.first.add(at) };
            // SAFETY: as above.
            let device = unsafe { place.read() };
            // SAFETY: the device is in the list.
            (device, unsafe { device_name(self.table, device) })
        })
    }

    /// Opens an adapter with the port that `name` gives. Returns `None` if there is no such
    /// adapter.
    fn open(&self, name: &str) -> Result<Option<Context>> {
        let (adapter, _) = adapter_and_port(name);
        let Some((device, _)) = self.devices().find(|(_, name)| name == adapter) else {
            return Ok(None);
        };
        // SAFETY: the device is in the list, which is alive.
        let context = unsafe { Context::open(self.table, device, name) };
        context.map(Some).map_err(|error| {
            let text = format!("{name} cannot be opened: {error}");
            Error::new(ErrorKind::Initialization, None, text)
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list belongs to this table, and is freed once. Devices that were opened stay.
        unsafe { (self.table.free_device_list)(self.first.as_ptr()) };
    }
}

/// Returns the reason if the environment forbids all use of adapters.
fn why_not_here() -> Option<&'static str> {
    std::env::var_os("RDMAV_ALLOW_DISASSOC_DESTROY")?;
    Some(
        "RDMAV_ALLOW_DISASSOC_DESTROY is set, with which libibverbs calls destroyed what a removed adapter may still use: unset it",
    )
}

/// Returns the meaning of an error of `ibv_get_device_list`.
fn why(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => {
            "this kernel has no RDMA, or its modules are not loaded (modprobe ib_uverbs)"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use RDMA devices (/dev/infiniband/uverbs*)"
        }
        Some(libc::ENOENT) => {
            "there is no /dev/infiniband: load ib_uverbs, or pass the devices into the container"
        }
        _ => "ibv_get_device_list(3) has the meaning",
    };
    format!("the kernel lists no RDMA devices: {error}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_the_way_out() {
        for (errno, word) in [
            (libc::ENOSYS, "modprobe"),
            (libc::EPERM, "uverbs"),
            (libc::ENOENT, "container"),
            (libc::EIO, "ibv_get_device_list"),
        ] {
            let text = why(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(word), "{text}");
        }
    }
}
