//! What the tests of sync events share: the host's side, the DPU's side, and how the one comes to
//! the other.

use std::time::Duration;

use tokio_doca::soft::{Limits, Soft, View};
use tokio_doca::{
    Device, Mode, WorkQ,
    sync_event::{ImportedSyncEvent, Location, SyncEvent, SyncEventBuilder},
};

use super::LIMIT;
use super::peer::{hear, hex, say, unhex};

/// How a side is set up.
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

    /// Both soft modes, event-driven, busy and hybrid.
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

    /// The host's side, on a WorkQ of its own.
    pub fn owner(&self) -> SyncEvent {
        let host = self.host();
        between(&host)
            .waits(self.waits)
            .attach(&self.workq())
            .unwrap()
    }

    /// One that nobody else can have.
    pub fn private(&self) -> SyncEvent {
        let host = self.host();
        let cpu = Location::Cpu(&host);
        let builder = SyncEvent::builder().publisher(cpu).subscriber(cpu);
        builder.waits(self.waits).attach(&self.workq()).unwrap()
    }

    /// The DPU's side of it, on a WorkQ of its own.
    pub fn importer(&self, blob: &[u8]) -> SyncEvent {
        let imported = import(&self.dpu(), blob);
        imported.waits(self.waits).attach(&self.workq()).unwrap()
    }

    /// Both, in this process.
    pub fn pair(&self) -> (SyncEvent, SyncEvent) {
        let owner = self.owner();
        let blob = owner.export_dpu(owner.device()).unwrap();
        let importer = self.importer(&blob);
        (owner, importer)
    }
}

/// An event of the host's with the DPU.
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

/// In the child: what the parent exported, imported.
pub fn imported(dpu: &Device) -> ImportedSyncEvent {
    import(dpu, &blob())
}

/// In the child: the blob that the parent gave.
pub fn blob() -> Vec<u8> {
    say("blob");
    unhex(&hear().unwrap())
}

/// In the parent: gives the child its blob.
pub fn give(peer: &mut super::peer::Peer, event: &SyncEvent) {
    assert_eq!(peer.hear(), "blob");
    peer.say(&hex(&event.export_dpu(event.device()).unwrap()));
}
