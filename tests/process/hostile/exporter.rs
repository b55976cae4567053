//! Hostile exporters against an honest importer: wrong answers, missing answers, and wrong
//! descriptors.
//!
//! This process imports. The hostile processes each listen at the name in a forged blob. After each
//! attack this process has the same resources as before, and imports from an honest exporter within
//! a second.

use std::time::{Duration, Instant};

use crate::forged::exporter::{DESCRIPTORS, LEN, MESSAGES, hostile};
use futures::executor::block_on;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::peer::{Peer, footprint, hear, hex, is_as_before, role, say, unhex};
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, Error, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufInventory, RemoteBuf, RemoteMmap},
};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
/// The time limit for an exporter that does not answer.
const SHORT: Duration = Duration::from_millis(100);

/// An honest exporter.
fn honest() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = Mmap::builder().device(&device).access(DPU);
    let mmap = builder.alloc(LEN).unwrap();
    say(&hex(&mmap.export_dpu(&device).unwrap()));
    hear();
    drop(mmap);
    say("dropped");
    hear();
}

/// A hostile exporter, in a process of its own.
struct Hostile(Peer);

impl Hostile {
    /// Starts a play. Returns the forged blob: importing it meets the attack.
    fn plays(&mut self, play: &str) -> Vec<u8> {
        self.0.say(play);
        unhex(&self.0.hear())
    }

    fn ends(self) {
        self.0.ends();
    }

    fn dies(self) {
        self.0.dies();
    }
}

impl std::ops::Deref for Hostile {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl std::ops::DerefMut for Hostile {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.0
    }
}

/// The importer in this process, which runs no other test.
struct Importer {
    test: &'static str,
    device: Device,
    dma: Dma,
    buf: Buf,
    honest: Peer,
    blob: Vec<u8>,
    before: (usize, usize, usize),
}

impl Importer {
    /// Returns `None` in the other processes, once they have played their roles.
    fn start(test: &'static str) -> Option<Importer> {
        match role().as_deref() {
            Some("hostile") => hostile(),
            Some("honest") => honest(),
            _ if alone(test) => {
                let device = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
                let mmap = Mmap::builder().device(&device).alloc(LEN).unwrap();
                let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
                let mut honest = Peer::start(test, "honest");
                let mut importer = Importer {
                    test,
                    dma: Dma::builder(&device).attach(&workq).unwrap(),
                    buf: BufInventory::with_capacity(1).buf(&mmap, ..).unwrap(),
                    device,
                    blob: unhex(&honest.hear()),
                    honest,
                    before: (0, 0, 0),
                };
                // Measured before the first import, when the fabric has no threads.
                importer.before = footprint(std::process::id() as i32);
                importer.survived("nothing");
                return Some(importer);
            }
            _ => {}
        }
        None
    }

    fn import(&self, blob: &[u8], timeout: Duration) -> Result<RemoteMmap, Error> {
        let start = Instant::now();
        let import = RemoteMmap::from_export(&self.device, blob).timeout(timeout);
        let imported = import.wait();
        let took = start.elapsed();
        assert_quick("an import", took, timeout + Duration::from_secs(5));
        imported
    }

    fn write(&self, to: &RemoteBuf) -> Result<usize, JobError> {
        self.buf.reset_data_len().unwrap();
        self.buf.extend_from_slice(&[9; 100]).unwrap();
        block_on(self.dma.copy(&self.buf, to))
    }

