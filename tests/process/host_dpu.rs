//! Memory of a process that plays the host, copied in both directions by a process that plays the
//! DPU: permissions, the wrong function, and an exporter that stops in the middle.

use std::time::Instant;

use support::peer::{Peer, hear, hex, role, say, unhex};
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, BufPool, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, RemoteMmap},
};

const LEN: usize = 512 << 10;
const READ_ONLY: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);
const READ_WRITE: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);

/// The host process: exports memory of the function that it is told, and stops on command.
fn host() {
    let [name, access] = [hear().unwrap(), hear().unwrap()];
    let access = if access == "ro" {
        READ_ONLY
    } else {
        READ_WRITE
    };
    let device = Soft::builder().build().open(&name).unwrap();
    let builder = Mmap::builder().device(&device).access(access);
    let mmap = builder.alloc(LEN).unwrap();
    let pool = BufPool::builder(&mmap).element_size(LEN).build().unwrap();
    let buf = pool.try_alloc().unwrap();
    buf.set_data(0, LEN).unwrap();
    buf.copy_in(0, &pattern(5, LEN)).unwrap();
    say(&hex(&mmap.export_dpu(&device).unwrap()));
    while let Some(line) = hear() {
        match &line[..] {
            "sum" => say(&crc32c::crc32c(&bytes(&buf)).to_string()),
            "stop" => break,
            other => panic!("{other}"),
        }
    }
    drop((buf, pool));
    mmap.stop().unwrap();
    say("stopped");
    hear();
}

fn start(test: &str, function: &str, access: &str) -> (Peer, Vec<u8>) {
    let mut peer = Peer::start(test, "host");
    peer.say(function);
    peer.say(access);
    let blob = unhex(&peer.hear());
    (peer, blob)
}

/// The DPU process: a `Dma` with its own buffers.
struct Dpu {
    soft: Soft,
    device: Device,
    dma: Dma,
    pool: BufPool,
}

impl Dpu {
    fn new(port: &str, defer: bool, mode: Mode) -> Dpu {
        let soft = Soft::builder().view(View::Dpu).defer(defer).build();
        let device = soft.open(port).unwrap();
        let mmap = Mmap::builder().device(&device).alloc(12 * LEN).unwrap();
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        Dpu {
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            pool: BufPool::builder(&mmap).element_size(LEN).build().unwrap(),
            soft,
            device,
        }
    }

    async fn import(&self, blob: &[u8]) -> tokio_doca::Result<RemoteMmap> {
        let import = RemoteMmap::from_export(&self.device, blob).timeout(LIMIT);
        in_time("an import", import).await
    }

    fn filled(&self, seed: u8) -> Buf {
        let buf = self.pool.try_alloc().unwrap();
        buf.extend_from_slice(&pattern(seed, LEN)).unwrap();
        buf
    }
}

#[test]
fn what_is_exported_read_only_is_read_and_what_is_read_write_is_written_too() {
    const TEST: &str =
        test_name!(what_is_exported_read_only_is_read_and_what_is_read_write_is_written_too);
    if role().is_some() {
        return host();
    }
    for (config, access) in configs().into_iter().zip(["ro", "rw", "ro", "rw"]) {
        let (mut peer, blob) = start(TEST, "pf0vf0", access);
        let dpu = Dpu::new("p0", config.defer, config.mode);
        let written = run(async {
            let remote = dpu.import(&blob).await.unwrap();
            let there = remote.buf(..).unwrap();
            let here = dpu.pool.alloc().await;
            let copied = in_time("a copy", dpu.dma.copy(&there, &here)).await;
            assert_eq!(copied, Ok(LEN));
            assert!(here.data().unwrap()[..] == pattern(5, LEN));
            let source = dpu.filled(6);
            in_time("a copy", dpu.dma.copy(&source, &there)).await
        });
        let expected = match access {
            "rw" => {
                assert_eq!(written, Ok(LEN), "{config:?}");
                pattern(6, LEN)
            }
            _ => {
                let error = written.unwrap_err();
                let named = (error.reason(), error.kind());
                assert_eq!(named, (Reason::RemoteNotWritable, ErrorKind::NotPermitted));
                pattern(5, LEN)
            }
        };
        peer.say("sum");
        assert_eq!(peer.hear(), crc32c::crc32c(&expected).to_string());
        peer.ends();
    }
}

