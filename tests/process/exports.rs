//! Memory of one process that another process uses, and what happens to either when the other one
//! ends.

use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::forged::fork_and_linger;
use futures::executor::block_on;
use support::peer::{Peer, again, footprint, hear, hex, is_as_before, role, say, unhex};
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory, RemoteBuf, RemoteMmap},
};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const DPU_READS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);
const LEN: usize = 1 << 20;

fn pf0() -> Device {
    Soft::builder().build().open("pf0").unwrap()
}

fn exported(access: Access, len: usize) -> (Mmap, Vec<u8>) {
    let device = pf0();
    let builder = Mmap::builder().device(&device).access(access);
    let mmap = builder.alloc(len).unwrap();
    let blob = mmap.export_dpu(&device).unwrap();
    (mmap, blob)
}

/// A `Dma` on the DPU's side, with its own buffer.
struct Copies {
    device: Device,
    dma: Dma,
    buf: Buf,
}

impl Copies {
    fn new(soft: Soft) -> Copies {
        let device = soft.open("p0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(LEN).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        Copies {
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            buf: BufInventory::with_capacity(1).buf(&mmap, ..).unwrap(),
            device,
        }
    }

    fn import(&self, blob: &[u8]) -> RemoteMmap {
        let import = RemoteMmap::from_export(&self.device, blob);
        import.timeout(LIMIT).wait().unwrap()
    }

    fn write(&self, bytes: &[u8], to: &RemoteBuf) -> Result<usize, JobError> {
        self.buf.reset_data_len().unwrap();
        self.buf.extend_from_slice(bytes).unwrap();
        block_on(self.dma.copy(&self.buf, to))
    }

    fn read(&self, from: &RemoteBuf) -> Result<Vec<u8>, JobError> {
        self.buf.reset_data_len().unwrap();
        block_on(self.dma.copy(from, &self.buf))?;
        Ok(self.buf.data().unwrap().to_vec())
    }
}

fn dpu() -> Copies {
    Copies::new(Soft::builder().view(View::Dpu).build())
}

/// The exporting child process: prints its blob, then obeys commands.
fn exporter(access: Access) {
    let (mmap, blob) = exported(access, LEN);
    let buf = BufInventory::with_capacity(1)
        .buf_filled(&mmap, ..)
        .unwrap();
    say(&hex(&blob));
    let mut mmap = Some(mmap);
    let mut buf = Some(buf);
    while let Some(line) = hear() {
        match line.as_str() {
            "fill" => {
                buf.as_ref().unwrap().copy_in(0, &pattern(9, LEN)).unwrap();
                say("filled");
            }
            "digest" => {
                let mut bytes = vec![0; LEN];
                buf.as_ref().unwrap().copy_out(0, &mut bytes).unwrap();
                say(&crc32c::crc32c(&bytes).to_string());
            }
            "stop" => {
                buf = None;
                mmap.as_ref().unwrap().stop().unwrap();
                say("stopped");
            }
            "drop" => {
                (buf, mmap) = (None, None);
                say("dropped");
            }
            "exec nothing" => {
                say(&Command::new("/no/such/program").exec().to_string());
            }
            "exec" => replace(),
            "leave a child, exec" => {
                say(&fork_and_linger().to_string());
                replace();
            }
            "exec another exporter" => {
                let next = test_name!(an_exporter_that_replaces_its_program_is_named);
                panic!("execve: {}", again(next, "exporter").exec());
            }
            other => panic!("{other}"),
        }
    }
}

/// Replaces this process by another program, which reports that, and ends when its input does.
fn replace() -> ! {
    let script = "echo '@@ replaced'; exec cat";
    let error = Command::new("sh").args(["-c", script]).exec();
    panic!("execve: {error}");
}

fn start_exporter(test: &str) -> (Peer, Vec<u8>) {
    let mut peer = Peer::start(test, "exporter");
    let blob = unhex(&peer.hear());
    (peer, blob)
}

