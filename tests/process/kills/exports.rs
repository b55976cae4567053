//! `kill -9` of an exporter or an importer at random moments: during the handshake, and during
//! small and large copies, by the task's thread or by an engine. The survivor is notified, within
//! 10 ms on a quiet machine; nothing hangs and nothing is left behind.
//!
//! `TOKIO_DOCA_KILLS` sets the number of moments (default: 20); `TOKIO_DOCA_KILLS_SEED` repeats a
//! run.

use std::time::{Duration, Instant, SystemTime};

use support::peer::{Peer, footprint, hear, hex, is_as_before, role, say, unhex};
use support::random::{Random, setting};
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufInventory, RemoteBuf, RemoteMmap},
};

const TEST: &str = test_name!(either_side_may_be_killed_at_any_moment);
const ACCESS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
/// Size of the memory in bytes. Copies of more than 256 KiB are made by an engine.
const LEN: usize = 1 << 20;
/// The latest moment of a kill, in microseconds.
const LATEST: u64 = 15_000;

/// The work during a kill: 0 for repeated imports, otherwise the number of bytes of repeated
/// copies.
const WORK: [usize; 5] = [0, 0, 100, 4096, LEN];

/// Returns a random moment.
fn moment(random: &mut Random) -> Duration {
    Duration::from_micros(random.below(LATEST))
}

fn export() -> (Mmap, Vec<u8>) {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = Mmap::builder().device(&device).access(ACCESS);
    let mmap = builder.alloc(LEN).unwrap();
    let blob = mmap.export_dpu(&device).unwrap();
    (mmap, blob)
}

/// An importer that copies.
struct Importer {
    device: Device,
    dma: Dma,
    buf: Buf,
}

impl Importer {
    fn new(defer: bool, mode: Mode) -> Importer {
        let soft = Soft::builder().view(View::Dpu).defer(defer).build();
        let device = soft.open("p0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(LEN).unwrap();
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        Importer {
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            buf: BufInventory::with_capacity(1).buf(&mmap, ..).unwrap(),
            device,
        }
    }

    async fn import(&self, blob: &[u8]) -> tokio_doca::Result<RemoteMmap> {
        let import = RemoteMmap::from_export(&self.device, blob).timeout(LIMIT);
        in_time("an import", import).await
    }

    /// Copies a buffer there and back.
    async fn copy(&self, there: &RemoteBuf) -> Result<(), JobError> {
        self.buf.set_data(0, there.len()).unwrap();
        in_time("a copy", self.dma.copy(&self.buf, there)).await?;
        self.buf.reset_data_len().unwrap();
        in_time("a copy", self.dma.copy(there, &self.buf)).await?;
        Ok(())
    }

    /// Works until the exporter has ended, and returns when that was noticed. Calls `begun` once
    /// the end cannot go unnoticed.
    async fn work(&self, blob: &[u8], len: usize, begun: impl FnOnce()) -> Instant {
        if len == 0 {
            begun();
            loop {
                match self.import(blob).await {
                    Ok(remote) => drop(remote),
                    Err(error) => {
                        let told = Instant::now();
                        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                        return told;
                    }
                }
            }
        }
        let remote = self.import(blob).await.unwrap();
        let there = remote.buf(..len).unwrap();
        begun();
        loop {
            if let Err(error) = self.copy(&there).await {
                let told = Instant::now();
                let named = (error.reason(), error.kind());
                assert_eq!(
                    named,
                    (Reason::ExporterGone, ErrorKind::ConnectionReset),
                    "{error}"
                );
                assert!(remote.check().is_err());
                return told;
            }
        }
    }
}

/// An importer process that is killed, or that lives on and imports on command.
fn importer() {
    let blob = unhex(&hear().unwrap());
    let importer = Importer::new(false, Mode::EventDriven);
    while let Some(line) = hear() {
        match line.as_str() {
            "import" => {
                run(async {
                    let remote = importer.import(&blob).await.unwrap();
                    let there = remote.buf(..).unwrap();
                    assert_eq!(importer.copy(&there).await, Ok(()));
                });
                say("imported");
            }
            len => {
                let len = len.parse().unwrap();
                run(importer.work(&blob, len, || say("begun")));
            }
        }
    }
}

fn pid() -> i32 {
    std::process::id() as i32
}

/// Kills an exporter. Returns how long the notification took.
fn exporter_dies(random: &mut Random, survivor: &Importer) -> Duration {
    let before = footprint(pid());
    let mut exporter = Peer::start(TEST, "exporter");
    let blob = unhex(&exporter.hear());
    let len = WORK[random.below(WORK.len() as u64) as usize];
    let moment = moment(random);
    let (begun, begins) = std::sync::mpsc::channel();
    let took = std::thread::scope(|scope| {
        let victim = nix::unistd::Pid::from_raw(exporter.pid());
        let killer = scope.spawn(move || {
            begins.recv().unwrap();
            std::thread::sleep(moment);
            let killed = Instant::now();
            nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).unwrap();
            killed
        });
        let told = run(survivor.work(&blob, len, || begun.send(()).unwrap()));
        told.saturating_duration_since(killer.join().unwrap())
    });
    exporter.dies();
    let error = run(survivor.import(&blob)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    is_as_before(pid(), before, "the survivor");
    nothing_is_left(&blob);
    took
}

/// Kills an importer. Returns how long another importer's import took.
fn importer_dies(random: &mut Random, blob: &[u8], other: &mut Peer) -> Duration {
    let before = footprint(pid());
    let mut importer = Peer::start(TEST, "importer");
    importer.say(&hex(blob));
    importer.say(&WORK[random.below(WORK.len() as u64) as usize].to_string());
    importer.hear();
    std::thread::sleep(moment(random));
    let killed = Instant::now();
    importer.kill();
    drop(importer);
    other.say("import");
    assert_eq!(other.hear(), "imported");
    let took = killed.elapsed();
    is_as_before(pid(), before, "the survivor");
    took
}

/// Checks that neither a file nor a socket name is left.
fn nothing_is_left(blob: &[u8]) {
    let name = String::from_utf8(crate::forged::Blob::parse(blob).ticket.name).unwrap();
    block_until("the name has gone", || {
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        !names.contains(&name)
    });
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let entry = entry.unwrap().file_name();
            let text = entry.to_string_lossy();
            assert!(!text.contains(&name), "{text} in {folder:?}");
        }
    }
}