#[test]
fn a_blob_of_another_ports_function_is_refused() {
    const TEST: &str = test_name!(a_blob_of_another_ports_function_is_refused);
    if role().is_some() {
        return host();
    }
    for (function, right, wrong) in [("pf1vf0", "p1", "p0"), ("pf0", "p0", "p1")] {
        let (peer, blob) = start(TEST, function, "rw");
        let import = |port| run(Dpu::new(port, false, Mode::EventDriven).import(&blob));
        let error = import(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(error.to_string().contains(right), "{error}");
        assert_eq!(import(right).unwrap().len(), LEN);
        peer.ends();
    }
}

#[track_caller]
fn is_revoked(error: JobError) {
    let named = (error.reason(), error.kind());
    let expected = (Reason::ExportRevoked, ErrorKind::ConnectionReset);
    assert_eq!(named, expected, "{error}");
}

/// When the exporter stops, jobs in flight complete with or without an error; later ones fail with
/// one named error.
#[test]
fn an_exporter_that_stops_while_jobs_run_is_one_named_error_for_later_ones() {
    const TEST: &str =
        test_name!(an_exporter_that_stops_while_jobs_run_is_one_named_error_for_later_ones);
    if role().is_some() {
        return host();
    }
    for mode in modes() {
        let (mut peer, blob) = start(TEST, "pf0", "rw");
        let dpu = Dpu::new("p0", true, mode);
        let remote = run(dpu.import(&blob)).unwrap();
        let there = remote.buf(..).unwrap();
        let hold = dpu.soft.faults().hold();
        let bufs: Vec<Buf> = (0..4).map(|seed| dpu.filled(seed)).collect();
        let mut copies: Vec<_> = bufs
            .iter()
            .map(|buf| Box::pin(dpu.dma.copy(buf, &there)))
            .collect();
        let runtime = runtime();
        runtime.block_on(async {
            for copy in &mut copies {
                poll_pending(copy.as_mut());
            }
        });
        peer.say("stop");
        assert_eq!(peer.hear(), "stopped");
        drop(hold);
        runtime.block_on(async {
            for copy in copies {
                match in_time("a copy that ran", copy).await {
                    Ok(copied) => assert_eq!(copied, LEN),
                    Err(error) => is_revoked(error),
                }
            }
            let room = dpu.pool.alloc().await;
            for _ in 0..3 {
                is_revoked(
                    in_time("a copy", dpu.dma.copy(&bufs[0], &there))
                        .await
                        .unwrap_err(),
                );
                is_revoked(
                    in_time("a copy", dpu.dma.copy(&there, &room))
                        .await
                        .unwrap_err(),
                );
            }
            assert_eq!(room.data_len(), 0);
        });
        // None of the buffers is leased any more.
        assert!(bufs.iter().all(|buf| buf.data_mut().is_ok()));
        peer.ends();
    }
}

#[test]
fn copies_under_way_while_the_exporter_stops_go_from_good_to_revoked_once() {
    const TEST: &str =
        test_name!(copies_under_way_while_the_exporter_stops_go_from_good_to_revoked_once);
    if role().is_some() {
        return host();
    }
    for config in configs() {
        let (mut peer, blob) = start(TEST, "pf1", "rw");
        let dpu = Dpu::new("p1", config.defer, config.mode);
        run(async {
            let remote = dpu.import(&blob).await.unwrap();
            let there = remote.buf(..).unwrap();
            let source = dpu.filled(7);
            let begin = Instant::now();
            let mut good = 0;
            let error = loop {
                assert!(begin.elapsed() < LIMIT, "it is never told");
                match in_time("a copy", dpu.dma.copy(&source, &there)).await {
                    Ok(copied) => {
                        assert_eq!(copied, LEN);
                        good += 1;
                        // By then the jobs are in flight.
                        if good == 10 {
                            peer.say("stop");
                        }
                    }
                    Err(error) => break error,
                }
            };
            is_revoked(error);
            assert!(good >= 10, "{config:?}: {good}");
            for _ in 0..10 {
                is_revoked(
                    in_time("a copy", dpu.dma.copy(&source, &there))
                        .await
                        .unwrap_err(),
                );
            }
        });
        assert_eq!(peer.hear(), "stopped");
        peer.ends();
    }
}
