//! F1 to F4, S3: memory of another process, which runs this program too: `bars peer LEN COUNT`.
#![expect(unsafe_code, reason = "the baselines copy by address, and map")]

use std::ffi::c_void;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::{Pid, ftruncate};
use support::counting;
use support::peer::{Peer, hear, hex, say, unhex};
use support::programs::this_program;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Dma, Mmap, Mode,
    mem::{Access, RemoteBuf, RemoteMmap},
};

use super::counts;
use super::measure::{Samples, interleave, per_op};
use super::report::Goal::{AtLeast, AtMost, Exactly};
use super::report::Report;
use super::rig::{Rig, on_task};

/// Runs in the second process: exports `count` Mmaps of `len` bytes each, and reports their blobs
/// and an address of private memory. Then answers each line with the number of its descriptors.
pub(crate) fn peer(len: usize, count: usize) {
    let pf0 = Soft::builder().build().open("pf0").expect("a host");
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let mmap = || {
        let builder = Mmap::builder().device(&pf0).access(access);
        builder.alloc(len).expect("memory")
    };
    let mmaps: Vec<Mmap> = (0..count).map(|_| mmap()).collect();
    let private = vec![1_u8; 1 << 16];
    say(&private.as_ptr().expose_provenance().to_string());
    for mmap in &mmaps {
        let blob = mmap.export_dpu(&pf0).expect("an export");
        say(&hex(&blob));
    }
    while hear().is_some() {
        say(&descriptors().to_string());
    }
    // Leak these: dropping the exports would race with the end of the process.
    std::mem::forget(mmaps);
}

/// Returns the number of open descriptors of this process, without memfds.
fn descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("proc");
    let is_memfd = |fd: &std::path::Path| {
        std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().contains("memfd:tokio-doca"))
    };
    open.filter(|fd| fd.as_ref().is_ok_and(|fd| !is_memfd(&fd.path())))
        .count()
}

/// The second process, and the blobs of its exports.
struct Exporter {
    peer: Peer,
    private: usize,
    blobs: Vec<Vec<u8>>,
}

impl Exporter {
    fn start(len: usize, count: usize) -> Exporter {
        let mut command = this_program();
        command.args(["peer", &len.to_string(), &count.to_string()]);
        let mut peer = Peer::spawn(command);
        let private = peer.hear().parse().expect("an address");
        Exporter {
            private,
            blobs: (0..count).map(|_| unhex(&peer.hear())).collect(),
            peer,
        }
    }

    fn descriptors(&mut self) -> usize {
        self.peer.say("");
        self.peer.hear().parse().expect("a number")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.peer.pid())
    }
}

fn dpu(element: usize) -> Rig {
    let soft = Soft::builder()
        .view(View::Dpu)
        .engine_spin(Duration::from_secs(1))
        .build();
    let device = soft.open("p0").expect("a DPU");
    Rig::on(device, Mode::BusyPoll, 256, element, 2)
}

fn import(rig: &Rig, blob: &[u8]) -> RemoteMmap {
    let import = RemoteMmap::from_export(&rig.device, blob);
    import.wait().expect("an import")
}

fn filled(rig: &Rig) -> Buf {
    let src = rig.pool.try_alloc().expect("the pool has one");
    src.set_data(0, src.capacity()).expect("all of it");
    src
}

/// Awaits copies in a task. Returns the nanoseconds per copy.
fn awaited(dma: &Dma, src: &Buf, dst: &RemoteBuf, copies: u64) -> f64 {
    let (dma, src, dst) = (dma.clone(), src.clone(), dst.clone());
    on_task(async move {
        let start = Instant::now();
        for _ in 0..copies {
            dma.copy(&src, &dst).await.expect("a copy");
        }
        per_op(start, copies)
    })
}

/// A shared mapping of a memfd, all pages present.
pub(crate) struct Shared(NonNull<c_void>, usize);

