//! The provider of software devices, and how it is built.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::device::SoftDevice;
use super::fault::Faults;
use super::limits::Limits;
use super::options::Options;
use super::queue::PIECE;
use super::topology::{CurrentTopology, Topology, View};
use crate::device::{DevInfo, Device, Provider, WeakDevice};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{variable, variables};
use crate::sync::lock;

/// The variables of the environment that the default software device reads.
const VARIABLES: [&str; 6] = [
    "TOKIO_DOCA_SOFT",
    "TOKIO_DOCA_SOFT_CARD",
    "TOKIO_DOCA_SOFT_DEFER",
    "TOKIO_DOCA_SOFT_LIMITS",
    "TOKIO_DOCA_SOFT_FAULTS",
    "TOKIO_DOCA_SOFT_SOCKET",
];

/// The provider of software devices.
///
/// The provider behind [`Device::open`] has the default settings, changed by [environment
/// variables](crate::soft#environment-variables). If the value of one is invalid, or the
/// environment has an unknown `TOKIO_DOCA_SOFT_*` variable, every call that finds devices fails. A
/// provider of your own takes its script of faults in code:
///
/// ```
/// use tokio_doca::ErrorKind;
/// use tokio_doca::soft::{Fault, Soft};
///
/// let soft = Soft::builder().build();
/// let device = soft.open("pf0")?;
/// soft.faults().push(Fault::Error(ErrorKind::IoFailed, 0x88));   // the next job fails
/// # Ok::<(), tokio_doca::Error>(())
/// ```
pub struct Soft {
    options: Options,
    limits: Limits,
    /// The error in the environment variables, if there is one.
    wrong: Option<String>,
    faults: Faults,
    /// Shared with the devices of the provider.
    topology: CurrentTopology,
    /// The devices that are open. Opening such a device again returns the same device.
    open: Mutex<HashMap<String, WeakDevice>>,
}

/// Builds a [`Soft`].
///
/// ```
/// use tokio_doca::soft::{Limits, Soft, View};
///
/// // A DPU with the limits of a BlueField-2, whose jobs never complete within their submission.
/// let soft = Soft::builder()
///     .view(View::Dpu)
///     .limits(Limits::bluefield2())
///     .defer(true)
///     .build();
/// let device = soft.open("p0")?;
/// assert_eq!(device.info().caps().dma.as_ref().map(|dma| dma.max_buf_size), Some(1 << 20));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before build"]
pub struct SoftBuilder {
    options: Options,
    limits: Limits,
    topology: Topology,
}

impl Soft {
    /// Starts to configure a provider.
    pub fn builder() -> SoftBuilder {
        SoftBuilder {
            options: Options {
                inline_limit: PIECE,
                defer: false,
                engine_spin: Duration::from_micros(30),
                engines: 1,
                engine_cpus: None,
                view: View::default(),
            },
            limits: Limits::unlimited(),
            topology: Topology::default(),
        }
    }

    pub(crate) fn from_env() -> Soft {
        let mut soft = Soft::builder().build();
        let mut read = |name: &str, take: &dyn Fn(&mut Soft, &str) -> Result<()>| {
            if let Some(value) = variable(name)
                && let Err(error) = take(&mut soft, &value.to_string_lossy())
            {
                soft.wrong = Some(format!("{name} cannot be taken: {}", error.message()));
            }
        };
        read("TOKIO_DOCA_SOFT", &|soft, view| {
            soft.options.view = view.parse()?;
            Ok(())
        });
        read("TOKIO_DOCA_SOFT_CARD", &|soft, serial| {
            soft.set_topology(Topology::default().with_card(serial)?);
            Ok(())
        });
        read("TOKIO_DOCA_SOFT_DEFER", &|soft, value| {
            soft.options.defer = match value {
                "0" => false,
                "1" => true,
                _ => {
                    let text = format!("\"{value}\" is neither 1 (jobs complete later) nor 0");
                    return Err(Error::new(ErrorKind::InvalidValue, None, text));
                }
            };
            Ok(())
        });
        read("TOKIO_DOCA_SOFT_LIMITS", &|soft, profile| {
            soft.limits = profile.parse()?;
            Ok(())
        });
        if let Err(error) = soft.faults.push_env() {
            soft.wrong = Some(error.message().to_owned());
        }
        let unknown = variables("TOKIO_DOCA_SOFT_");
        if let Some(name) = unknown.iter().find(|name| !VARIABLES.contains(&&***name)) {
            let known = || format!("{name} cannot be taken: there are {}", VARIABLES.join(", "));
            soft.wrong.get_or_insert_with(known);
        }
        soft
    }

