//! An endpoint under attack in this process, and a pair of honest endpoints beside it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, Device, Mmap, Mode, Rdma, WorkQ, error::JobError, mem::BufInventory, rdma::RdmaState,
};

use super::rdma::*;
use super::{UNEXPECTED, listen};
use support::*;

/// Size in bytes of each part of the memory; every other part is a guard.
pub const PART: usize = 128 << 10;
/// How long a job waits for a receive of the peer.
pub const PATIENCE: Duration = Duration::from_millis(20);

/// The endpoint under attack, and two honest endpoints on the same WorkQ.
pub struct Victim {
    pub device: Device,
    pub workq: WorkQ,
    pub rdma: Rdma,
    pub pair: [Rdma; 2],
    pub guards: [Buf; 3],
    pub source: Buf,
    pub rooms: [Buf; 2],
    pub small: [Buf; 2],
}

impl Victim {
    pub fn new(mode: Mode) -> Victim {
        let device = Soft::builder().build().open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(6 * PART).unwrap();
        let inventory = BufInventory::with_capacity(8);
        let part = |at| at * PART..(at + 1) * PART;
        let guards = [0, 2, 4].map(|at| inventory.buf_filled(&mmap, part(at)).unwrap());
        for guard in &guards {
            guard.copy_in(0, &pattern(9, PART)).unwrap();
        }
        let source = inventory.buf_filled(&mmap, part(3)).unwrap();
        source.copy_in(0, &pattern(5, PART)).unwrap();
        let rooms = [PART, PART + PART / 2];
        let small = [5 * PART, 5 * PART + 64];
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let victim = Victim {
            rdma: Victim::context(&device, &workq),
            pair: [(); 2].map(|()| Victim::context(&device, &workq)),
            rooms: rooms.map(|at| inventory.buf(&mmap, at..at + PART / 2).unwrap()),
            small: small.map(|at| inventory.buf(&mmap, at..at + 64).unwrap()),
            device,
            workq,
            guards,
            source,
        };
        let [one, other] = &victim.pair;
        one.connect(&other.export().unwrap()).wait().unwrap();
        other.connect(&one.export().unwrap()).wait().unwrap();
        victim
    }

    pub fn context(device: &Device, workq: &WorkQ) -> Rdma {
        let builder = Rdma::builder(device).recv_queue_size(RECEIVES);
        builder.rnr_timeout(PATIENCE).attach(workq).unwrap()
    }

    pub fn another(&self) -> Rdma {
        Victim::context(&self.device, &self.workq)
    }

    pub fn blob(&self) -> Endpoint {
        Endpoint::parse(&self.rdma.export().unwrap())
    }

    /// Connects the victim to a hostile guest or host.
    pub fn meets(&self, is_host: bool) -> Hold {
        let peer = Endpoint::hostile(is_host, 1);
        if is_host {
            return welcomed(&self.rdma, &peer, 1, 0);
        }
        // The host connects once, to check that its guest is there.
        let there = listen(&peer.name);
        std::thread::scope(|scope| {
            scope.spawn(|| peer.refuse(&peer.knocked(&there), UNEXPECTED));
            self.rdma.connect(&peer.format()).wait().unwrap();
        });
        peer.visit(&self.blob(), &peer.question(RECEIVES, 0))
            .unwrap()
    }

    /// Sends `len` bytes.
    pub async fn send(&self, len: usize) -> Result<usize, JobError> {
        self.source.set_data(0, len).unwrap();
        in_time("a send", self.rdma.send(&self.source)).await
    }

    /// Receives a message if one arrives within a moment.
    pub async fn recv(&self) -> Option<Result<usize, JobError>> {
        // A receive that was dropped may still occupy the first buffer.
        let room = match self.rooms[0].reset_data_len() {
            Ok(()) => &self.rooms[0],
            Err(_) => &self.rooms[1],
        };
        room.reset_data_len().unwrap();
        let received = timeout(PATIENCE / 10, self.rdma.recv(room)).await;
        Some(received.ok()?.map(|received| received.len))
    }

    /// Checks that the two honest endpoints still exchange messages.
    pub async fn goes_on(&self) {
        let [src, dst] = &self.small;
        let [one, other] = &self.pair;
        src.reset_data_len().unwrap();
        dst.reset_data_len().unwrap();
        src.extend_from_slice(b"honest").unwrap();
        let both = async { tokio::join!(other.recv(dst), one.send(src)) };
        let (received, sent) = in_time("an honest pair", both).await;
        assert_eq!((sent, received.unwrap().len), (Ok(6), 6));
        assert_eq!(bytes(dst), b"honest");
    }

    /// Checks that no job hangs, that no other memory was written, and that the endpoint can be
    /// reset.
    pub async fn survived(&self) {
        self.rdma.reset().unwrap();
        assert_eq!(self.rdma.state(), RdmaState::Init);
        until("all jobs are over", || self.workq.in_flight() == 0).await;
        self.goes_on().await;
        for guard in &self.guards {
            assert!(bytes(guard) == pattern(9, PART), "a guard was written");
        }
        self.source.set_data(0, PART).unwrap();
        assert!(
            bytes(&self.source) == pattern(5, PART),
            "a source was written"
        );
    }
}

/// Connects `rdma` to a hostile host that behaves correctly.
pub fn welcomed(rdma: &Rdma, host: &Endpoint, link: u64, index: u32) -> Hold {
    std::thread::scope(|scope| {
        let listener = listen(&host.name);
        let hold = scope.spawn(move || host.welcome(host.knocked(&listener), link, index));
        rdma.connect(&host.format()).wait().unwrap();
        hold.join().unwrap()
    })
}
