//! How an object becomes a service of this process and gets a ticket.

use std::sync::{Arc, Weak};

use super::current;
use super::process::Fabric;
use super::protocol::{Id, Kind, Payload, SLOTS, Ticket, random};
use super::service::{PublishedService, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A service that clients find by its ticket, until this value is dropped.
pub(in super::super) struct Published {
    fabric: Arc<Fabric>,
    pub(in super::super) ticket: Ticket,
    blob: Vec<u8>,
}

/// Returns the instance of this process's fabric. The instance stays the same as long as the fabric
/// exists; a [`Published`] keeps the fabric alive.
///
/// # Errors
///
/// `BadState` in a fork of a process that has a fabric; `OperatingSystem` if no fabric can be
/// started.
pub(in super::super) fn instance() -> Result<Id> {
    Ok(current::fabric()?.instance)
}

/// Publishes a service. `payload` describes the object in its ticket.
///
/// # Errors
///
/// `Full` if all slots are taken; `BadState` in a fork of a process that has a fabric;
/// `OperatingSystem` if no fabric can be started.
pub(in super::super) fn publish(
    kind: &'static Kind,
    payload: Payload,
    service: Weak<dyn Service>,
) -> Result<Published> {
    let fabric = current::fabric()?;
    let server = fabric.open_server()?;
    let key = random()?;
    let entry = PublishedService {
        kind: kind.number,
        service,
    };
    let mut table = lock(&server.table);
    let Some((slot, generation)) = table.insert(key, entry) else {
        let text = format!(
            "this process exports {SLOTS} Mmaps, Rdmas and SyncEvents, as many as it can: drop some"
        );
        return Err(Error::new(ErrorKind::Full, None, text));
    };
    server.control.set(slot, generation);
    drop(table);
    let ticket = Ticket {
        kind,
        slot,
        generation,
        netns: server.netns,
        instance: fabric.instance,
        key,
        address: server.address.clone(),
        payload,
    };
    let blob = ticket.format();
    Ok(Published {
        fabric,
        ticket,
        blob,
    })
}

impl Published {
    /// Returns the bytes of the ticket.
    pub(in super::super) fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if self.fabric.is_inherited() {
            return;
        }
        let Some(server) = self.fabric.server() else {
            return;
        };
        let mut table = lock(&server.table);
        server.control.set(self.ticket.slot, 0);
        let removed = table.remove(self.ticket.slot);
        drop(table);
        drop(removed);
    }
}
