//! The devices whose contexts are attached to a WorkQ, and their queues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::{Device, Queue};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::mode::Policy;

/// The maximum number of devices whose contexts can be attached to one WorkQ.
const DEVICES: usize = 8;

/// The queues, in the order in which the first contexts of their devices were attached.
pub(super) struct Queues([OnceLock<Attached>; DEVICES]);

pub(super) struct Attached {
    pub(super) device: Device,
    /// True if a context is attached whose completions the device cannot signal: they must be
    /// polled for.
    pub(super) polled: AtomicBool,
    /// The queue's own descriptor is part of the event handle.
    pub(super) nested: AtomicBool,
    pub(super) queue: Arc<dyn Queue>,
}

impl Queues {
    pub(super) fn new() -> Queues {
        Queues([const { OnceLock::new() }; DEVICES])
    }

    #[inline(always)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.0.iter().map_while(OnceLock::get)
    }

    /// Returns the device's number and queue, if its contexts are attached.
    pub(super) fn find(&self, device: &Device) -> Option<(u8, &Attached)> {
        let mut all = self.iter().enumerate();
        let found = all.find(|(_, attached)| attached.device == *device);
        found.map(|(index, attached)| (index as u8, attached))
    }

    /// Adds a device with the queue that `open` opens. Returns the device's number and queue. Only
    /// one caller at a time may call this.
    ///
    /// # Errors
    ///
    /// `Full` if 8 devices are attached; the error of `open` if that fails.
    pub(super) fn add(&self, open: impl FnOnce() -> Result<Attached>) -> Result<(u8, &Attached)> {
        let index = self.iter().count();
        let Some(place) = self.0.get(index) else {
            let text = format!(
                "contexts of {DEVICES} devices are attached, as many as can be: build another WorkQ"
            );
            return Err(Error::new(ErrorKind::Full, None, text));
        };
        let opened = open()?;
        Ok((index as u8, place.get_or_init(|| opened)))
    }

    /// Returns an error if futures sleep under `policy` and a device cannot signal the completions
    /// of an attached context.
    pub(super) fn check_events(&self, policy: Policy, op: &'static str) -> Result<()> {
        let mut all = self.iter();
        all.try_for_each(|attached| {
            let event_driven = !attached.polled.load(Ordering::Relaxed);
            check_events(&attached.device, event_driven, policy, op)
        })
    }
}

/// Returns an error if futures sleep under `policy` and `device` cannot signal their completions.
pub(super) fn check_events(
    device: &Device,
    event_driven: bool,
    policy: Policy,
    op: impl Into<Option<&'static str>>,
) -> Result<()> {
    if policy.is_busy() || event_driven {
        return Ok(());
    }
    let text = format!(
        "this context of device {} cannot signal an event handle: use Mode::BusyPoll",
        device.info().name()
    );
    Err(Error::new(ErrorKind::NotSupported, op, text))
}