#[test]
fn either_side_may_be_killed_at_any_moment() {
    match role().as_deref() {
        Some("exporter") => {
            let (mmap, blob) = export();
            say(&hex(&blob));
            hear();
            return drop(mmap);
        }
        Some("importer") => return importer(),
        _ => {}
    }
    if !alone(TEST) {
        return;
    }
    let moments = setting("TOKIO_DOCA_KILLS").unwrap_or(20);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_KILLS_SEED").unwrap_or(now);
    println!("{moments} kills, TOKIO_DOCA_KILLS_SEED={seed}");
    let mut random = Random(seed);

    let survivors = [
        Importer::new(false, Mode::EventDriven),
        Importer::new(false, Mode::BusyPoll),
        Importer::new(true, Mode::EventDriven),
    ];
    let mut told: Vec<Duration> = (0..moments.div_ceil(2))
        .map(|moment| exporter_dies(&mut random, &survivors[moment as usize % survivors.len()]))
        .collect();
    drop(survivors);
    told.sort();
    let (median, longest) = (told[told.len() / 2], told[told.len() - 1]);
    println!("an exporter's end was told after {median:?}, {longest:?} at most");

    let (mmap, blob) = export();
    let mut other = Peer::start(TEST, "importer");
    other.say(&hex(&blob));
    other.say("import");
    other.hear();
    let mut served: Vec<Duration> = (0..moments / 2)
        .map(|_| importer_dies(&mut random, &blob, &mut other))
        .collect();
    other.ends();
    drop(mmap);
    served.sort();
    println!(
        "after an importer's end another one imported, and copied, after {:?}, {:?} at most",
        served[served.len() / 2],
        served[served.len() - 1]
    );
    nothing_is_left(&blob);

    assert_quick("half of the ends", median, Duration::from_millis(10));
    assert_quick("each end", longest, Duration::from_secs(5));
    assert_quick(
        "each import",
        served[served.len() - 1],
        Duration::from_secs(5),
    );
}
