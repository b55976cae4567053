//! An exporter under attack in its own process: this process is hostile, and imports honestly in
//! between.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, Mmap, Mode, WorkQ,
    mem::{Access, BufInventory, RemoteMmap},
};

use super::*;
use support::peer::{Peer, footprint, hear, hex, is_as_before, role, say, unhex};
use support::{assert_quick, bytes, pattern, run};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const DPU_READS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);
/// Size in bytes of each export.
pub const LEN: usize = 1 << 16;

/// An exported `Mmap` in the exporter's process.
struct Exported {
    mmap: Mmap,
    buf: Buf,
}

impl Exported {
    fn new(device: &Device, access: Access) -> Exported {
        let builder = Mmap::builder().device(device).access(access);
        let mmap = builder.alloc(LEN).unwrap();
        let inventory = BufInventory::with_capacity(1);
        let buf = inventory.buf_filled(&mmap, ..).unwrap();
        buf.copy_in(0, &pattern(9, LEN)).unwrap();
        Exported { mmap, buf }
    }

    fn digest(&self) -> u32 {
        crc32c::crc32c(&bytes(&self.buf))
    }
}

/// The process under attack: prints the blobs of memory that peers may write and of memory that
/// peers may only read, then obeys commands.
fn exporter() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let all = [DPU, DPU_READS].map(|access| Exported::new(&device, access));
    let other = Mmap::builder().device(&device).alloc(LEN).unwrap();
    let copy = BufInventory::with_capacity(1).buf(&other, ..).unwrap();
    let workq = WorkQ::builder().mode(Mode::EventDriven).build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    for exported in &all {
        say(&hex(&exported.mmap.export_dpu(&device).unwrap()));
    }
    while let Some(line) = hear() {
        match line.as_str() {
            // Jobs complete even on memory that another process may be changing, with whatever
            // bytes they find.
            "works" => {
                for exported in &all {
                    copy.reset_data_len().unwrap();
                    let copied = run(async { dma.copy(&exported.buf, &copy).await });
                    assert_eq!(copied, Ok(LEN));
                }
                say(&format!("{} {}", all[0].digest(), all[1].digest()));
            }
            "fill" => {
                all[0].buf.copy_in(0, &pattern(9, LEN)).unwrap();
                say("filled");
            }
            "export anew" => {
                let one = Exported::new(&device, DPU);
                say(&hex(&one.mmap.export_dpu(&device).unwrap()));
                hear();
                drop(one);
                say("dropped");
            }
            "export a memfd" => {
                let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
                let memfd = nix::sys::memfd::memfd_create(c"application", flags).unwrap();
                nix::unistd::ftruncate(&memfd, LEN as i64).unwrap();
                let builder = Mmap::builder().device(&device).access(DPU);
                let mmap = builder.from_memfd(memfd, ..).unwrap();
                say(&hex(&mmap.export_dpu(&device).unwrap()));
                hear();
                drop(mmap);
                say("dropped");
            }
            other => panic!("{other}"),
        }
    }
}

/// The exporter, as seen from this process.
pub struct Victim {
    pub peer: Peer,
    /// Memory that peers may write.
    pub write: Blob,
    /// Memory that peers may only read.
    pub read: Blob,
    /// Both blobs as they were received.
    pub blobs: [Vec<u8>; 2],
    pub device: Device,
    pub before: (usize, usize, usize),
}

impl Victim {
    /// Starts the exporter. In the process under attack, obeys commands to their end and returns
    /// `None`.
    pub fn start(test: &str) -> Option<Victim> {
        if role().is_some() {
            exporter();
            return None;
        }
        // Runs with the rights of an ordinary user; this process has the same rights over it, or
        // more.
        let mut peer = Peer::start_as_nobody(test, "exporter");
        let blobs = [unhex(&peer.hear()), unhex(&peer.hear())];
        let device = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
        let mut victim = Victim {
            write: Blob::parse(&blobs[0]),
            read: Blob::parse(&blobs[1]),
            blobs,
            device,
            before: (0, 0, 0),
            peer,
        };
        // Measured before the first import.
        victim.works();
        victim.before = footprint(victim.peer.pid());
        victim.survived("nothing", false);
        Some(victim)
    }

    /// Returns the exporter's digests of the writable and of the read-only memory.
    pub fn works(&mut self) -> (String, String) {
        self.peer.say("works");
        let said = self.peer.hear();
        let (write, read) = said.split_once(' ').unwrap();
        (write.to_owned(), read.to_owned())
    }

    /// Imports both exports honestly, and copies each.
    pub fn honest(&mut self) {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            for blob in &self.blobs {
                let import = RemoteMmap::from_export(&self.device, blob).timeout(LIMIT);
                let remote = import.wait().unwrap();
                assert!(!remote.is_own());
                remote.check().unwrap();
                self.copy(&remote);
            }
            best = best.min(start.elapsed());
        }
        assert_quick("an honest import", best, Duration::from_secs(1));
    }

    fn copy(&self, remote: &RemoteMmap) {
        let mmap = Mmap::builder().device(&self.device).alloc(LEN).unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let dma = Dma::builder(&self.device).attach(&workq).unwrap();
        let there = remote.buf(..).unwrap();
        assert_eq!(block_on(dma.copy(&there, &buf)), Ok(LEN));
        if remote.access() == Access::DPU_READ_ONLY {
            assert!(bytes(&buf) == pattern(9, LEN), "somebody has written");
        }
    }

    /// Checks that the exporter is as before. `scribbled` tells whether the writable memory may
    /// have changed.
    pub fn survived(&mut self, attack: &str, scribbled: bool) {
        eprintln!("after: {attack}");
        self.honest();
        let right = crc32c::crc32c(&pattern(9, LEN)).to_string();
        let (write, read) = self.works();
        assert_eq!(read, right, "{attack}: what nobody may write");
        assert!(scribbled || write == right, "{attack}");
        if scribbled {
            self.peer.say("fill");
            self.peer.hear();
        }
        let (pid, before) = (self.peer.pid(), self.before);
        is_as_before(pid, before, attack);
    }

    /// Returns the descriptors that an importer gets: the memory, and the control page.
    pub fn descriptors(&self, blob: &Blob) -> [OwnedFd; 2] {
        let (answer, descriptors) = ask(blob);
        assert_eq!(status(&answer), (0, 0));
        descriptors.try_into().unwrap()
    }
}