impl Shared {
    pub(crate) fn map(file: impl AsFd, len: usize) -> Shared {
        let size = NonZeroUsize::new(len).expect("bytes");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, size, protection, flags, file, 0) };
        Shared(base.expect("a mapping"), len)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.0.cast::<u8>().as_ptr()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and no reference to it is left.
        unsafe { munmap(self.0, self.1) }.expect("a mapping");
    }
}

pub(crate) fn memfd(len: usize) -> std::os::fd::OwnedFd {
    let file = memfd_create("bars", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&file, len.try_into().expect("a size")).expect("its size");
    file
}

/// Measures remote copies of `len` bytes against a bare memcpy into a shared mapping.
fn against_memcpy(peer: &Exporter, len: usize, copies: u64) -> [Samples; 2] {
    let rig = dpu(len);
    let src = filled(&rig);
    let remote = import(&rig, &peer.blobs[0]).buf(..len).expect("its range");
    let from = src.data().expect("no job writes it").as_ptr();
    let shared = Shared::map(memfd(len), len);
    let to = shared.base();
    let mut bare = || {
        let start = Instant::now();
        for _ in 0..copies {
            // SAFETY: `len` bytes are valid at both addresses, and nothing else accesses them.
            unsafe { std::ptr::copy_nonoverlapping(black_box(from), black_box(to), len) };
        }
        per_op(start, copies)
    };
    let mut remote = || awaited(&rig.dma, &src, &remote, copies);
    interleave(40, [&mut bare, &mut remote])
}

/// F1: a remote copy against a bare memcpy, and against `process_vm_writev`.
pub(crate) fn f1(report: &mut Report) {
    let peer = Exporter::start(1 << 20, 1);
    let [bare, remote] = against_memcpy(&peer, 4096, 20_000);
    let (bare, remote) = (bare.min(), remote.min());
    let what = format!(
        "a remote copy of 4 KiB, less 15 ns, over memcpy into a shared mapping ({remote:.1} ns against {bare:.1})"
    );
    report.line("F1.4k", (remote - 15.0) / bare, AtMost(1.15), "x", &what);
    let [bare, far] = against_memcpy(&peer, 1 << 20, 60);
    let what = format!(
        "of 1 MiB, over memcpy ({:.0} us against {:.0})",
        far.median() / 1e3,
        bare.median() / 1e3
    );
    let ratio = far.median() / bare.median();
    report.line("F1.1m", ratio, AtMost(1.05), "x", &what);
    let bytes = [7_u8; 4096];
    let there = RemoteIoVec {
        base: peer.private,
        len: bytes.len(),
    };
    let start = Instant::now();
    const WRITES: u64 = 20_000;
    for _ in 0..WRITES {
        let local = [std::io::IoSlice::new(&bytes)];
        let written = process_vm_writev(peer.pid(), &local, &[there]);
        assert_eq!(written, Ok(bytes.len()), "its own child's memory");
    }
    let kernel = per_op(start, WRITES);
    let what = format!("faster than process_vm_writev of 4 KiB ({kernel:.0} ns)");
    report.line("F1.vm", kernel / remote, AtLeast(20.0), "x", &what);
}

/// Measures remote copies of `len` bytes against local copies, whose destination is emptied each
/// time.
fn against_local(peer: &Exporter, len: usize, copies: u64) -> [Samples; 2] {
    let rig = dpu(len);
    let (src, dst) = (filled(&rig), filled(&rig));
    let remote = import(&rig, &peer.blobs[0]).buf(..len).expect("its range");
    let mut local = || {
        let (dma, src, dst) = (rig.dma.clone(), src.clone(), dst.clone());
        on_task(async move {
            let start = Instant::now();
            for _ in 0..copies {
                dst.reset_data_len().expect("no job has it");
                dma.copy(&src, &dst).await.expect("a copy");
            }
            per_op(start, copies)
        })
    };
    let mut remote = || awaited(&rig.dma, &src, &remote, copies);
    interleave(40, [&mut local, &mut remote])
}