#[test]
fn what_one_writes_the_other_sees() {
    if role().is_some() {
        return exporter(DPU);
    }
    let (mut peer, blob) = start_exporter(test_name!(what_one_writes_the_other_sees));
    for soft in [
        Soft::builder(),
        Soft::builder().defer(true),
        Soft::builder().engines(0),
        Soft::builder().engines(2),
    ] {
        let copies = Copies::new(soft.view(View::Dpu).build());
        let remote = copies.import(&blob);
        assert!(!remote.is_own() && remote.len() == LEN);
        peer.say("fill");
        assert_eq!(peer.hear(), "filled");
        let all = remote.buf(..).unwrap();
        assert!(copies.read(&all).unwrap() == pattern(9, LEN));
        let bytes = pattern(4, LEN);
        assert_eq!(copies.write(&bytes, &all), Ok(LEN));
        peer.say("digest");
        assert_eq!(peer.hear(), crc32c::crc32c(&bytes).to_string());
        let part = remote.buf(4000..4100).unwrap().slice(50..).unwrap();
        assert_eq!(copies.read(&part).unwrap(), bytes[4050..4100]);
    }
    peer.ends();
}

#[test]
fn an_exporter_that_stops_or_drops_is_named() {
    if role().is_some() {
        return exporter(DPU);
    }
    for word in ["stop", "drop"] {
        let (mut peer, blob) = start_exporter(test_name!(an_exporter_that_stops_or_drops_is_named));
        let copies = dpu();
        let remote = copies.import(&blob);
        let there = remote.buf(..100).unwrap();
        assert_eq!(copies.write(b"before", &there), Ok(6));
        peer.say(word);
        peer.hear();
        for error in [
            copies.write(b"after", &there).unwrap_err(),
            copies.read(&there).unwrap_err(),
            remote.check().unwrap_err(),
        ] {
            assert_eq!(
                (error.reason(), error.kind()),
                (Reason::ExportRevoked, ErrorKind::ConnectionReset)
            );
        }
        let again = RemoteMmap::from_export(&copies.device, &blob).wait();
        let kind = again.unwrap_err().kind();
        let kinds = [ErrorKind::NotPermitted, ErrorKind::ConnectionReset];
        assert!(kinds.contains(&kind), "{kind:?}");
        peer.ends();
    }
}