    /// Opens a device by name or PCI address.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such device. The message lists the devices, and names the other
    /// [`View`] if that has the device.
    pub fn open(&self, name: &str) -> Result<Device> {
        const OP: &str = "Soft::open";
        let devices = self.devices().map_err(|error| error.with_call(OP))?;
        match devices.iter().find(|info| info.is_named(name)) {
            Some(info) => Provider::open(self, info).map_err(|error| error.with_call(OP)),
            None => {
                let names: Vec<&str> = devices.iter().map(DevInfo::name).collect();
                let why = Provider::why_not(self, name);
                let text = format!(
                    "no software device \"{name}\"; there are: {}{}",
                    names.join(", "),
                    why.map_or_else(String::new, |why| format!("; {why}"))
                );
                Err(Error::new(ErrorKind::NotFound, OP, text))
            }
        }
    }

    fn devices_of(&self, view: View) -> Vec<DevInfo> {
        let topology = self.topology.lock();
        topology.devices(Provider::name(self), view, &self.limits.caps())
    }

    /// Returns the current card.
    pub fn topology(&self) -> Topology {
        self.topology.lock().clone()
    }

    /// Replaces the card: by another card, or by the same card with a function that was plugged in,
    /// unplugged or moved. Later calls list the devices of the new card.
    ///
    /// Lists that were returned before stay as they are. Open devices stay open. The device of a
    /// function that is gone can still be used by the code that holds it.
    pub fn set_topology(&self, topology: Topology) {
        *self.topology.lock() = topology;
    }

    /// Returns the script of faults of all devices of this provider.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

impl Provider for Soft {
    fn name(&self) -> &'static str {
        "soft"
    }

    fn devices(&self) -> Result<Vec<DevInfo>> {
        match &self.wrong {
            None => Ok(self.devices_of(self.options.view)),
            Some(text) => {
                let text = text.clone();
                Err(Error::new(ErrorKind::InvalidValue, None, text))
            }
        }
    }

    fn open(&self, info: &DevInfo) -> Result<Device> {
        if !self.devices()?.contains(info) {
            let text = format!("{} is none of these devices", info.name());
            return Err(Error::new(ErrorKind::NotFound, None, text));
        }
        let mut open = lock(&self.open);
        let known = open.get(info.name()).and_then(WeakDevice::upgrade);
        // A device that has moved is opened anew, at its new address.
        if let Some(device) = known.filter(|device| device.info() == info) {
            return Ok(device);
        }
        let (options, faults) = (self.options.clone(), self.faults.clone());
        let adapter = SoftDevice::new(info.clone(), options, faults, self.topology.clone());
        let device = Device::from_adapter(Arc::new(adapter));
        open.insert(info.name().to_owned(), device.downgrade());
        Ok(device)
    }

    fn why_not(&self, name: &str) -> Option<String> {
        let (other, whose, ours, variable, variant) = match self.options.view {
            View::Host => (View::Dpu, "DPU's", "host's", "dpu", "Dpu"),
            View::Dpu => (View::Host, "host's", "DPU's", "host", "Host"),
        };
        let named = |info: &DevInfo| info.is_named(name);
        self.devices_of(other).iter().any(named).then(|| {
            format!(
                "\"{name}\" is in the {whose} view of the card, and this is the {ours}: set \
                 TOKIO_DOCA_SOFT={variable}, or open it with a Soft::builder().view(View::{variant})"
            )
        })
    }
}