    /// Checks that an import from an honest exporter takes less than a second.
    fn honest(&self) {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            let remote = self.import(&self.blob, LIMIT).unwrap();
            assert_eq!(self.write(&remote.buf(..).unwrap()), Ok(100));
            best = best.min(start.elapsed());
        }
        assert_quick("an honest import", best, Duration::from_secs(1));
    }

    fn survived(&self, attack: &str) {
        eprintln!("after: {attack}");
        self.honest();
        let pid = std::process::id() as i32;
        is_as_before(pid, self.before, attack);
    }

    fn hostile(&self) -> Hostile {
        Hostile(Peer::start(self.test, "hostile"))
    }

    /// Expects that one more process stays open: two pipes to it, and the thread that reads them.
    fn keeps_one(&mut self) {
        self.before.0 += 2;
        self.before.2 += 1;
    }

    /// Waits until the end of the exporter is noticed.
    fn is_gone(&self, remote: &RemoteMmap) {
        block_until("the end is noticed", || remote.check().is_err());
        let there = remote.buf(..100).unwrap();
        let error = self.write(&there).unwrap_err();
        let named = (error.reason(), error.kind());
        assert_eq!(
            named,
            (Reason::ExporterGone, ErrorKind::ConnectionReset),
            "{error}"
        );
    }

    /// Starts a play, and checks that the import fails with an error of one of these kinds.
    fn refuses(&self, hostile: &mut Hostile, play: &str, timeout: Duration, kinds: &[ErrorKind]) {
        let blob = hostile.plays(play);
        let error = self.import(&blob, timeout).expect_err(play);
        assert!(kinds.contains(&error.kind()), "{play}: {error:?}");
        assert!(error.to_string().len() > 20, "{play}: {error}");
    }
}

/// Kinds of errors that name the cause.
const NAMED: [ErrorKind; 4] = [
    ErrorKind::NotPermitted,
    ErrorKind::OperatingSystem,
    ErrorKind::UnsupportedVersion,
    ErrorKind::ConnectionReset,
];