/// A list of ranges in two exporters' memory fails once either exporter has taken its memory back
/// or ended, wherever its ranges are in the list, and no byte is copied.
#[test]
fn a_list_of_two_exporters_memory_is_copied_until_one_goes() {
    if role().is_some() {
        return exporter(DPU);
    }
    let test = test_name!(a_list_of_two_exporters_memory_is_copied_until_one_goes);
    for soft in [Soft::builder(), Soft::builder().defer(true)] {
        let (mut stays, first) = start_exporter(test);
        let (mut goes, second) = start_exporter(test);
        let copies = Copies::new(soft.view(View::Dpu).build());
        let remotes = [copies.import(&first), copies.import(&second)];
        let list = |ranges: [Range<usize>; 2]| {
            let list = BufChain::with_capacity(2);
            for (remote, range) in remotes.iter().zip(ranges) {
                list.push(remote.buf(range).unwrap()).unwrap();
            }
            list
        };
        for peer in [&mut stays, &mut goes] {
            peer.say("fill");
            assert_eq!(peer.hear(), "filled");
        }
        let bytes = pattern(9, LEN);
        let gather = list([10..30, 4000..4050]);
        let read = || {
            copies.buf.reset_data_len().unwrap();
            block_on(copies.dma.copy(&gather, &copies.buf))
        };
        assert_eq!(read(), Ok(70));
        let expected = [&bytes[10..30], &bytes[4000..4050]].concat();
        assert_eq!(copies.buf.data().unwrap()[..], expected[..]);
        // Copies from the memory of both exporters to other memory of both; some bytes are copied
        // twice.
        let scatter = list([100..120, 100..150]);
        assert_eq!(block_on(copies.dma.copy(&gather, &scatter)), Ok(70));
        let error = block_on(copies.dma.copy(&gather, list([0..20, 4049..4099])));
        assert_eq!(error.unwrap_err().reason(), Reason::Overlap);

        goes.say("stop");
        goes.hear();
        let reversed = BufChain::with_capacity(2);
        for (at, range) in [(1, 4000..4050), (0, 10..30)] {
            reversed.push(remotes[at].buf(range).unwrap()).unwrap();
        }
        let stays_there = remotes[0].buf(10..30).unwrap();
        for list in [&gather, &reversed] {
            // Copies from the list over known bytes.
            copies.buf.reset_data_len().unwrap();
            copies.buf.extend_from_slice(&[0xa5; LEN]).unwrap();
            copies.buf.reset_data_len().unwrap();
            let error = block_on(copies.dma.copy(list, &copies.buf)).unwrap_err();
            assert_eq!(error.reason(), Reason::ExportRevoked);
            copies.buf.set_data(0, LEN).unwrap();
            assert_eq!(
                copies.buf.data().unwrap()[..],
                [0xa5; LEN],
                "nothing was moved"
            );
            // Copies to the list.
            let error = copies.dma.copy(copies.buf.slice(..70).unwrap(), list);
            assert_eq!(block_on(error).unwrap_err().reason(), Reason::ExportRevoked);
            assert_eq!(
                copies.read(&stays_there).unwrap(),
                bytes[10..30],
                "nor here"
            );
        }
        goes.kill();
        let error = block_on(copies.dma.copy(&gather, &scatter)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // The other exporter's memory is still available.
        assert!(gather.pop().unwrap().is_some());
        assert_eq!(read(), Ok(20));
        stays.ends();
    }
}

#[test]
fn an_exporter_that_is_killed_is_named() {
    if role().is_some() {
        return exporter(DPU);
    }
    let test = test_name!(an_exporter_that_is_killed_is_named);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let (mut peer, blob) = start_exporter(test);
        let copies = dpu();
        let there = copies.import(&blob).buf(..100).unwrap();
        assert_eq!(copies.write(b"alive", &there), Ok(5));
        peer.kill();
        let dead = Instant::now();
        let error = loop {
            match copies.write(b"dead?", &there) {
                Ok(_) => assert!(dead.elapsed() < LIMIT, "the dead are never named"),
                Err(error) => break error,
            }
        };
        best = best.min(dead.elapsed());
        assert_eq!(
            (error.reason(), error.kind()),
            (Reason::ExporterGone, ErrorKind::ConnectionReset)
        );
        let again = RemoteMmap::from_export(&copies.device, &blob).wait();
        assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_quick("the end of an exporter", best, Duration::from_millis(10));
}

#[test]
fn an_exporter_that_replaces_its_program_is_named() {
    if role().is_some() {
        return exporter(DPU);
    }
    if programs::is_emulated("mark the robust futexes of a thread that ends") {
        return;
    }
    let test = test_name!(an_exporter_that_replaces_its_program_is_named);
    for way in ["exec", "leave a child, exec", "exec another exporter"] {
        let (mut peer, blob) = start_exporter(test);
        let importers = [
            Soft::builder(),
            Soft::builder().defer(true),
            Soft::builder().engines(2),
        ]
        .map(|soft| Copies::new(soft.view(View::Dpu).build()));
        let remotes = importers.each_ref().map(|copies| copies.import(&blob));
        for (copies, remote) in importers.iter().zip(&remotes) {
            let all = remote.buf(..).unwrap();
            assert_eq!(copies.write(&pattern(3, LEN), &all), Ok(LEN));
            assert!(copies.read(&all).unwrap() == pattern(3, LEN));
        }
        // A call of exec that fails changes nothing.
        peer.say("exec nothing");
        peer.hear();
        remotes[0].check().unwrap();
        peer.say(way);
        let heir = (way == "leave a child, exec").then(|| peer.hear().parse().unwrap());
        let next = match way {
            "exec another exporter" => Some(unhex(&peer.hear())),
            _ => {
                assert_eq!(peer.hear(), "replaced");
                None
            }
        };
        for (copies, remote) in importers.iter().zip(&remotes) {
            let all = remote.buf(..).unwrap();
            // The errors come at once, before a notification could arrive.
            for error in [
                remote.check().unwrap_err(),
                copies.write(b"after", &all).unwrap_err(),
                copies.read(&all).unwrap_err(),
            ] {
                let named = (error.reason(), error.kind());
                assert_eq!(named, (Reason::ExporterGone, ErrorKind::ConnectionReset));
            }
        }
        if let Some(heir) = heir {
            let heir = nix::unistd::Pid::from_raw(heir);
            nix::sys::signal::kill(heir, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        let copies = &importers[0];
        let again = RemoteMmap::from_export(&copies.device, &blob).wait();
        assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionReset);
        if let Some(next) = next {
            // The same process now runs another program: what that program exports belongs to it.
            let there = copies.import(&next).buf(..5).unwrap();
            assert_eq!(copies.write(b"alive", &there), Ok(5));
            assert!(remotes[0].check().is_err());
        }
        peer.ends();
    }
}

#[test]
fn an_exporter_that_does_not_answer_is_a_timeout() {
    if role().is_some() {
        return exporter(DPU);
    }
    let (mut peer, blob) =
        start_exporter(test_name!(an_exporter_that_does_not_answer_is_a_timeout));
    let pid = nix::unistd::Pid::from_raw(peer.pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // A thread on another CPU stops a moment later.
    block_until("all its threads have stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let stopped = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("status"));
            status.is_ok_and(|status| status.contains("State:\tT"))
        };
        tasks.flatten().all(stopped)
    });
    let device = dpu().device;
    let limit = Duration::from_millis(50);
    let start = Instant::now();
    let error = RemoteMmap::from_export(&device, &blob)
        .timeout(limit)
        .wait();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() >= limit);
    // An import that is dropped completes by itself, and keeps no reference to its task.
    let count = Count::new();
    let waker = count.waker();
    let mut dropped = RemoteMmap::from_export(&device, &blob).timeout(LIMIT);
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(std::future::Future::poll(std::pin::Pin::new(&mut dropped), &mut cx).is_pending());
    drop((dropped, waker));
    assert_eq!(
        std::sync::Arc::strong_count(&count),
        1,
        "somebody keeps the waker"
    );
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(
        RemoteMmap::from_export(&device, &blob)
            .timeout(LIMIT)
            .wait()
            .is_ok()
    );
    peer.say("drop");
    peer.hear();
    peer.ends();
}