impl SoftBuilder {
    /// Sets the size, in bytes, up to which copies run inside the submission. Defaults to 262,144:
    /// up to about that size an engine costs the caller more CPU time than the copy of data that
    /// lies in a cache. More than 262,144 counts as 262,144, since a longer copy would delay the
    /// other tasks of the thread too much. Hashes run inside the submission up to 1/32 of that
    /// size, and CRCs up to an eighth of it: they then take about as long as a copy of the whole
    /// size from memory that is in no cache. Larger jobs go to an engine, a thread of the device.
    ///
    /// With 0 every copy goes to an engine, so that no thread of a runtime touches memory of a
    /// [`RemoteMmap`](crate::mem::RemoteMmap). The documentation of `RemoteMmap` says why that
    /// matters for memory of a process that you do not trust. Import such memory through a separate
    /// provider, so that the copies of other devices run on other engines.
    pub fn inline_limit(mut self, bytes: usize) -> SoftBuilder {
        self.options.inline_limit = bytes;
        self
    }

    /// Sets whether all jobs complete after their submission, as on an adapter, and none inside it.
    /// Defaults to `false`. A test that passes in both modes does not depend on when jobs complete.
    pub fn defer(mut self, defer: bool) -> SoftBuilder {
        self.options.defer = defer;
        self
    }

    /// Sets the number of engines of a device: threads among which its queues are distributed, and
    /// which do the jobs that are too large to run inside the submission. Defaults to 1. With more
    /// than 256, attaching a context fails (`InvalidValue`).
    ///
    /// With 0, no thread is started. A copy that is too large to run inside the submission is then
    /// done by the task that awaits it, 256 KiB at each poll.
    pub fn engines(mut self, count: usize) -> SoftBuilder {
        self.options.engines = count;
        self
    }

    /// Sets the CPUs that the engine threads of a device may run on. Attaching a context fails
    /// (`InvalidValue`) if the list is empty, or if the process cannot use one of the CPUs.
    ///
    /// Defaults to the CPUs on which the process's main thread may run (by `taskset` or its
    /// cpuset), even if another thread attaches the context. A program that pins its main thread
    /// should name the CPUs of its engines here: if an engine shares a CPU with the thread that
    /// awaits its jobs, both become slower.
    pub fn engine_cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> SoftBuilder {
        self.options.engine_cpus = Some(cpus.into_iter().collect());
        self
    }

    /// Sets the time for which an engine spins after its last job before it sleeps. Defaults to 30
    /// us. If the time is shorter than a wake-up takes (20 to 50 us), the engine and the thread
    /// that awaits its jobs fall asleep in turn.
    pub fn engine_spin(mut self, time: Duration) -> SoftBuilder {
        self.options.engine_spin = time;
        self
    }

    /// Sets the side of the card that the process represents, which decides which devices exist.
    /// Defaults to the host.
    pub fn view(mut self, view: View) -> SoftBuilder {
        self.options.view = view;
        self
    }

    /// Sets limits beyond which the devices refuse jobs, although they could do them. Defaults to
    /// [`Limits::unlimited`].
    pub fn limits(mut self, limits: Limits) -> SoftBuilder {
        self.limits = limits;
        self
    }

    /// Sets the card. Defaults to [`Topology::default`].
    pub fn topology(mut self, topology: Topology) -> SoftBuilder {
        self.topology = topology;
        self
    }

    /// Builds the provider.
    pub fn build(self) -> Soft {
        let limit = if self.options.defer {
            0
        } else {
            self.options.inline_limit.min(PIECE)
        };
        Soft {
            options: self.options,
            limits: self.limits,
            wrong: None,
            faults: Faults::new(limit),
            topology: CurrentTopology::new(self.topology),
            open: Mutex::default(),
        }
    }
}