#[test]
fn an_exporter_that_sends_what_is_not_to_be_trusted_is_refused() {
    if programs::is_emulated("say that descriptors did not fit") {
        return;
    }
    let test = test_name!(an_exporter_that_sends_what_is_not_to_be_trusted_is_refused);
    let Some(mut importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    importer.keeps_one();
    // A correct play succeeds, so the plays below differ only in what they name.
    let remote = importer.import(&hostile.plays("right"), LIMIT).unwrap();
    assert_eq!(importer.write(&remote.buf(..).unwrap()), Ok(100));
    drop(remote);
    hostile.say("over");
    for play in DESCRIPTORS {
        importer.refuses(&mut hostile, play, LIMIT, &NAMED[..2]);
        hostile.say("over");
        importer.survived(play);
    }
    hostile.ends();
    importer.honest.ends();
}

#[test]
fn an_exporter_that_answers_nonsense_is_refused() {
    let test = test_name!(an_exporter_that_answers_nonsense_is_refused);
    let Some(mut importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    importer.keeps_one();
    for play in MESSAGES.into_iter().chain(["a stream"]) {
        importer.refuses(&mut hostile, play, LIMIT, &NAMED);
        hostile.say("over");
        importer.survived(play);
    }
    // The importer asks again, and gets no answer then.
    for play in ["hangs up", "nothing in it"] {
        importer.refuses(&mut hostile, play, SHORT, &[ErrorKind::TimedOut]);
        hostile.say("over");
        importer.survived(play);
    }
    hostile.ends();
    importer.honest.ends();
}

#[test]
fn an_exporter_that_is_silent_late_or_full_is_a_timeout() {
    let test = test_name!(an_exporter_that_is_silent_late_or_full_is_a_timeout);
    let Some(mut importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    importer.keeps_one();
    for play in ["silent", "deaf", "full", "late"] {
        importer.refuses(&mut hostile, play, SHORT, &[ErrorKind::TimedOut]);
        hostile.say("over");
        if play == "late" {
            assert_eq!(hostile.hear(), "late");
            hostile.say("over");
        }
        importer.survived(play);
    }
    hostile.ends();
    importer.honest.ends();
}

#[test]
fn an_exporter_that_dies_at_any_step_is_named() {
    let test = test_name!(an_exporter_that_dies_at_any_step_is_named);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    for play in ["dies unasked", "dies asked"] {
        let mut hostile = importer.hostile();
        importer.refuses(&mut hostile, play, LIMIT, &NAMED[3..]);
        hostile.dies();
        importer.survived(play);
    }
    for _ in 0..5 {
        let mut hostile = importer.hostile();
        let blob = hostile.plays("dies answering");
        match importer.import(&blob, LIMIT) {
            Ok(remote) => importer.is_gone(&remote),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        hostile.dies();
        importer.survived("dies answering");
    }
    importer.honest.ends();
}

#[test]
fn the_end_of_an_exporter_is_noticed_though_a_child_keeps_all_it_had() {
    let test = test_name!(the_end_of_an_exporter_is_noticed_though_a_child_keeps_all_it_had);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    let blob = hostile.plays("forks");
    let remote = importer.import(&blob, LIMIT).unwrap();
    let heir = Pid::from_raw(hostile.hear().parse().unwrap());
    remote.check().unwrap();
    hostile.kill();
    importer.is_gone(&remote);
    drop(hostile);
    // The exporter's memory still exists, and so does its socket name, but nothing answers there.
    let error = importer.import(&blob, SHORT).unwrap_err();
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::TimedOut];
    assert!(kinds.contains(&error.kind()), "{error}");
    kill(heir, Signal::SIGKILL).unwrap();
    drop(remote);
    importer.survived("a child that keeps all");
    importer.honest.ends();
}

#[test]
fn an_exporter_says_whether_it_has_gone_of_itself_alone() {
    let test = test_name!(an_exporter_says_whether_it_has_gone_of_itself_alone);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    // Only the kernel's bit (FUTEX_OWNER_DIED) reports the end of the owner; other bits do not.
    for (word, gone) in [
        (1_u32 << 30, true),
        (u32::MAX, true),
        (!(1 << 30), false),
        (1 << 31, false),
        (1, false),
    ] {
        let blob = hostile.plays(&format!("owner's word @ {word}"));
        let remote = importer.import(&blob, LIMIT).unwrap();
        let there = remote.buf(..).unwrap();
        match importer.write(&there) {
            Ok(written) => assert!(!gone && written == 100, "{word:x}"),
            Err(error) => assert!(gone && error.reason() == Reason::ExporterGone, "{error}"),
        }
        assert_eq!(remote.check().is_err(), gone, "{word:x}");
        importer.honest();
        hostile.say("next");
    }
    hostile.ends();
    importer.survived("words of its owner");
    importer.honest.ends();
}

#[test]
fn an_exporter_that_hides_execve_keeps_its_own_memory_there_until_it_ends() {
    let test = test_name!(an_exporter_that_hides_execve_keeps_its_own_memory_there_until_it_ends);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    let blob = hostile.plays("replaces its program");
    let remote = importer.import(&blob, LIMIT).unwrap();
    hostile.say("now");
    assert_eq!(hostile.hear(), "replaced");
    remote.check().unwrap();
    assert_eq!(importer.write(&remote.buf(..).unwrap()), Ok(100));
    importer.honest();
    hostile.kill();
    importer.is_gone(&remote);
    drop((hostile, remote));
    importer.survived("execve that was hidden");
    importer.honest.ends();
}

#[test]
fn copies_work_while_the_exporter_scribbles_and_punches() {
    let test = test_name!(copies_work_while_the_exporter_scribbles_and_punches);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    let mut hostile = importer.hostile();
    let blob = hostile.plays("keeps punching");
    let remote = importer.import(&blob, LIMIT).unwrap();
    hostile.say("now");
    let there = remote.buf(..).unwrap();
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert_eq!(importer.write(&there), Ok(100));
        importer.buf.reset_data_len().unwrap();
        let read = block_on(importer.dma.copy(&there, &importer.buf));
        assert_eq!(read, Ok(LEN));
    }
    hostile.kill();
    importer.is_gone(&remote);
    drop((hostile, there, remote));
    importer.survived("scribbles and holes");
    importer.honest.ends();
}

/// Returns the number of page faults of this thread: those are what another process can make it
/// wait for.
fn faults() -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    usage.minor_page_faults()
}

#[test]
fn an_exporter_that_punches_holds_up_an_engine_and_no_runtime() {
    const COPIES: i64 = 300;
    let test = test_name!(an_exporter_that_punches_holds_up_an_engine_and_no_runtime);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    // By default the task itself touches the memory. If an engine handles memory of untrusted
    // processes, no task does.
    for (limit, by_the_task) in [(64 << 10, true), (0, false)] {
        let soft = Soft::builder().view(View::Dpu).inline_limit(limit).build();
        let dpu = soft.open("p0").unwrap();
        let mmap = Mmap::builder().device(&dpu).alloc(LEN).unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        let mut hostile = importer.hostile();
        let blob = hostile.plays("punches when told");
        let remote = RemoteMmap::from_export(&dpu, &blob).timeout(LIMIT);
        let there = remote.wait().unwrap().buf(..).unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let dma = Dma::builder(&dpu).attach(&workq).unwrap();
        let mut faulted = 0;
        run(async {
            for _ in 0..COPIES {
                hostile.say("punch");
                assert_eq!(hostile.hear(), "punched");
                buf.reset_data_len().unwrap();
                let before = faults();
                assert_eq!(dma.copy(&there, &buf).await, Ok(LEN));
                faulted += faults() - before;
            }
        });
        eprintln!("inline up to {limit}: {faulted} page faults in {COPIES} copies");
        assert_eq!(faulted >= COPIES, by_the_task);
        hostile.say("over");
        hostile.ends();
        drop((there, buf, mmap, dma, workq, dpu, soft));
        importer.survived("holes");
    }
    importer.honest.ends();
}

#[test]
fn whoever_takes_the_name_of_a_dead_exporter_answers_nothing() {
    let test = test_name!(whoever_takes_the_name_of_a_dead_exporter_answers_nothing);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    let mut dead = Peer::start(test, "honest");
    let blob = dead.hear();
    let remote = importer.import(&unhex(&blob), LIMIT).unwrap();
    dead.kill();
    drop(dead);
    importer.is_gone(&remote);
    let mut hostile = importer.hostile();
    hostile.plays(&format!("squats @ {blob}"));
    let error = importer.import(&unhex(&blob), LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    importer.is_gone(&remote);
    hostile.ends();
    drop(remote);
    importer.survived("a name that was taken");
    importer.honest.ends();
}

#[test]
fn whoever_forges_the_instance_of_another_says_nothing_about_it() {
    let test = test_name!(whoever_forges_the_instance_of_another_says_nothing_about_it);
    let Some(importer) = Importer::start(test) else {
        return;
    };
    for thief_first in [true, false] {
        let mut owner = Peer::start(test, "honest");
        let blob = unhex(&owner.hear());
        let mut thief = importer.hostile();
        let forged = thief.plays(&format!("steals the instance @ {}", hex(&blob)));
        let import = |blob| importer.import(blob, LIMIT).unwrap();
        let (owned, stolen) = if thief_first {
            let stolen = import(&forged);
            (import(&blob), stolen)
        } else {
            let owned = import(&blob);
            (owned, import(&forged))
        };
        owned.check().unwrap();
        stolen.check().unwrap();
        assert_eq!(importer.write(&owned.buf(..).unwrap()), Ok(100));
        thief.kill();
        drop(thief);
        importer.is_gone(&stolen);
        assert_eq!(importer.write(&owned.buf(..).unwrap()), Ok(100));
        owner.say("drop");
        assert_eq!(owner.hear(), "dropped");
        assert_eq!(owned.check().unwrap_err().reason(), Reason::ExportRevoked);
        owner.ends();
    }
    importer.survived("an instance of another");
    importer.honest.ends();
}
