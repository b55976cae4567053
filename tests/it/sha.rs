//! Hashes: the values that NIST publishes, however a message is split; what is refused; and what
//! happens to a session, and to an `Op` that is dropped or forgotten.

#![expect(unsafe_code, reason = "implements Adapter, to say less of a device")]

use std::pin::{Pin, pin};
use std::sync::Arc;

use proptest::prelude::*;
use sha2::Digest;
use support::peer::hex;
use support::*;
use tokio_doca::device::contract::{Adapter, Queue, QueueConfig, Registrar};
use tokio_doca::soft::{Fault, Limits, Soft};
use tokio_doca::{
    Buf, BufPool, Device, ErrorKind, Mmap, Mode, WorkQ,
    device::{Caps, DevInfo, PciAddr, PciFunction},
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory},
    sha::{Algorithm, Sha, ShaSession},
};

use Algorithm::{Sha1, Sha256, Sha512};

/// Computes a digest with the crate of the algorithm.
fn bare(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
    match algorithm {
        Sha1 => sha1::Sha1::digest(bytes).to_vec(),
        Sha256 => sha2::Sha256::digest(bytes).to_vec(),
        Sha512 => sha2::Sha512::digest(bytes).to_vec(),
        _ => panic!("the test does not know {algorithm}"),
    }
}

fn attach(bench: &Bench) -> Sha {
    Sha::builder(&bench.device).attach(&bench.workq).unwrap()
}

/// Returns the data of `dst`, which ends with the digest, and empties `dst`.
fn digest(dst: &Buf) -> Vec<u8> {
    let digest = bytes(dst);
    dst.reset_data_len().unwrap();
    digest
}

#[track_caller]
fn is(result: Result<usize, JobError>, kind: ErrorKind, reason: Reason, numbers: &[u64]) {
    let error = result.expect_err("it must be refused");
    assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
    mentions(&error.to_string(), numbers);
}

// Digests
// -----------------------------------------------------------------------------------------------------

