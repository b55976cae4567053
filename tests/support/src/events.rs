//! What the tests of sync events share: the host's side, the DPU's side, and how the DPU gets the
//! host's event.

use std::time::Duration;

use tokio_doca::soft::{Limits, Soft, View};
use tokio_doca::{
    Device, Mode, WorkQ,
    sync_event::{ImportedSyncEvent, Location, SyncEvent, SyncEventBuilder},
};

use super::LIMIT;
use super::peer::{hear, hex, say, unhex};

/// The settings of the two sides of a sync event.
#[derive(Clone, Debug)]
pub struct Setup {
    pub defer: bool,
    pub mode: Mode,
    pub limits: Limits,
    pub waits: u32,
    pub depth: u32,
}

impl Setup {
    pub fn new(defer: bool, mode: Mode) -> Setup {
        Setup {
            defer,
            mode,
            limits: Limits::unlimited(),
            waits: 16,
            depth: 32,
        }
    }

    /// Returns all six setups: inline and deferred, each event-driven, busy-poll and hybrid.
    pub fn all() -> [Setup; 6] {
        let spin = Duration::from_micros(50);
        let modes = [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }];
        std::array::from_fn(|at| Setup::new(at % 2 == 1, modes[at / 2]))
    }

    pub fn waits(self, waits: u32) -> Setup {
        Setup { waits, ..self }
    }

    pub fn limits(self, limits: Limits) -> Setup {
        Setup { limits, ..self }
    }

    pub fn device(&self, view: View, name: &str) -> Device {
        let soft = Soft::builder().defer(self.defer).view(view);
        soft.limits(self.limits.clone()).build().open(name).unwrap()
    }

    pub fn host(&self) -> Device {
        self.device(View::Host, "pf0")
    }

    pub fn dpu(&self) -> Device {
        self.device(View::Dpu, "p0")
    }

    pub fn workq(&self) -> WorkQ {
        let builder = WorkQ::builder().depth(self.depth).mode(self.mode);
        builder.build().unwrap()
    }

    /// Makes the host's side of an event, on a WorkQ of its own.
    pub fn owner(&self) -> SyncEvent {
        let host = self.host();
        between(&host)
            .waits(self.waits)
            .attach(&self.workq())
            .unwrap()
    }

    /// Makes an event of the host alone: the CPU is its publisher and its subscriber.
    pub fn private(&self) -> SyncEvent {
        let host = self.host();
        let cpu = Location::Cpu(&host);
        let builder = SyncEvent::builder().publisher(cpu).subscriber(cpu);
        builder.waits(self.waits).attach(&self.workq()).unwrap()
    }

    /// Imports the DPU's side of an event, on a WorkQ of its own.
    pub fn importer(&self, blob: &[u8]) -> SyncEvent {
        let imported = import(&self.dpu(), blob);
        imported.waits(self.waits).attach(&self.workq()).unwrap()
    }

    /// Makes both sides of an event in this process.
    pub fn pair(&self) -> (SyncEvent, SyncEvent) {
        let owner = self.owner();
        let blob = owner.export_dpu(owner.device()).unwrap();
        let importer = self.importer(&blob);
        (owner, importer)
    }
}

/// Builds an event that the DPU sets and the host awaits.
pub fn between(host: &Device) -> SyncEventBuilder<'_> {
    let builder = SyncEvent::builder().publisher(Location::Dpu);
    builder.subscriber(Location::Cpu(host))
}

pub fn import(dpu: &Device, blob: &[u8]) -> ImportedSyncEvent {
    SyncEvent::from_export(dpu, blob)
        .timeout(LIMIT)
        .wait()
        .unwrap()
}

/// Runs in the child: imports the event that the parent exported.
pub fn imported(dpu: &Device) -> ImportedSyncEvent {
    import(dpu, &blob())
}

/// Runs in the child: returns the blob that the parent gives.
pub fn blob() -> Vec<u8> {
    say("blob");
    unhex(&hear().unwrap())
}

/// Runs in the parent: gives the child the blob of `event`.
pub fn give(peer: &mut super::peer::Peer, event: &SyncEvent) {
    assert_eq!(peer.hear(), "blob");
    peer.say(&hex(&event.export_dpu(event.device()).unwrap()));
}
