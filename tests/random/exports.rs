//! Checks random programs of exports and imports against a model: memory is allocated and dropped,
//! stopped and started, exported and imported, written and read, in any order. The exporter is this
//! process or another one. `PROPTEST_CASES` sets the number of cases.

use futures::executor::block_on;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::test_name;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufInventory, RemoteMmap},
};

const ACCESS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const LEN: usize = 5000;
/// The number of Mmaps of the exporter, and of imports.
const MMAPS: usize = 3;
const IMPORTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    Export(usize),
    Stop(usize),
    Start(usize),
    DropMmap(usize),
    /// Imports into this entry; the second number picks any blob that was ever exported.
    Import(usize, usize),
    DropImport(usize),
    Write(usize, usize, usize, u8),
    Read(usize, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (mmap, import) = (0..MMAPS, 0..IMPORTS);
    prop_oneof![
        2 => mmap.clone().prop_map(Step::Alloc),
        4 => mmap.clone().prop_map(Step::Export),
        1 => mmap.clone().prop_map(Step::Stop),
        1 => mmap.clone().prop_map(Step::Start),
        1 => mmap.prop_map(Step::DropMmap),
        5 => (import.clone(), any::<usize>()).prop_map(|(i, b)| Step::Import(i, b)),
        1 => import.clone().prop_map(Step::DropImport),
        5 => (import.clone(), 0..LEN, 1..LEN, any::<u8>()).prop_map(|(i, a, n, v)| Step::Write(i, a, n, v)),
        5 => (import, 0..LEN, 1..LEN).prop_map(|(i, a, n)| Step::Read(i, a, n)),
    ]
}

/// The state of the exporter.
struct Host {
    device: Device,
    mmaps: [Option<Mmap>; MMAPS],
}

impl Host {
    fn new() -> Host {
        Host {
            device: Soft::builder().build().open("pf0").unwrap(),
            mmaps: [const { None }; MMAPS],
        }
    }

    /// Executes a command line, and returns the answer.
    fn obey(&mut self, line: &str) -> String {
        let (word, at) = line.split_once(' ').unwrap();
        let place = &mut self.mmaps[at.parse::<usize>().unwrap()];
        match word {
            "alloc" => {
                let builder = Mmap::builder().device(&self.device).access(ACCESS);
                *place = Some(builder.alloc(LEN).unwrap());
            }
            "export" => return hex(&place.as_ref().unwrap().export_dpu(&self.device).unwrap()),
            "stop" => place.as_ref().unwrap().stop().unwrap(),
            "start" => place.as_ref().unwrap().start([&self.device]).unwrap(),
            "drop" => *place = None,
            "read" => {
                let all = BufInventory::with_capacity(1);
                let all = all.buf_filled(place.as_ref().unwrap(), ..).unwrap();
                let mut bytes = vec![0; LEN];
                all.copy_out(0, &mut bytes).unwrap();
                return hex(&bytes);
            }
            other => panic!("{other}"),
        }
        "done".to_owned()
    }
}

/// The exporter: in this process or in another one.
enum Side {
    Here(Host),
    There(Peer),
}

impl Side {
    fn ask(&mut self, word: &str, at: usize) -> String {
        let line = format!("{word} {at}");
        match self {
            Side::Here(host) => host.obey(&line),
            Side::There(peer) => {
                peer.say(&line);
                peer.hear()
            }
        }
    }
}

/// A memory as the model knows it. Its number is its index in `memories`.
struct Memory {
    bytes: Vec<u8>,
    /// The index of the blob that is currently exported.
    export: Option<usize>,
    /// True while the exporter has a handle.
    held: bool,
}

struct Model {
    side: Side,
    device: Device,
    dma: Dma,
    buf: Buf,
    memories: Vec<Memory>,
    /// For each Mmap of the exporter: the memory's number, and true if it is started.
    mmaps: [Option<(usize, bool)>; MMAPS],
    /// All blobs, each with the number of its memory.
    blobs: Vec<(Vec<u8>, usize)>,
    /// The imports, each with the index of its blob.
    imports: [Option<(RemoteMmap, usize)>; IMPORTS],
}

impl Model {
    fn new(side: Side) -> Model {
        let soft = Soft::builder().view(View::Dpu).build();
        let device = soft.open("p0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(LEN).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        Model {
            side,
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            buf: BufInventory::with_capacity(1).buf(&mmap, ..).unwrap(),
            device,
            memories: Vec::new(),
            mmaps: [None; MMAPS],
            blobs: Vec::new(),
            imports: [const { None }; IMPORTS],
        }
    }

    /// Returns true if a blob is currently exported.
    fn lives(&self, blob: usize) -> bool {
        self.memories[self.blobs[blob].1].export == Some(blob)
    }

    /// Ends the export of a memory if its last handle is gone. In the same process, imports are
    /// handles too.
    fn let_go(&mut self, memory: usize) {
        let own = matches!(self.side, Side::Here(_));
        let blobs = &self.blobs;
        let imported = self
            .imports
            .iter()
            .flatten()
            .any(|(_, blob)| blobs[*blob].1 == memory);
        let handle = self.memories[memory].held || (own && imported);
        if !handle {
            self.memories[memory].export = None;
        }
    }

    fn drop_mmap(&mut self, at: usize) {
        if let Some((memory, _)) = self.mmaps[at].take() {
            self.side.ask("drop", at);
            self.memories[memory].held = false;
            self.let_go(memory);
        }
    }