/// The examples of FIPS 180-4 from NIST's "Example Algorithms", and short messages of its CAVP.
const VECTORS: [(Algorithm, &[u8], &str); 14] = [
    (Sha1, b"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
    (Sha1, b"\x36", "c1dfd96eea8cc2b62785275bca38ac261256e278"),
    (Sha1, b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    (Sha1, TWO_BLOCKS, "84983e441c3bd26ebaae4aa1f95129e5e54670f1"),
    (Sha1, LONGER, "a49b2446a02c645bf419f995b67091253a04a259"),
    (
        Sha256,
        b"",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    (
        Sha256,
        b"\xd3",
        "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1",
    ),
    (
        Sha256,
        b"abc",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ),
    (
        Sha256,
        TWO_BLOCKS,
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ),
    (
        Sha256,
        LONGER,
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
    ),
    (
        Sha512,
        b"",
        "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
         47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
    ),
    (
        Sha512,
        b"\x21",
        "3831a6a6155e509dee59a7f451eb35324d8f8f2df6e3708894740f98fdee2388\
         9f4de5adb0c5010dfb555cda77c8ab5dc902094c52de3278f35a75ebc25f093a",
    ),
    (
        Sha512,
        b"abc",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    ),
    (
        Sha512,
        LONGER,
        "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018\
         501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
    ),
];

const TWO_BLOCKS: &[u8] = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
const LONGER: &[u8] = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
    ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

/// The digests of a million times "a".
const MILLION: [(Algorithm, &str); 3] = [
    (Sha1, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
    (
        Sha256,
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
    ),
    (
        Sha512,
        "e718483d0ce769644e2e42c7bc15b4638e1f98b13b2044285632a803afa973eb\
         de0ff244877ea60a4cb0432ce577c31beb009c5c2c49aa2e4eadb217ad8cc09b",
    ),
];

#[test]
fn digests_are_what_nist_says() {
    each(async |bench| {
        let sha = attach(bench);
        for (algorithm, message, expected) in VECTORS {
            let (src, dst) = (bench.filled(message), bench.filled(b"front"));
            let session = sha.session(algorithm).unwrap();
            let len = match message {
                // The empty message is hashed by a session that ends without data.
                b"" => session.finish((), &dst).await,
                _ => sha.hash(algorithm, &src, &dst).await,
            };
            assert_eq!(len, Ok(algorithm.digest_len()));
            // The digest was appended, and the source is unchanged.
            let written = digest(&dst);
            assert_eq!(&written[..5], b"front");
            assert_eq!(hex(&written[5..]), expected, "{algorithm} of {message:?}");
            assert_eq!(bytes(&src), message);
            if message != b"" {
                assert_eq!(session.finish(&src, &dst).await, len);
                assert_eq!(hex(&digest(&dst)), expected, "by a session");
            }
        }
    });
}

#[test]
fn a_million_bytes_are_hashed_in_one_piece_in_a_chain_and_in_parts() {
    each(async |bench| {
        let sha = attach(bench);
        let inventory = BufInventory::with_capacity(8);
        let src = inventory.buf_filled(&bench.mmap(1_000_000), ..).unwrap();
        src.data_mut().unwrap().fill(b'a');
        let dst = bench.empty();
        let chain = BufChain::with_capacity(3);
        for piece in [0..1, 1..700_001, 700_001..1_000_000] {
            chain.push(src.slice(piece).unwrap()).unwrap();
        }
        for (algorithm, expected) in MILLION {
            sha.hash(algorithm, &src, &dst).await.unwrap();
            assert_eq!(hex(&digest(&dst)), expected, "{algorithm}");
            sha.hash(algorithm, &chain, &dst).await.unwrap();
            assert_eq!(hex(&digest(&dst)), expected, "{algorithm} of a chain");
            let session = sha.session(algorithm).unwrap();
            for at in (0..983_040).step_by(122_880) {
                let part = src.slice(at..at + 122_880).unwrap();
                assert_eq!(session.update(part).await, Ok(122_880));
            }
            let last = src.slice(983_040..).unwrap();
            session.finish(last, &dst).await.unwrap();
            assert_eq!(hex(&digest(&dst)), expected, "{algorithm} by a session");
        }
    });
}

/// A message and where it is split: into parts of a session, which are whole blocks, and each part
/// into pieces of a chain.
#[derive(Clone, Debug)]
struct Cut {
    algorithm: Algorithm,
    message: Vec<u8>,
    parts: Vec<usize>,
    pieces: Vec<usize>,
}

fn cuts() -> impl Strategy<Value = Cut> {
    let message = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..300),
        proptest::collection::vec(any::<u8>(), 8000..24_000),
    ];
    let parts = proptest::collection::vec(1..40_usize, 0..4);
    let pieces = proptest::collection::vec(1..5000_usize, 0..5);
    (0..3_usize, message, parts, pieces).prop_map(|(which, message, parts, pieces)| Cut {
        algorithm: Algorithm::ALL[which],
        message,
        parts,
        pieces,
    })
}

/// Returns a chain of the bytes, in pieces of these lengths and one of the remaining bytes. The
/// Bufs have headroom and tailroom.
fn chain_of(inventory: &BufInventory, mmap: &Mmap, bytes: &[u8], pieces: &[usize]) -> BufChain {
    let chain = BufChain::with_capacity(pieces.len() + 1);
    let (mut rest, mut at) = (bytes, 0);
    for len in pieces.iter().copied().chain([usize::MAX]) {
        let (piece, tail) = rest.split_at(len.min(rest.len()));
        let buf = inventory.buf(mmap, at..at + piece.len() + 3).unwrap();
        buf.set_data(1, 0).unwrap();
        buf.extend_from_slice(piece).unwrap();
        chain.push(buf).unwrap();
        (rest, at) = (tail, at + piece.len() + 3);
    }
    chain
}

#[test]
fn any_cut_of_a_message_gives_the_digest_of_the_whole() {
    for config in configs() {
        eprintln!("{config:?}");
        let bench = Bench::new(config);
        let (sha, mmap, runtime) = (attach(&bench), bench.mmap(1 << 16), runtime());
        let inventory = BufInventory::with_capacity(64);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let story = |cut: Cut| {
            let expected = bare(cut.algorithm, &cut.message);
            let dst = bench.empty();
            runtime.block_on(async {
                let chain = chain_of(&inventory, &mmap, &cut.message, &cut.pieces);
                sha.hash(cut.algorithm, &chain, &dst).await.unwrap();
                drop(chain);
                assert_eq!(digest(&dst), expected, "as a chain");
                let session = sha.session(cut.algorithm).unwrap();
                let mut rest = &cut.message[..];
                for blocks in &cut.parts {
                    let len = blocks * cut.algorithm.block_len();
                    let Some((part, tail)) = rest.split_at_checked(len) else {
                        break;
                    };
                    let chain = chain_of(&inventory, &mmap, part, &cut.pieces);
                    assert_eq!(session.update(chain).await, Ok(len));
                    rest = tail;
                }
                if rest.is_empty() {
                    session.finish((), &dst).await.unwrap();
                } else {
                    let chain = chain_of(&inventory, &mmap, rest, &cut.pieces);
                    session.finish(chain, &dst).await.unwrap();
                }
                assert_eq!(digest(&dst), expected, "by a session");
            });
            Ok(())
        };
        runner.run(&cuts(), story).unwrap();
    }
}

#[test]
fn memory_that_a_peer_may_write_is_hashed_too() {
    each(async |bench| {
        let sha = attach(bench);
        let mmap = bench.mmap_with(1 << 16, Access::LOCAL_READ_WRITE | Access::RDMA_WRITE);
        let inventory = BufInventory::with_capacity(8);
        let message = pattern(3, 50_001);
        let src = inventory.buf(&mmap, 1..50_002).unwrap();
        src.extend_from_slice(&message).unwrap();
        let dst = inventory.buf(&mmap, 60_001..60_100).unwrap();
        let chain = BufChain::with_capacity(2);
        chain.push(bench.filled(b"private")).unwrap();
        chain.push(&src).unwrap();
        for algorithm in Algorithm::ALL {
            sha.hash(algorithm, &src, &dst).await.unwrap();
            assert_eq!(digest(&dst), bare(algorithm, &message));
            sha.hash(algorithm, &chain, &dst).await.unwrap();
            assert_eq!(
                digest(&dst),
                bare(algorithm, &[b"private", &message[..]].concat())
            );
        }
    });
}

// Sessions
// ----------------------------------------------------------------------------------------------------

#[test]
fn a_copy_of_a_session_goes_on_by_itself() {
    each(async |bench| {
        let sha = attach(bench);
        let (part, dst) = (bench.filled(&[7; 128]), bench.empty());
        for algorithm in Algorithm::ALL {
            let session = sha.session(algorithm).unwrap();
            session.update(&part).await.unwrap();
            let fork = session.copy().unwrap();
            session.update(&part).await.unwrap();
            fork.finish((), &dst).await.unwrap();
            assert_eq!(digest(&dst), bare(algorithm, &[7; 128]));
            // `copy_from` replaces the state of the fork, which continues from the state of
            // `session`.
            fork.update(&part).await.unwrap();
            fork.copy_from(&session).unwrap();
            for session in [&session, &fork] {
                let tail = part.slice(0..5).unwrap();
                session.finish(tail, &dst).await.unwrap();
                assert_eq!(digest(&dst), bare(algorithm, &[7; 261]));
            }
            // Both sessions now begin a new message.
            for session in [&session, &fork] {
                session.finish(&part, &dst).await.unwrap();
                assert_eq!(digest(&dst), bare(algorithm, &[7; 128]));
            }
        }
    });
}

#[test]
fn sessions_of_two_algorithms_do_not_mix() {
    each(async |bench| {
        let sha = attach(bench);
        let (one, other) = (sha.session(Sha1).unwrap(), sha.session(Sha512).unwrap());
        let result = one.copy_from(&other).map(|()| 0);
        is(
            result,
            ErrorKind::InvalidValue,
            Reason::OtherAlgorithm,
            &[64, 20],
        );
    });
}

#[test]
fn a_reset_forgets_what_was_hashed() {
    each(async |bench| {
        let (sha, part, dst) = (attach(bench), bench.filled(&[7; 64]), bench.empty());
        let session = sha.session(Sha256).unwrap();
        session.update(&part).await.unwrap();
        session.reset().unwrap();
        session.finish(&part, &dst).await.unwrap();
        assert_eq!(digest(&dst), bare(Sha256, &[7; 64]));
    });
}

#[test]
fn a_part_that_is_no_multiple_of_a_block_is_refused_and_the_session_goes_on() {
    each(async |bench| {
        let (sha, dst) = (attach(bench), bench.empty());
        let jobs = bench.device.jobs();
        for algorithm in Algorithm::ALL {
            let block = algorithm.block_len();
            let session = sha.session(algorithm).unwrap();
            for len in [1, block - 1, block + 1, 2 * block - 1] {
                let part = bench.filled(&vec![1; len]);
                is(
                    session.update(&part).await,
                    ErrorKind::InvalidValue,
                    Reason::NotWholeBlocks,
                    &[len as u64, block as u64],
                );
            }
            assert_eq!(bench.device.jobs(), jobs, "the device was not asked");
        }
        let session = sha.session(Sha512).unwrap();
        let part = bench.filled(&[1; 192]);
        assert!(
            session.update(&part).await.is_err(),
            "64 would do for SHA-256"
        );
        session.finish(&part, &dst).await.unwrap();
        assert_eq!(digest(&dst), bare(Sha512, &[1; 192]));
    });
}

#[test]
fn the_parts_of_a_session_go_one_after_the_other() {
    each(async |bench| {
        let (sha, dst) = (attach(bench), bench.empty());
        let (one, other) = (bench.filled(&[1; 64]), bench.filled(&[2; 64]));
        let session = sha.session(Sha256).unwrap();
        let hold = bench.hold();
        let mut first = pin!(session.update(&one));
        poll_pending(first.as_mut());
        let busy = |result| is(result, ErrorKind::InUse, Reason::SessionInUse, &[]);
        busy(session.update(&other).await);
        busy(session.finish((), &dst).await);
        busy(
            session
                .update(&other)
                .start()
                .map(|_| 0)
                .map_err(JobError::from),
        );
        busy(session.copy().map(|_| 0));
        busy(session.reset().map(|()| 0));
        let idle = sha.session(Sha256).unwrap();
        busy(session.copy_from(&idle).map(|()| 0));
        busy(idle.copy_from(&session).map(|()| 0));
        // The refused job holds no lease.
        drop(other.data_mut().unwrap());
        drop(dst.data_mut().unwrap());
        drop(hold);
        assert_eq!(first.await, Ok(64));
        session.finish(&other, &dst).await.unwrap();
        let message = [[1; 64], [2; 64]].concat();
        assert_eq!(digest(&dst), bare(Sha256, &message));
    });
}

#[test]
fn a_part_that_fails_was_not_hashed() {
    each(async |bench| {
        let (sha, dst) = (attach(bench), bench.filled(b"x"));
        let (part, bad) = (bench.filled(&[1; 64]), bench.filled(&[9; 4032]));
        let session = sha.session(Sha256).unwrap();
        session.update(&part).await.unwrap();
        let fault = || Fault::Error(ErrorKind::IoFailed, 0x88);
        bench.soft.faults().push(fault());
        let failed = session.update(&bad).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::IoFailed);
        bench.soft.faults().push(fault());
        assert!(session.finish(&bad, &dst).await.is_err());
        assert_eq!(bytes(&dst), b"x", "the rooms are as they were");
        bench.soft.faults().push(fault());
        assert!(sha.hash(Sha1, &bad, &dst).await.is_err());
        session.finish(&part, &dst).await.unwrap();
        assert_eq!(digest(&dst)[1..], bare(Sha256, &[1; 128]));
    });
}

// Dropped and forgotten
// ---------------------------------------------------------------------------------------

fn leased(bufs: &[&Buf]) {
    for buf in bufs {
        refused(buf.data_mut(), ErrorKind::InUse);
    }
}

#[test]
fn a_dropped_hash_keeps_its_memory_until_it_is_over() {
    each(async |bench| {
        let sha = attach(bench);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let hold = bench.hold();
        {
            let mut op = pin!(sha.hash(Sha256, &src, &dst));
            poll_pending(op.as_mut());
        }
        leased(&[&src, &dst]);
        assert_eq!(bench.workq.in_flight(), 1);
        drop(hold);
        until("it is over", || bench.workq.in_flight() == 0).await;
        assert_eq!(digest(&dst), bare(Sha256, b"abc"), "it went on");
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn a_forgotten_hash_keeps_its_memory_and_its_session() {
    each(async |bench| {
        let sha = attach(bench);
        let (part, dst) = (bench.filled(&[1; 64]), bench.empty());
        let session = sha.session(Sha256).unwrap();
        let hold = bench.hold();
        let mut op: Pin<Box<_>> = Box::pin(session.finish(part.clone(), dst.clone()).owned());
        poll_pending(op.as_mut());
        std::mem::forget(op);
        // The session's own handle is dropped; the state that the device writes stays.
        drop(session);
        leased(&[&part, &dst]);
        drop(hold);
        // No event was armed: the next operation that polls finds the completion.
        bench.engine_works().await;
        until("it is over", || {
            bench.workq.stats().in_flight == 0 && dst.data_len() > 0
        })
        .await;
        assert_eq!(digest(&dst), bare(Sha256, &[1; 64]));
    });
}

#[test]
fn a_dropped_part_is_hashed_all_the_same() {
    each(async |bench| {
        let (sha, part, dst) = (attach(bench), bench.filled(&[1; 64]), bench.empty());
        let session = sha.session(Sha256).unwrap();
        let hold = bench.hold();
        {
            let mut op = pin!(session.update(&part));
            poll_pending(op.as_mut());
        }
        is(
            session.update(&part).await,
            ErrorKind::InUse,
            Reason::SessionInUse,
            &[],
        );
        drop(hold);
        until("it is over", || bench.workq.in_flight() == 0).await;
        session.finish(&part, &dst).await.unwrap();
        assert_eq!(digest(&dst), bare(Sha256, &[1; 128]));
    });
}

#[test]
fn a_lost_part_keeps_the_session_for_ever_and_the_last_drop_waits_for_nothing() {
    let config = Config::new(true, Mode::BusyPoll);
    let bench = Bench::new(config);
    run(async {
        let (sha, part) = (attach(&bench), bench.filled(&[1; 64]));
        let session = sha.session(Sha256).unwrap();
        bench.soft.faults().push(Fault::Lost);
        {
            let mut op = pin!(session.update(&part));
            poll_pending(op.as_mut());
        }
        bench.engine_works().await;
        refused(session.copy(), ErrorKind::InUse);
        leased(&[&part]);
    });
}

#[test]
fn the_last_drop_of_a_workq_leaves_hashes_in_flight_to_the_device() {
    for config in configs() {
        let bench = Bench::new(config);
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let hold = bench.hold();
        run(async {
            let sha = attach(&bench);
            let session = sha.session(Sha256).unwrap();
            let mut ops: [Pin<Box<_>>; 1] = [Box::pin(session.finish(&src, &dst))];
            poll_pending(ops[0].as_mut());
        });
        let Bench {
            workq, dma, pool, ..
        } = bench;
        drop((workq, dma));
        drop(hold);
        drop((src, dst));
        block_until("all Bufs are home", || free_bufs(&pool) == pool.elements());
    }
}

#[test]
fn a_hash_that_waits_for_a_slot_goes_on_when_there_is_one() {
    for config in configs() {
        let bench = Bench::new(config.depth(2));
        run(async {
            let sha = attach(&bench);
            let pairs: Vec<_> = (0..20)
                .map(|at| (bench.filled(&pattern(at, 100)), bench.empty()))
                .collect();
            let hold = bench.hold();
            let ops = pairs.iter().map(|(src, dst)| sha.hash(Sha512, src, dst));
            let mut all = pin!(futures::future::join_all(ops));
            poll_pending(all.as_mut());
            assert_eq!(bench.workq.in_flight(), 2);
            let full = sha.hash(Sha512, &pairs[19].0, &pairs[19].1).start();
            refused(full, ErrorKind::Again);
            drop(hold);
            assert!(all.await.iter().all(|len| *len == Ok(64)));
            for (at, (_, dst)) in pairs.iter().enumerate() {
                assert_eq!(digest(dst), bare(Sha512, &pattern(at as u8, 100)));
            }
        });
    }
}

// Refused
// -----------------------------------------------------------------------------------------------------

#[test]
fn what_is_wrong_with_the_operands_is_said_before_anything_happens() {
    use ErrorKind::{InUse, InvalidValue, NotPermitted};
    each(async |bench| {
        let sha = attach(bench);
        let jobs = bench.device.jobs();
        let hash = async |src: &Buf, dst: &Buf| sha.hash(Sha256, src, dst).await;
        let (src, dst) = (bench.filled(b"abc"), bench.filled(&[9; 4096]));
        for room in [0, 1, 31] {
            dst.set_data(0, 4096 - room).unwrap();
            // The guards make any lease fail with `InUse`, so another error comes before the
            // leases.
            let guards = (src.data_mut().unwrap(), dst.data_mut().unwrap());
            let numbers = [room as u64, 32];
            let refused = hash(&src, &dst).await;
            is(refused, InvalidValue, Reason::DigestTailroom, &numbers);
            let refused = sha
                .hash(Sha256, &src, &dst)
                .start()
                .map(|_| 0)
                .map_err(JobError::from);
            is(refused, InvalidValue, Reason::DigestTailroom, &numbers);
            drop(guards);
            assert_eq!(rooms(&dst), (0, 4096 - room, room));
        }
        dst.set_data(0, 4064).unwrap();
        is(hash(&src, &src).await, InvalidValue, Reason::Overlap, &[]);
        let chain = BufChain::with_capacity(2);
        chain.push(&dst).unwrap();
        chain.push(bench.empty()).unwrap();
        let two = sha.hash(Sha256, &src, &chain).await;
        is(two, InvalidValue, Reason::ListTooLong, &[2, 1]);
        {
            let _writing = src.data_mut().unwrap();
            is(hash(&src, &dst).await, InUse, Reason::SourceInUse, &[]);
        }
        {
            let _reading = dst.data().unwrap();
            is(hash(&src, &dst).await, InUse, Reason::DestinationInUse, &[]);
        }
        let read_only = bench.mmap_with(4096, Access::LOCAL_READ_ONLY);
        let inventory = BufInventory::with_capacity(4);
        let fixed = inventory.buf(&read_only, ..).unwrap();
        is(
            hash(&src, &fixed).await,
            NotPermitted,
            Reason::ReadOnly,
            &[],
        );
        let other = bench.soft.open("pf1").unwrap();
        let foreign = Mmap::builder().device(&other).alloc(4096).unwrap();
        let foreign = inventory.buf_filled(&foreign, ..).unwrap();
        let refused = hash(&foreign, &dst).await;
        is(refused, InvalidValue, Reason::ForeignDevice, &[]);
        assert_eq!(bench.device.jobs(), jobs, "the device was not asked");
        assert_eq!(bytes(&dst), [9; 4064], "nothing was written");
        assert_eq!(hash(&src, &dst).await, Ok(32), "all of it can be used");
        assert_eq!(rooms(&dst), (0, 4096, 0));
        bench.workq.shutdown().await.unwrap();
        dst.reset_data_len().unwrap();
        is(
            hash(&src, &dst).await,
            ErrorKind::Shutdown,
            Reason::Shutdown,
            &[],
        );
    });
}

/// A hash takes a read lease on its source, so several jobs can read at once.
#[test]
fn one_source_is_hashed_and_copied_at_once() {
    each(async |bench| {
        let (sha, src) = (attach(bench), bench.filled(b"abc"));
        let [one, two, copied] = [bench.empty(), bench.empty(), bench.empty()];
        let guard = src.data().unwrap();
        let (a, b, c) = futures::join!(
            sha.hash(Sha1, &src, &one),
            sha.hash(Sha512, &src, &two),
            bench.dma.copy(&src, &copied)
        );
        assert_eq!((a, b, c), (Ok(20), Ok(64), Ok(3)));
        drop(guard);
        assert_eq!(digest(&one), bare(Sha1, b"abc"));
        assert_eq!(digest(&two), bare(Sha512, b"abc"));
    });
}

#[test]
fn what_is_beyond_the_limits_is_refused() {
    let limits = Limits::unlimited().max_buf_size(128).max_list_len(2);
    for config in configs() {
        let soft = Soft::builder().limits(limits.clone()).defer(config.defer);
        let bench = Bench::with_soft(config, soft.build());
        run(async {
            let sha = attach(&bench);
            let caps = bench.device.info().caps().sha.as_ref().unwrap();
            assert_eq!(caps, sha.caps());
            assert_eq!((caps.max_src_len, caps.max_list_len), (128, 2));
            let (src, dst) = (bench.filled(&[1; 129]), bench.empty());
            let over = sha.hash(Sha1, &src, &dst).await;
            is(over, ErrorKind::InvalidValue, Reason::TooLarge, &[129, 128]);
            src.set_data(0, 40).unwrap();
            let chain = BufChain::with_capacity(3);
            for _ in 0..2 {
                chain.push(&src).unwrap();
            }
            assert_eq!(sha.hash(Sha1, &chain, &dst).await, Ok(20));
            chain.push(&src).unwrap();
            let over = sha.hash(Sha1, &chain, &dst).await;
            is(over, ErrorKind::InvalidValue, Reason::ListTooLong, &[3, 2]);
        });
    }
}

/// A software device that declares fewer capabilities than it has.
struct Less(Device, DevInfo);

// SAFETY: the inner device keeps the adapter duties; each queue is a new queue of it.
unsafe impl Adapter for Less {
    fn info(&self) -> &DevInfo {
        &self.1
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        self.0.adapter().open_queue(config)
    }
}

fn less(bench: &Bench, less: impl FnOnce(&mut Caps)) -> Device {
    let mut caps = bench.device.info().caps().clone();
    less(&mut caps);
    let addr = PciAddr::new(9, 0, 0);
    let info = DevInfo::new("less", "less0", addr, PciFunction::Pf, caps);
    Device::from_adapter(Arc::new(Less(bench.device.clone(), info)))
}

#[test]
fn a_device_that_does_not_hash_says_so_when_asked_and_when_attached() {
    each(async |bench| {
        let without = less(bench, |caps| caps.sha = None);
        assert_eq!(without.info().caps().sha, None);
        let text = rejected(
            Sha::builder(&without).attach(&bench.workq),
            ErrorKind::NotSupported,
        );
        assert!(text.contains("less0") && text.contains("hash"), "{text}");
    });
}

#[test]
fn a_device_with_some_hashes_and_no_sessions_says_so() {
    each(async |bench| {
        let some = less(bench, |caps| {
            let sha = caps.sha.as_mut().unwrap();
            sha.algorithms = vec![Sha1];
            sha.sessions = false;
        });
        let sha = Sha::builder(&some).attach(&bench.workq).unwrap();
        assert!(sha.caps().supports(Sha1) && !sha.caps().supports(Sha256));
        let mmap = Mmap::builder().device(&some).alloc(8192).unwrap();
        let pool = BufPool::builder(&mmap).element_size(4096).build().unwrap();
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(b"abc").unwrap();
        let refused = sha.hash(Sha256, &src, &dst).await;
        is(
            refused,
            ErrorKind::NotSupported,
            Reason::UnknownAlgorithm,
            &[256],
        );
        assert_eq!(sha.hash(Sha1, &src, &dst).await, Ok(20));
        let text = rejected(sha.session(Sha256), ErrorKind::NotSupported);
        assert!(text.contains("SHA-256") && text.contains("Sha1"), "{text}");
        let text = rejected(sha.session(Sha1), ErrorKind::NotSupported);
        assert!(text.contains("chain"), "{text}");
    });
}

#[test]
fn hashes_that_cannot_ring_are_for_polling_alone() {
    let soft = Soft::builder().limits(Limits::unlimited().sha_event_driven(false));
    let device = soft.build().open("pf0").unwrap();
    for mode in modes() {
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let attached = Sha::builder(&device).attach(&workq);
        match mode {
            Mode::BusyPoll => drop(attached.unwrap()),
            _ => drop(rejected(attached, ErrorKind::NotSupported)),
        }
    }
}

#[test]
fn a_context_that_a_session_has_is_not_detached() {
    each(async |bench| {
        let (sha, dst) = (attach(bench), bench.empty());
        let session: ShaSession = sha.session(Sha1).unwrap();
        rejected(sha.detach(), ErrorKind::InUse);
        session.finish((), &dst).await.unwrap();
        let elsewhere = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let other = session.sha().attach(&elsewhere).unwrap();
        drop(session);
        other.hash(Sha1, &dst, &bench.empty()).await.unwrap();
        other.detach().unwrap();
    });
}

// Where it is done
// --------------------------------------------------------------------------------------------

#[test]
fn large_inputs_are_hashed_off_the_tasks_thread() {
    for mode in modes() {
        let bench = Bench::new(Config::new(false, mode));
        run(async {
            let (sha, dst) = (attach(&bench), bench.empty());
            let inventory = BufInventory::with_capacity(4);
            let src = inventory.buf_filled(&bench.mmap(1 << 16), ..).unwrap();
            let small = src.slice(0..8192).unwrap();
            let mut op = pin!(sha.hash(Sha256, small, &dst));
            assert_eq!(poll(op.as_mut()), std::task::Poll::Ready(Ok(32)), "inline");
            assert_eq!(bench.workq.stats().polls, 0);
            let large = src.slice(0..8193).unwrap();
            sha.hash(Sha256, large, &dst).await.unwrap();
            assert!(bench.workq.stats().polls > 0, "the engine did it");
        });
    }
}

#[test]
fn every_number_of_engines_hashes_alike() {
    for mode in modes() {
        for engines in 0..3 {
            eprintln!("{mode:?}, {engines} engines");
            let soft = Soft::builder().engines(engines).build();
            let bench = Bench::with_soft(Config::new(false, mode), soft);
            run(async {
                let (sha, inventory) = (attach(&bench), BufInventory::with_capacity(4));
                let src = inventory.buf(&bench.mmap(3 << 20), ..).unwrap();
                let message = pattern(5, (3 << 20) - 7);
                src.extend_from_slice(&message).unwrap();
                let [one, two, three] = [bench.empty(), bench.empty(), bench.empty()];
                // One hash is half done while another is put behind it, and a delayed one runs in
                // between.
                for fault in [Fault::Behind(1), Fault::Pass, Fault::Pass] {
                    bench.soft.faults().push(fault);
                }
                let session = sha.session(Sha1).unwrap();
                let done = futures::join!(
                    sha.hash(Sha512, &src, &one),
                    sha.hash(Sha256, &src, &two),
                    session.finish(&src, &three)
                );
                assert_eq!(done, (Ok(64), Ok(32), Ok(20)));
                assert_eq!(digest(&one), bare(Sha512, &message));
                assert_eq!(digest(&two), bare(Sha256, &message));
                assert_eq!(digest(&three), bare(Sha1, &message));
            });
        }
    }
}

/// A hash that was put aside comes due while another is half done: neither affects the other.
#[test]
fn a_delayed_hash_that_comes_in_between_is_hashed_by_itself() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let (sha, inventory) = (attach(&bench), BufInventory::with_capacity(4));
        let large = inventory.buf_filled(&bench.mmap(16 << 20), ..).unwrap();
        let (small, one, two) = (bench.filled(b"abc"), bench.empty(), bench.empty());
        let delay = std::time::Duration::from_millis(2);
        bench.soft.faults().push(Fault::Delay(delay));
        let done = futures::join!(
            sha.hash(Sha256, &small, &one),
            sha.hash(Sha512, &large, &two)
        );
        assert_eq!(done, (Ok(32), Ok(64)));
        assert_eq!(digest(&one), bare(Sha256, b"abc"));
        assert_eq!(digest(&two), bare(Sha512, &vec![0; 16 << 20]));
    });
}

#[test]
fn a_loop_of_one_s_own_hashes_without_a_runtime() {
    for config in configs() {
        let bench = Bench::new(config);
        let (sha, dst) = (attach(&bench), bench.empty());
        let session = sha.session(Sha256).unwrap();
        let part = bench.filled(&[1; 64]);
        let told = || {
            let mut told = None;
            block_until("it is told", || {
                bench
                    .workq
                    .progress(|word, outcome| told = Some((word, outcome.unwrap().bytes())));
                told.is_some()
            });
            told.unwrap()
        };
        session.update(&part).post(7).unwrap();
        assert_eq!(told(), (7, Some(64)));
        session.finish(&part, &dst).post(8).unwrap();
        assert_eq!(told(), (8, Some(32)));
        assert_eq!(digest(&dst), bare(Sha256, &[1; 128]));
        sha.hash(Sha1, &part, &dst).post(u64::MAX).unwrap();
        assert_eq!(told(), (u64::MAX, Some(20)));
        assert_eq!(digest(&dst), bare(Sha1, &[1; 64]));
        let refused = session.update(part.slice(1..).unwrap()).post(9);
        assert_eq!(refused.unwrap_err().reason(), Reason::NotWholeBlocks);
        assert_eq!(bench.workq.progress(|_, _| ()), 0);
    }
}

#[test]
fn many_tasks_hash_and_copy_on_one_workq() {
    let spin = std::time::Duration::from_micros(30);
    let hybrid = [false, true].map(|defer| Config::new(defer, Mode::Hybrid { spin }));
    for config in configs().into_iter().chain(hybrid) {
        eprintln!("{config:?}");
        let bench = Bench::new(config.depth(4));
        let sha = attach(&bench);
        workers().block_on(async {
            let tasks: Vec<_> = (0..8_u8)
                .map(|task| {
                    let (sha, dma) = (sha.clone(), bench.dma.clone());
                    let [src, dst, copied] = [(); 3].map(|()| bench.empty());
                    tokio::spawn(async move {
                        let session = sha.session(Sha512).unwrap();
                        for turn in 0..50 {
                            src.reset_data_len().unwrap();
                            let message = pattern(
                                task.wrapping_mul(50).wrapping_add(turn),
                                128 * (1 + task as usize),
                            );
                            src.extend_from_slice(&message).unwrap();
                            copied.reset_data_len().unwrap();
                            let (hashed, copy) = futures::join!(
                                sha.hash(Sha256, &src, &dst),
                                dma.copy(&src, &copied)
                            );
                            assert_eq!((hashed, copy), (Ok(32), Ok(message.len())));
                            assert_eq!(digest(&dst), bare(Sha256, &message));
                            session.update(src.clone()).owned().await.unwrap();
                            session
                                .finish(src.clone(), dst.clone())
                                .owned()
                                .await
                                .unwrap();
                            assert_eq!(digest(&dst), bare(Sha512, &[&message[..]; 2].concat()));
                        }
                    })
                })
                .collect();
            for task in tasks {
                in_time("a task that hashes", task).await.unwrap();
            }
        });
    }
}

/// A task whose results are always ready lets other tasks run (Tokio's cooperative budget): the
/// longer the results take, the sooner.
#[test]
fn a_loop_of_ready_hashes_starves_nobody() {
    each(async |bench| {
        let turns = turns_of_another();
        let (sha, src, dst) = (attach(bench), bench.filled(&[1; 4096]), bench.empty());
        for _ in 0..2000 {
            dst.reset_data_len().unwrap();
            sha.hash(Sha256, &src, &dst).await.unwrap();
        }
        let turns = turns();
        assert!(turns >= 5, "{turns} turns in 2,000 hashes of a page");
    });
}