#[test]
fn nothing_is_left_when_the_last_export_and_the_last_import_have_gone() {
    let role = role();
    if role.as_deref() == Some("importer") {
        return nothing_is_left_of_an_import();
    }
    if role.is_some() {
        // Measures before any device exists, because memory of an engine would stay.
        let before = footprint(std::process::id() as i32);
        let (mmap, blob) = exported(DPU, LEN);
        say(&hex(&blob));
        hear();
        drop(mmap);
        is_as_before(std::process::id() as i32, before, "the last export");
        say("clean");
        return;
    }
    let test = test_name!(nothing_is_left_when_the_last_export_and_the_last_import_have_gone);
    let mut peer = Peer::start(test, "exporter");
    let blob = unhex(&peer.hear());
    // This process runs other tests at the same time, so a child checks that nothing is left.
    let mut importer = Peer::start(test, "importer");
    importer.say(&hex(&blob));
    assert_eq!(importer.hear(), "clean");
    importer.ends();
    peer.say("drop");
    assert_eq!(peer.hear(), "clean");
    peer.ends();
}

/// Runs in a child that does nothing else.
fn nothing_is_left_of_an_import() {
    let blob = unhex(&hear().unwrap());
    let device = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    let before = footprint(std::process::id() as i32);
    for _ in 0..3 {
        let remotes: Vec<RemoteMmap> = (0..20)
            .map(|_| block_on(RemoteMmap::from_export(&device, &blob)).unwrap())
            .collect();
        assert!(footprint(std::process::id() as i32).1 >= before.1 + 20);
        drop(remotes);
        is_as_before(std::process::id() as i32, before, "the last import");
    }
    say("clean");
}

