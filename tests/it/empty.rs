//! Operations on no bytes behave like any other, however an operand comes to be empty.

use std::cell::RefCell;
use std::fmt::Debug;

use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Dma, Error, Mmap, WorkQ,
    crc::Crc,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory, BufSlice, RemoteMmap},
    rdma::RecvOpcode,
    sha::{Algorithm, Sha},
};

/// Collects the results that differ from what was expected.
#[derive(Default)]
struct Table(RefCell<Vec<String>>);

impl Table {
    fn wrong(&self, what: &str) {
        self.0.borrow_mut().push(what.to_owned());
    }

    fn is<T: PartialEq + Debug>(&self, what: &str, got: Result<T, JobError>, wanted: T) {
        match got {
            Ok(got) if got == wanted => {}
            Ok(got) => self.wrong(&format!("{what}: {got:?} and not {wanted:?}")),
            Err(error) => self.wrong(&format!("{what}: {:?}", error.reason())),
        }
    }

    /// Expects that this range exists, and is empty.
    fn range<T>(&self, what: &str, got: Result<T, impl Into<Error>>, len: fn(&T) -> usize) {
        match got.map_err(Into::into) {
            Ok(got) => self.is(what, Ok(len(&got)), 0),
            Err(error) => self.wrong(&format!("{what}: {error}")),
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let wrong = self.0.take();
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
    }
}

/// Returns a chain of Bufs without data, or without tailroom.
fn chain(of: &[&Buf]) -> BufChain {
    let chain = BufChain::with_capacity(of.len());
    for &buf in of {
        chain.push(buf).unwrap();
    }
    chain
}

/// All kinds of sources that have no data.
struct Sources {
    buf: Buf,
    behind: Buf,
    slice: Option<BufSlice>,
    range: Option<Buf>,
    none: BufChain,
    empties: BufChain,
}

impl Sources {
    fn new(alloc: impl Fn() -> Buf, mmap: &Mmap) -> Sources {
        let [buf, behind, full] = [(); 3].map(|()| alloc());
        behind.set_data(50, 0).unwrap();
        full.extend_from_slice(b"full").unwrap();
        Sources {
            slice: full.slice(4..4).ok(),
            range: BufInventory::with_capacity(1).buf(mmap, 7..7).ok(),
            none: chain(&[]),
            empties: chain(&[&alloc(), &alloc()]),
            buf,
            behind,
        }
    }
}

/// Runs a body for each source, with its name.
macro_rules! each_source {
    ($sources:expr, |$name:ident, $source:ident| $body:block) => {{
        let sources = &$sources;
        macro_rules! with {
            ($what:literal, $operand:expr) => {{
                let ($name, $source) = ($what, $operand);
                $body
            }};
        }
        with!("an empty Buf", &sources.buf);
        with!("a Buf with headroom alone", &sources.behind);
        with!("an empty chain", &sources.none);
        with!("a chain of empty Bufs", &sources.empties);
        if let Some(slice) = &sources.slice {
            with!("a slice of no bytes", slice);
        }
        if let Some(range) = &sources.range {
            with!("a Buf of no bytes", range);
        }
    }};
}

#[test]
fn a_range_may_be_empty() {
    let table = Table::default();
    each_of(&configs()[..1], async |_| {
        let (host, dpu) = (Soft::builder(), Soft::builder().view(View::Dpu));
        let (host, dpu) = (host.build().open("pf0"), dpu.build().open("p0"));
        let (host, dpu) = (host.unwrap(), dpu.unwrap());
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder().device(&host).access(access).alloc(4096);
        let mmap = mmap.unwrap();
        let remote = RemoteMmap::from_export(&dpu, &mmap.export_dpu(&host).unwrap());
        let remote = remote.wait().unwrap();
        let inventory = BufInventory::with_capacity(9);
        let data = inventory.buf_filled(&mmap, 0..100).unwrap();
        for at in [0, 1, 4096] {
            table.range("inventory.buf", inventory.buf(&mmap, at..at), Buf::capacity);
            let filled = inventory.buf_filled(&mmap, at..at);
            table.range("inventory.buf_filled", filled, Buf::data_len);
            table.range("remote.buf", remote.buf(at..at), |it| it.len());
        }
        for at in [0, 1, 100] {
            table.range("buf.slice", data.slice(at..at), |it| it.len());
            let part = remote.buf(10..110).unwrap();
            table.range("remote.slice", part.slice(at..at), |it| it.len());
        }
    });
}

/// A range of no bytes overlaps with no other range.
#[test]
fn an_empty_range_is_in_nobodys_way() {
    each_of(&configs()[..1], async |bench| {
        let mmap = bench.mmap(4096);
        let inventory = BufInventory::with_capacity(4);
        let whole = inventory.buf_filled(&mmap, ..).unwrap();
        let none = inventory.buf(&mmap, 7..7).unwrap();
        let other = inventory.buf(&mmap, 7..7).unwrap();
        let guard = whole.data_mut().unwrap();
        assert!(none.data_mut().unwrap().is_empty());
        let reads = (none.data().unwrap(), none.data().unwrap());
        let writes = (other.data_mut().unwrap(), none.data_mut().unwrap());
        assert_eq!(reads.0.len() + reads.1.len(), 0);
        assert_eq!(writes.0.len() + writes.1.len(), 0);
        drop(guard);
        assert!(
            whole.data_mut().is_ok(),
            "readers of no bytes are in no way"
        );
        drop((reads, writes));
        assert_eq!(rooms(&none), (0, 0, 0));
        none.extend_from_slice(b"").unwrap();
        none.set_data(0, 0).unwrap();
        assert_eq!(
            none.extend_from_slice(b"x").unwrap_err().reason(),
            Reason::TailroomTooSmall
        );
        drop(whole);
        // An empty Buf does not prevent a pool from claiming the range, nor does the pool prevent
        // empty Bufs in it.
        let pool = tokio_doca::BufPool::builder(&mmap).build().unwrap();
        assert!(inventory.buf(&mmap, 9..9).unwrap().data_mut().is_ok());
        drop((pool, none, other));
        mmap.stop().unwrap();
    });
}

#[test]
fn a_copy_of_no_bytes_copies_none() {
    let table = Table::default();
    each(async |bench| {
        let mmap = bench.mmap(4096);
        let sources = Sources::new(|| bench.empty(), &mmap);
        let (room, full) = (bench.filled(b"before"), bench.filled(&[1; ELEMENT]));
        let range = BufInventory::with_capacity(1).buf(&mmap, 9..9).ok();
        let rooms = [chain(&[&bench.empty()]), chain(&[&full]), chain(&[])];
        each_source!(sources, |name, source| {
            for (to, dst) in [("a Buf", &room), ("a full Buf", &full)] {
                let what = format!("copy {name} to {to}");
                table.is(&what, bench.dma.copy(source, dst).await, 0);
                let started = bench.dma.copy(source, dst).start();
                let ended = match started {
                    Ok(started) => started.await,
                    Err(refused) => Err(refused.into()),
                };
                table.is(&what, ended, 0);
            }
            for dst in &rooms {
                let what = format!("copy {name} to {} Bufs", dst.len());
                table.is(&what, bench.dma.copy(source, dst).await, 0);
            }
            if let Some(range) = &range {
                let what = format!("copy {name} to a Buf of no bytes");
                table.is(&what, bench.dma.copy(source, range).await, 0);
            }
        });
        assert_eq!(
            (bytes(&room), bytes(&full)),
            (b"before".to_vec(), vec![1; ELEMENT])
        );
        bench.works().await;
    });
}

/// A Buf of no bytes is on both sides of a job, and occurs in a list several times.
#[test]
fn no_bytes_conflict_with_themselves() {
    let table = Table::default();
    each(async |bench| {
        let mmap = bench.mmap(4096);
        let none = BufInventory::with_capacity(1).buf(&mmap, 9..9).unwrap();
        let twice = || chain(&[&none, &none]);
        let crc = Crc::builder(&bench.device).attach(&bench.workq).unwrap();
        let guard = none.data_mut().unwrap();
        table.is("copy to itself", bench.dma.copy(&none, &none).await, 0);
        let copied = crc.copy_crc(&none, &none).await;
        table.is(
            "copy_crc to itself",
            copied.map(|it| (it.bytes, it.crc)),
            (0, 0),
        );
        let lists = bench.dma.copy(twice(), twice()).await;
        table.is("copy of a list to another", lists, 0);
        let list = bench.dma.copy(&none, twice()).await;
        table.is("copy to a list of it", list, 0);
        drop(guard);
        assert_eq!(rooms(&none), (0, 0, 0));
        bench.works().await;
    });
}

/// A copy of no bytes takes a slot like any other, and is submitted once one is free.
#[test]
fn a_copy_of_no_bytes_waits_its_turn() {
    each(async |bench| {
        let hold = bench.hold();
        let depth = bench.workq.depth() as usize;
        let src = bench.empty();
        let dsts: Vec<Buf> = (0..=depth).map(|_| bench.empty()).collect();
        let copy = |at: usize| bench.dma.copy(&src, &dsts[at]);
        let started: Vec<_> = (0..depth).map(|at| copy(at).start().unwrap()).collect();
        let last = copy(depth);
        tokio::pin!(last);
        poll_pending(last.as_mut());
        drop(hold);
        for started in started {
            assert_eq!(started.await, Ok(0));
        }
        assert_eq!(in_time("the one that waited", last).await, Ok(0));
        bench.works().await;
    });
}

#[test]
fn a_copy_to_and_from_imported_memory_of_no_bytes_copies_none() {
    let table = Table::default();
    for inline_limit in [64 << 10, 0] {
        let (host, dpu) = (Soft::builder(), Soft::builder().view(View::Dpu));
        let dpu = dpu.inline_limit(inline_limit).build().open("p0").unwrap();
        let host = host.build().open("pf0").unwrap();
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder().device(&host).access(access).alloc(4096);
        let mmap = mmap.unwrap();
        let remote = RemoteMmap::from_export(&dpu, &mmap.export_dpu(&host).unwrap());
        let remote = remote.wait().unwrap();
        let own = Mmap::builder().device(&dpu).alloc(4096).unwrap();
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf(&own, ..100).unwrap();
        let dst = inventory.buf_filled(&own, 100..).unwrap();
        let dma = Dma::builder(&dpu).attach(&WorkQ::builder().build().unwrap());
        let dma = dma.unwrap();
        run(async {
            let there = remote.buf(..10).unwrap();
            table.is("copy to a range", dma.copy(&src, &there).await, 0);
            let Ok(none) = remote.buf(5..5) else {
                return table.wrong("there is no range of no bytes");
            };
            table.is("copy to no range", dma.copy(&src, &none).await, 0);
            table.is("copy from no range", dma.copy(&none, &dst).await, 0);
            table.is("copy within no range", dma.copy(&none, &none).await, 0);
        });
    }
}

#[test]
fn an_empty_message_has_a_digest() {
    let table = Table::default();
    each(async |bench| {
        let sha = Sha::builder(&bench.device).attach(&bench.workq).unwrap();
        let mmap = bench.mmap(4096);
        let sources = Sources::new(|| bench.empty(), &mmap);
        let digest = bench.empty();
        let session = sha.session(Algorithm::Sha256).unwrap();
        session.finish((), &digest).await.unwrap();
        let wanted = bytes(&digest);
        each_source!(sources, |name, source| {
            digest.reset_data_len().unwrap();
            let hashed = sha.hash(Algorithm::Sha256, source, &digest).await;
            table.is(&format!("hash {name}"), hashed, 32);
            let hashed = session.update(source).await;
            table.is(&format!("update with {name}"), hashed, 0);
            if bytes(&digest) != wanted {
                table.wrong(&format!("hash {name}: another digest"));
            }
        });
        digest.reset_data_len().unwrap();
        assert_eq!(session.finish(&sources.none, &digest).await, Ok(32));
        assert_eq!(bytes(&digest), wanted);
        bench.works().await;
    });
}

#[test]
fn remote_operations_on_no_bytes_move_none() {
    let table = Table::default();
    for setup in Setup::all() {
        run(async {
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            let sources = Sources::new(|| one.empty(), &one.mmap);
            let remote = one.import(&other.memory());
            let (there, none) = (remote.buf(..64).unwrap(), remote.buf(7..7));
            let (full, room) = (one.filled(&[1; ELEMENT]), one.filled(b"before"));
            let rdma = &one.rdma;
            each_source!(sources, |name, source| {
                let what = |verb: &str| format!("{verb} {name}");
                table.is(&what("write"), rdma.write(source, &there).await, 0);
                if let Ok(none) = &none {
                    table.is(
                        &what("write to no bytes"),
                        rdma.write(source, none).await,
                        0,
                    );
                }
                for immediate in [None, Some(7)] {
                    let dst = other.filled(b"before ");
                    let received = other.rdma.recv(&dst).start().unwrap();
                    let sent = match immediate {
                        None => rdma.send(source).await,
                        Some(immediate) => rdma.send_imm(source, immediate).await,
                    };
                    if sent.is_ok() {
                        let received = in_time("the message", received).await;
                        let received = received.map(|it| (it.len, it.immediate));
                        table.is(&what("receive"), received, (0, immediate));
                    }
                    table.is(&what("send"), sent, 0);
                    assert_eq!(bytes(&dst), b"before ");
                }
                let received = other.rdma.recv(()).start().unwrap();
                let written = rdma.write_imm(source, &there, 9).await;
                if written.is_ok() {
                    let received = in_time("the immediate", received).await;
                    let received = received.map(|it| (it.len, it.opcode));
                    table.is(&what("receive"), received, (0, RecvOpcode::WriteImm));
                }
                table.is(&what("write_imm"), written, 0);
            });
            table.is("read to a full Buf", rdma.read(&there, &full).await, 0);
            let rooms = chain(&[&full]);
            table.is("read to a full chain", rdma.read(&there, &rooms).await, 0);
            if let Ok(none) = none {
                table.is("read no bytes", rdma.read(&none, &room).await, 0);
                let small = rdma.fetch_add(&none, 1).await.unwrap_err();
                assert_eq!(small.reason(), Reason::RemoteTooSmall);
            }
            assert_eq!(bytes(&room), b"before");
            assert_eq!(other.bytes(0, 64), [0; 64]);
            // Neither side has failed.
            let (sent, received) = tokio::join!(one.send(b"on"), other.recv());
            assert_eq!((sent, received), (Ok(()), Ok(b"on".to_vec())));
        });
    }
}