    fn drop_import(&mut self, at: usize) {
        if let Some((remote, blob)) = self.imports[at].take() {
            drop(remote);
            self.let_go(self.blobs[blob].1);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc(at) => {
                self.drop_mmap(at);
                self.side.ask("alloc", at);
                self.mmaps[at] = Some((self.memories.len(), true));
                self.memories.push(Memory {
                    bytes: vec![0; LEN],
                    export: None,
                    held: true,
                });
            }
            Step::Export(at) => {
                let Some((memory, true)) = self.mmaps[at] else {
                    return;
                };
                let bytes = unhex(&self.side.ask("export", at));
                match self.memories[memory].export {
                    Some(blob) => assert_eq!(self.blobs[blob].0, bytes, "the same again"),
                    None => {
                        self.memories[memory].export = Some(self.blobs.len());
                        self.blobs.push((bytes, memory));
                    }
                }
            }
            Step::Stop(at) => {
                if let Some((memory, started @ true)) = &mut self.mmaps[at] {
                    *started = false;
                    self.memories[*memory].export = None;
                    self.side.ask("stop", at);
                }
            }
            Step::Start(at) => {
                if let Some((_, started @ false)) = &mut self.mmaps[at] {
                    *started = true;
                    self.side.ask("start", at);
                }
            }
            Step::DropMmap(at) => self.drop_mmap(at),
            Step::Import(at, blob) => {
                self.drop_import(at);
                if self.blobs.is_empty() {
                    return;
                }
                let blob = blob % self.blobs.len();
                let import = RemoteMmap::from_export(&self.device, &self.blobs[blob].0);
                match import.timeout(support::LIMIT).wait() {
                    Ok(remote) => {
                        assert!(self.lives(blob), "it was taken back");
                        self.imports[at] = Some((remote, blob));
                    }
                    Err(error) => {
                        assert!(!self.lives(blob), "{error}");
                        // Nothing listens if nothing is exported.
                        let kinds = [ErrorKind::NotPermitted, ErrorKind::ConnectionReset];
                        assert!(kinds.contains(&error.kind()), "{error}");
                    }
                }
            }
            Step::DropImport(at) => self.drop_import(at),
            Step::Write(at, from, len, byte) => {
                let len = len.min(LEN - from);
                let bytes = vec![byte; len];
                self.buf.reset_data_len().unwrap();
                self.buf.extend_from_slice(&bytes).unwrap();
                if let Some(memory) = self.copy(at, from, len, false) {
                    self.memories[memory].bytes[from..from + len].copy_from_slice(&bytes);
                }
            }
            Step::Read(at, from, len) => {
                let len = len.min(LEN - from);
                self.buf.reset_data_len().unwrap();
                if let Some(memory) = self.copy(at, from, len, true) {
                    let right = &self.memories[memory].bytes[from..from + len];
                    assert!(self.buf.data().unwrap()[..] == *right, "other bytes");
                }
            }
        }
    }

    /// Copies, checks the result, and returns the number of the memory if the copy succeeded.
    fn copy(&self, at: usize, from: usize, len: usize, read: bool) -> Option<usize> {
        let (remote, blob) = self.imports[at].as_ref()?;
        let lives = self.lives(*blob);
        assert_eq!(remote.check().is_ok(), lives);
        let there = match remote.buf(from..from + len) {
            Ok(there) => there,
            // The memory is of this process, and is stopped.
            Err(error) => {
                assert_eq!((error.kind(), lives), (ErrorKind::BadState, false));
                return None;
            }
        };
        let copied: Result<usize, JobError> = match read {
            true => block_on(self.dma.copy(&there, &self.buf)),
            false => block_on(self.dma.copy(&self.buf, &there)),
        };
        match copied {
            Ok(copied) => {
                assert!(lives, "it was taken back");
                assert_eq!(copied, len);
                Some(self.blobs[*blob].1)
            }
            Err(error) => {
                assert!(!lives, "{error}");
                assert_eq!(error.reason(), Reason::ExportRevoked);
                None
            }
        }
    }

    /// Checks that the exporter sees what was written, and cleans up for the next program.
    fn end(mut self) -> Side {
        for at in 0..MMAPS {
            if let Some((memory, true)) = self.mmaps[at] {
                let bytes = unhex(&self.side.ask("read", at));
                assert!(
                    bytes == self.memories[memory].bytes,
                    "the exporter has other bytes"
                );
            }
        }
        (0..IMPORTS).for_each(|at| self.drop_import(at));
        (0..MMAPS).for_each(|at| self.drop_mmap(at));
        self.side
    }
}

fn programs(mut side: Option<Side>) -> Side {
    let mut runner = TestRunner::new(Config {
        cases: std::env::var("PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(64),
        failure_persistence: None,
        // No shrinking: after a failure, the other process is in an unknown state.
        max_shrink_iters: 0,
        ..Config::default()
    });
    let place = std::cell::RefCell::new(&mut side);
    runner
        .run(&vec(step(), 1..80), |steps| {
            let mut model = Model::new(place.borrow_mut().take().unwrap());
            for step in &steps {
                model.step(step);
            }
            **place.borrow_mut() = Some(model.end());
            Ok(())
        })
        .unwrap();
    side.unwrap()
}

#[test]
fn exports_of_this_process_are_as_the_model_has_them() {
    programs(Some(Side::Here(Host::new())));
}

#[test]
fn exports_of_another_process_are_as_the_model_has_them() {
    if role().is_some() {
        let mut host = Host::new();
        while let Some(line) = hear() {
            say(&host.obey(&line));
        }
        return;
    }
    let peer = Peer::start(
        test_name!(exports_of_another_process_are_as_the_model_has_them),
        "exporter",
    );
    match programs(Some(Side::There(peer))) {
        Side::There(peer) => peer.ends(),
        Side::Here(_) => unreachable!("it is another process"),
    }
}