#[test]
fn the_kernel_refuses_another_user_who_holds_what_it_may_only_read() {
    const TEST: &str = test_name!(the_kernel_refuses_another_user_who_holds_what_it_may_only_read);
    match role().as_deref() {
        Some("exporter") => return exporter(DPU_READS),
        Some("importer") => {
            let copies = dpu();
            let remote = copies.import(&unhex(&hear().unwrap()));
            let there = remote.buf(..100).unwrap();
            let error = copies.write(b"no", &there).unwrap_err();
            assert_eq!(error.reason(), Reason::RemoteNotWritable);
            // Tries what a hostile importer could: all it has is the mapping.
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let shared: Vec<&str> = maps
                .lines()
                .filter(|line| line.contains("memfd:tokio-doca") && line.contains("r--s"))
                .collect();
            assert!(!shared.is_empty(), "{maps}");
            for line in shared {
                let range = line.split(' ').next().unwrap();
                for write in [false, true] {
                    let path = format!("/proc/self/map_files/{range}");
                    let mut options = std::fs::OpenOptions::new();
                    let opened = options.read(true).write(write).open(&path);
                    assert!(!write || opened.is_err(), "{path} was opened for writing");
                }
                let (start, end) = range.split_once('-').unwrap();
                let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
                assert!(cannot_become_writable(start, end - start), "{line}");
            }
            say("refused");
            hear();
            return;
        }
        _ => {}
    }
    let (mut peer, blob) = start_exporter(TEST);
    let mut importer = Peer::start_as_nobody(TEST, "importer");
    importer.say(&hex(&blob));
    assert_eq!(importer.hear(), "refused");
    importer.ends();
    peer.say("drop");
    peer.hear();
    peer.ends();
}

/// Tests that need root, since only root can make a network namespace.
mod needs_root {
    use super::*;

    /// In another network namespace an abstract socket name is not found, but a path is.
    #[test]
    #[ignore = "needs root"]
    #[expect(
        unsafe_code,
        reason = "leaves the network namespace before the child runs"
    )]
    fn another_network_namespace_needs_a_path() {
        const TEST: &str = test_name!(another_network_namespace_needs_a_path);
        match role().as_deref() {
            Some("exporter") => return exporter(DPU),
            Some("importer") => {
                let device = dpu().device;
                while let Some(blob) = hear() {
                    let import = RemoteMmap::from_export(&device, &unhex(&blob)).timeout(LIMIT);
                    match import.wait() {
                        Ok(remote) => say(&format!("imported {}", remote.len())),
                        Err(error) => say(&format!("{:?}: {error}", error.kind())),
                    }
                }
                return;
            }
            _ => {}
        }
        programs::assert_root();
        let mut importer = Peer::start_with(TEST, "importer", |command| {
            let leave =
                || nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(Into::into);
            // SAFETY: makes one system call, which is allowed between fork and exec.
            unsafe { command.pre_exec(leave) };
        });
        let (abstractly, blob) = start_exporter(TEST);
        importer.say(&hex(&blob));
        let said = importer.hear();
        assert!(
            said.starts_with("NotSupported") && said.contains("TOKIO_DOCA_SOFT_SOCKET"),
            "{said}"
        );
        abstractly.ends();
        let folder = programs::Folder::new();
        let mut by_path = Peer::start_with(TEST, "exporter", |command| {
            command.env("TOKIO_DOCA_SOFT_SOCKET", &folder.0);
        });
        let blob = by_path.hear();
        importer.say(&blob);
        assert_eq!(importer.hear(), format!("imported {LEN}"));
        by_path.say("drop");
        by_path.hear();
        by_path.ends();
        let mut left = std::fs::read_dir(&folder.0).unwrap();
        assert!(left.next().is_none(), "it is removed");
        importer.ends();
    }
}

/// Returns true if the kernel refuses to make a mapping of this process writable by mprotect(2).
#[expect(unsafe_code, reason = "tries what must be refused")]
fn cannot_become_writable(start: usize, len: usize) -> bool {
    let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
    // SAFETY: keeps the mapping, and adds a permission that no code uses.
    unsafe { libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) == -1 }
}