/// S3: a copy to another process against a copy within this process.
pub(crate) fn s3(report: &mut Report) {
    let peer = Exporter::start(1 << 20, 1);
    for (name, len, copies) in [("S3.4k", 4096, 20_000), ("S3.1m", 1 << 20, 60)] {
        let [local, remote] = against_local(&peer, len, copies).map(|it| it.median());
        let what = format!(
            "a remote copy of {len} bytes over a local one ({remote:.0} ns against {local:.0})"
        );
        report.line(name, remote / local, AtMost(1.05), "x", &what);
    }
}

/// Copies to another process in busy-poll mode. Runs under strace.
pub(crate) fn run(jobs: u64) {
    let peer = Exporter::start(1 << 16, 1);
    let rig = dpu(64);
    let src = filled(&rig);
    let remote = import(&rig, &peer.blobs[0]).buf(..64).expect("its range");
    let dma = &rig.dma;
    let copies = async |jobs| {
        for _ in 0..jobs {
            dma.copy(&src, &remote).await.expect("a copy");
        }
    };
    rig.workq.block_on(async {
        copies(jobs / 4).await;
        counts::mark();
        copies(jobs).await;
        counts::mark();
    });
    // Leak these: dropping them would race with the end of the process.
    std::mem::forget((rig, src, remote));
}

/// F2: the allocations and system calls of remote copies.
pub(crate) fn f2(report: &mut Report) {
    let peer = Exporter::start(1 << 16, 1);
    let rig = dpu(4096);
    let src = filled(&rig);
    let remote = import(&rig, &peer.blobs[0]).buf(..4096).expect("a range");
    let dma = rig.dma.clone();
    let allocated = on_task(async move {
        let mut before = 0;
        for round in 0..2000 {
            // In the first half the runtime allocates its list of tasks that have spent their
            // budget.
            if round == 1000 {
                before = counting::here();
            }
            dma.copy(&src, &remote).await.expect("a copy");
        }
        counting::here() - before
    });
    let what = "allocations of 1,000 remote copies";
    report.line("F2.allocs", allocated as f64, Exactly(0.0), "", what);
    match counts::calls_that_are_ours("remote-busy") {
        Ok(calls) => {
            let what = "system calls of 1,024 remote copies in busy mode, both processes";
            report.line("F2.calls", calls, Exactly(0.0), "", what);
        }
        Err(error) => report.skip("F2.calls", &error),
    }
}

/// F3: an import of 1 GiB against mapping 1 GiB.
pub(crate) fn f3(report: &mut Report) {
    const LEN: usize = 1 << 30;
    let peer = Exporter::start(LEN, 1);
    let rig = dpu(4096);
    let file = memfd(LEN);
    drop(Shared::map(&file, LEN));
    let mut bare = || {
        let start = Instant::now();
        let mapped = Shared::map(&file, LEN);
        let took = per_op(start, 1);
        drop(mapped);
        took
    };
    let mut imported = || {
        let start = Instant::now();
        let mapped = import(&rig, &peer.blobs[0]);
        let took = per_op(start, 1);
        drop(mapped);
        took
    };
    let [bare, imported] = interleave(7, [&mut bare, &mut imported]);
    let (bare, imported) = (bare.median() / 1e6, imported.median() / 1e6);
    let what = format!(
        "import of 1 GiB, less 1 ms, over mmap with MAP_POPULATE ({imported:.1} ms against {bare:.1})"
    );
    report.line("F3", (imported - 1.0) / bare, AtMost(2.0), "x", &what);
}

/// F4: the descriptors that a thousand more exports and imports take.
pub(crate) fn f4(report: &mut Report) {
    let count = |exports: usize| {
        let mut peer = Exporter::start(4096, exports);
        let rig = dpu(4096);
        let imports: Vec<_> = peer.blobs.iter().map(|blob| import(&rig, blob)).collect();
        let open = descriptors() + peer.descriptors();
        drop(imports);
        open as f64
    };
    let more = count(1000) - count(1);
    let what = "descriptors of 1,000 exports and imports more than of one, in both processes, memfds aside";
    report.line("F4", more, AtMost(16.0), "", what);
}
