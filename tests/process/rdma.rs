//! Remote operations between two processes: all operations, in all modes, with either side as the
//! host; and a thousand contexts.

use std::collections::BTreeSet;

use futures::StreamExt;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::device::needs_soft;
use support::peer::{Peer, footprint, hear, hex, role, say, unhex};
use support::rdma::{Setup, Side, context};
use support::{test_name, *};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Mmap, Mode, Rdma, WorkQ,
    error::{JobError, Reason},
    mem::{BufChain, BufInventory},
    rdma::{RdmaState, RecvOpcode, RecvPool},
};

const LARGE: usize = 8 << 20;

/// Returns bytes whose pattern does not repeat with any buffer size.
fn many_bytes(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = pattern(seed, 65_521).repeat(len.div_ceil(65_521));
    bytes.truncate(len);
    bytes
}

/// Returns a buffer for a large message.
fn large(side: &Side) -> Buf {
    let mmap = Mmap::builder().device(&side.device).alloc(LARGE).unwrap();
    BufInventory::with_capacity(1).buf(&mmap, ..).unwrap()
}

/// The side that requests all operations.
async fn active(side: &Side) {
    let rdma = &side.rdma;
    let remote = side.import(&side.recv().await.unwrap());
    assert!(!remote.is_own());

    let there = remote.buf(100..3100).unwrap();
    let (sent, back) = (side.filled(&pattern(3, 3000)), side.empty());
    assert_eq!(rdma.write(&sent, &there).await, Ok(3000));
    assert_eq!(rdma.read(&there, &back).await, Ok(3000));
    assert_eq!(bytes(&back), pattern(3, 3000));
    assert_eq!(rdma.write_imm(&sent, &there, 77).await, Ok(3000));
    assert_eq!(rdma.write_imm((), (), 78).await, Ok(0));
    assert_eq!(rdma.write((), ()).await, Ok(0));
    assert_eq!(rdma.read((), ()).await, Ok(0));
    let (empty, none) = (side.empty(), remote.buf(7..7).unwrap());
    assert_eq!(rdma.write(&empty, &there).await, Ok(0));
    assert_eq!(rdma.write(&empty, &none).await, Ok(0));
    assert_eq!(rdma.read(&none, &empty).await, Ok(0));
    assert_eq!(rdma.read(&there, &side.filled(&[1; ELEMENT])).await, Ok(0));

    let counter = remote.buf(8..16).unwrap();
    assert_eq!(rdma.fetch_add(&counter, 5).await, Ok(0));
    assert_eq!(rdma.compare_swap(&counter, 5, 9).await, Ok(5));
    assert_eq!(rdma.compare_swap(&counter, 5, 1).await, Ok(9));

    side.send(b"hello").await.unwrap();
    assert_eq!(rdma.send_imm(&side.filled(b"with"), 79).await, Ok(4));
    assert_eq!(rdma.send(()).await, Ok(0));
    assert_eq!(rdma.send_imm((), 80).await, Ok(0));
    assert_eq!(rdma.send(&empty).await, Ok(0));
    assert_eq!(rdma.send_imm(sent.slice(9..9).unwrap(), 81).await, Ok(0));
    let chain = BufChain::with_capacity(3);
    for part in [&b"one "[..], b"and ", b"another"] {
        chain.push(side.filled(part)).unwrap();
    }
    assert_eq!(rdma.send(&chain).await, Ok(15));

    // Waits until the other side has read the counter, which is overwritten next.
    assert_eq!(side.recv().await.unwrap(), b"looked");
    // A write larger than a copy that runs inline.
    let all = remote.buf(..).unwrap();
    let message = large(side);
    message
        .extend_from_slice(&many_bytes(6, all.len()))
        .unwrap();
    assert_eq!(rdma.write(&message, &all).await, Ok(all.len()));
    side.send(b"written").await.unwrap();
    message.reset_data_len().unwrap();
    message.extend_from_slice(&many_bytes(5, LARGE)).unwrap();
    let answer = large(side);
    let (sent, received) = tokio::join!(rdma.send(&message), rdma.recv(&answer));
    assert_eq!((sent, received.unwrap().len), (Ok(LARGE), LARGE));
    assert!(bytes(&answer) == many_bytes(11, LARGE));
}

/// The side whose memory is used, and which checks it.
async fn passive(side: &Side) {
    let rdma = &side.rdma;
    side.send(&side.memory()).await.unwrap();

    let written = rdma.recv(()).await.unwrap();
    assert_eq!((written.len, written.opcode), (3000, RecvOpcode::WriteImm));
    assert_eq!(written.immediate, Some(77));
    assert_eq!(side.bytes(100, 3000), pattern(3, 3000));
    let nothing = rdma.recv(()).await.unwrap();
    assert_eq!((nothing.len, nothing.immediate), (0, Some(78)));

    let expected: [(&[u8], RecvOpcode, Option<u32>); 7] = [
        (b"hello", RecvOpcode::Send, None),
        (b"with", RecvOpcode::SendImm, Some(79)),
        (b"", RecvOpcode::Send, None),
        (b"", RecvOpcode::SendImm, Some(80)),
        (b"", RecvOpcode::Send, None),
        (b"", RecvOpcode::SendImm, Some(81)),
        (b"one and another", RecvOpcode::Send, None),
    ];
    for (text, opcode, immediate) in expected {
        let buf = side.empty();
        let received = rdma.recv(&buf).await.unwrap();
        assert_eq!((received.opcode, received.immediate), (opcode, immediate));
        assert_eq!((received.len, &bytes(&buf)[..]), (text.len(), text));
    }
    assert_eq!(side.shared.load(8), Ok(9));
    side.send(b"looked").await.unwrap();

    assert_eq!(side.recv().await.unwrap(), b"written");
    let len = support::rdma::SHARED;
    assert!(side.bytes(0, len) == many_bytes(6, len));
    let (message, answer) = (large(side), large(side));
    answer.extend_from_slice(&many_bytes(11, LARGE)).unwrap();
    let (received, sent) = tokio::join!(rdma.recv(&message), rdma.send(&answer));
    assert_eq!((sent, received.unwrap().len), (Ok(LARGE), LARGE));
    assert!(bytes(&message) == many_bytes(5, LARGE));
}

fn both(side: &Side, active_first: bool) {
    let run = |active_now: bool| {
        run(async {
            match active_now {
                true => active(side).await,
                false => passive(side).await,
            }
            side.all_back().await;
        });
    };
    run(active_first);
    // Resets the counter.
    side.shared.copy_in(0, &[0; 16]).unwrap();
    run(!active_first);
}

/// Each side is the active one in turn, so that the host is once active and once passive.
#[test]
fn all_operations_in_all_modes() {
    if let Some(setup) = role() {
        let side = Side::new(Setup::all()[setup.parse::<usize>().unwrap()]);
        for first in [true, false] {
            side.meet_parent(first);
            both(&side, false);
            say("done");
            hear();
            side.rdma.reset().unwrap();
            side.shared.copy_in(0, &[0; 16]).unwrap();
        }
        return;
    }
    for (at, setup) in Setup::all().into_iter().enumerate() {
        eprintln!("{setup:?}");
        let mut peer = Peer::start(test_name!(all_operations_in_all_modes), &at.to_string());
        let side = Side::new(setup);
        for first in [false, true] {
            side.meet_child(&mut peer, first);
            both(&side, true);
            assert_eq!(peer.hear(), "done");
            side.rdma.reset().unwrap();
            side.shared.copy_in(0, &[0; 16]).unwrap();
            peer.say("reset");
        }
        peer.ends();
    }
}

const CONTEXTS: usize = 1000;
const DESCRIPTORS: u64 = 256;

/// One process with a thousand contexts on a WorkQ.
fn many(right: bool) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard).unwrap();
    let setup = Setup {
        receives: 2,
        ..Setup::new(false, Mode::EventDriven)
    };
    let device = Soft::builder().build().open("pf0").unwrap();
    let pid = std::process::id() as i32;
    let workq = || WorkQ::builder().mode(setup.mode).build().unwrap();
    // The device's engine stays until the process ends.
    drop(Side::on(&device, &workq(), setup));
    let before = footprint(pid);
    let workq = workq();
    let side = Side::on(&device, &workq, setup);
    let memory = Mmap::builder()
        .device(&device)
        .alloc(64 * CONTEXTS)
        .unwrap();
    let pool = BufPool::builder(&memory).element_size(64).build().unwrap();
    let rdmas: Vec<Rdma> = (0..CONTEXTS)
        .map(|_| context(&device, &workq, setup))
        .collect();
    let blobs: Vec<String> = rdmas
        .iter()
        .map(|rdma| hex(&rdma.export().unwrap()))
        .collect();
    say(&blobs.join(" "));
    let theirs = hear().unwrap();
    for (rdma, blob) in rdmas.iter().zip(theirs.split(' ')) {
        rdma.connect(&unhex(blob)).wait().unwrap();
    }
    say("connected");
    hear();
    assert!(descriptors() < 64, "{}", descriptors());
    let greet = async |rdma: &Rdma, number: usize| -> Result<(), JobError> {
        let buf = pool.try_alloc().unwrap();
        if !right {
            rdma.recv(&buf).await?;
            assert_eq!(bytes(&buf), number.to_le_bytes());
        } else {
            buf.extend_from_slice(&number.to_le_bytes()).unwrap();
        }
        rdma.send(&buf).await?;
        if right {
            buf.reset_data_len().unwrap();
            rdma.recv(&buf).await?;
            assert_eq!(bytes(&buf), number.to_le_bytes());
        }
        Ok(())
    };
    let all = async || {
        let all = rdmas.iter().enumerate();
        let all = all.map(|(number, rdma)| greet(rdma, number));
        futures::future::join_all(all).await
    };
    run(async {
        assert!(all().await.iter().all(Result::is_ok));
        // One of the contexts is reset.
        say("all");
        hear();
        let watch = rdmas[500].watch();
        if right {
            rdmas[500].reset().unwrap();
        }
        say("reset");
        hear();
        let results = all().await;
        for (number, result) in results.iter().enumerate() {
            assert_eq!(result.is_err(), number == 500, "{number}: {result:?}");
        }
        let state = watch.state();
        match right {
            true => assert_eq!(state, RdmaState::Init),
            false => {
                let error = results[500].unwrap_err();
                assert_eq!(error.cause(), Some(Reason::PeerClosed));
                assert!(matches!(state, RdmaState::Error(_)), "{state:?}");
            }
        }
        side.all_back().await;
        assert_eq!(free_bufs(&pool), CONTEXTS);
    });
    say("greeted");
    hear();
    drop((rdmas, side, workq, pool, memory));
    block_until("no more is there than before", || {
        let now = footprint(pid);
        now.0 <= before.0 && now.1 == 0 && now.2 <= before.2
    });
    say("clean");
    hear();
}

#[test]
fn a_thousand_contexts_take_few_descriptors_and_do_not_disturb_each_other() {
    const TEST: &str =
        test_name!(a_thousand_contexts_take_few_descriptors_and_do_not_disturb_each_other);
    if needs_soft("each context is a queue pair, and no peer shares a link with others") {
        return;
    }
    if let Some(role) = role() {
        return many(role == "right");
    }
    let mut peers = ["left", "right"].map(|role| Peer::start(TEST, role));
    let [left, right] = &mut peers;
    left.swap(right);
    for word in ["connected", "all", "reset", "greeted", "clean"] {
        assert_eq!((&*left.hear(), &*right.hear()), (word, word));
        left.say("go on");
        right.say("go on");
    }
    peers.into_iter().for_each(Peer::ends);
}

/// Connects two contexts of this process; any task that waits for them polls the whole WorkQ.
async fn pair(side: &Side, setup: Setup) {
    let [one, other] = [(); 2].map(|()| context(&side.device, &side.workq, setup));
    support::rdma::connect(&one, &other);
    let (empty, sent) = tokio::join!(one.recv(()), other.send(()));
    assert!(empty.is_ok() && sent.is_ok());
}

/// Contexts on one WorkQ are attached and dropped, again and again. One side only sends or writes,
/// or does nothing at all.
fn come_and_go() {
    let pid = std::process::id() as i32;
    let setup = Setup::new(false, Mode::EventDriven);
    let runtime = runtime();
    let side = Side::new(setup);
    runtime.block_on(async {
        // The fabric's resources stay until the process ends.
        let _exported = side.memory();
        let memories = footprint(pid).1;
        pair(&side, setup).await;
        until("they are retired", || footprint(pid).1 == memories).await;
        let before = footprint(pid);
        while let Some(word) = hear() {
            let rdma = context(&side.device, &side.workq, setup);
            say(&hex(&rdma.export().unwrap()));
            rdma.connect(&unhex(&hear().unwrap())).await.unwrap();
            say("connected");
            hear();
            match &*word {
                "send" => {
                    rdma.send(&side.filled(b"there")).await.unwrap();
                }
                "recv" => {
                    rdma.recv(&side.empty()).await.unwrap();
                }
                _ => {}
            }
            say("done");
            hear();
            drop(rdma);
            side.all_back().await;
            pair(&side, setup).await;
            until("they are retired", || footprint(pid) == before).await;
            say("clean");
        }
    });
}

#[test]
fn contexts_that_come_and_go_leave_nothing_on_their_workq() {
    const TEST: &str = test_name!(contexts_that_come_and_go_leave_nothing_on_their_workq);
    if needs_soft("there are no links that come and go") {
        return;
    }
    if role().is_some() {
        return come_and_go();
    }
    let mut one = Peer::start(TEST, "one");
    // The peer is a new process each time, so the links are new too.
    for words in [
        ["send", "recv"],
        ["recv", "send"],
        ["nothing", "nothing"],
        ["send", "recv"],
        ["nothing", "nothing"],
    ] {
        let mut other = Peer::start(TEST, "other");
        one.say(words[0]);
        other.say(words[1]);
        one.swap(&mut other);
        for word in ["connected", "done"] {
            assert_eq!((&*one.hear(), &*other.hear()), (word, word));
            one.say("go on");
            other.say("go on");
        }
        assert_eq!((&*one.hear(), &*other.hear()), ("clean", "clean"));
        other.ends();
    }
    one.ends();
}

/// Returns the inodes of the files behind the message rings and doorbell pages of this process.
fn arenas() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|it| it.contains("tokio-doca-arena"));
    let inode = |line: &str| line.split_whitespace().nth(4).unwrap().to_owned();
    lines.map(inode).collect()
}

/// Makes one connection after the other, beside one that stays. Each transfers the given number of
/// messages in each direction, with the given number of receives.
fn in_turn() {
    let setup = Setup::new(false, Mode::EventDriven);
    let side = Side::new(setup);
    say(&hex(&side.rdma.export().unwrap()));
    run(async {
        side.rdma.connect(&unhex(&hear().unwrap())).await.unwrap();
        let mut arenas = BTreeSet::new();
        let (mut round, mut connections) = (0, 0);
        while let Some(word) = hear() {
            let (messages, receives) = word.split_once(' ').unwrap();
            let (messages, receives) = (messages.parse().unwrap(), receives.parse().unwrap());
            let setup = Setup { receives, ..setup };
            let rdma = context(&side.device, &side.workq, setup);
            say(&hex(&rdma.export().unwrap()));
            rdma.connect(&unhex(&hear().unwrap())).await.unwrap();
            for message in 0..messages {
                round += 1;
                let (sent, came) = (side.filled(&pattern(round, 3000)), side.empty());
                let (sent, came_by) = tokio::join!(rdma.send(&sent), rdma.recv(&came));
                assert_eq!((sent, came_by.unwrap().len), (Ok(3000), 3000), "{message}");
                assert_eq!(bytes(&came), pattern(round, 3000));
            }
            arenas.extend(self::arenas());
            // Waits until the peer has received all messages, before it can see the end.
            say("done");
            hear();
            // Either one side notices that the other has closed the connection, or both close it.
            connections += 1;
            if connections % 2 == 0 && role().is_some_and(|it| it == "one") {
                rdma.recv(side.empty()).await.unwrap_err();
            }
            drop(rdma);
            // Meanwhile the WorkQ is polled, and no longer polls the dropped connection.
            let (sent, came) = tokio::join!(side.send(b"beside"), side.recv());
            assert_eq!((sent, came.unwrap()), (Ok(()), b"beside".to_vec()));
            say(&arenas.len().to_string());
            hear();
        }
    });
}

#[test]
fn connections_beside_another_use_the_memory_of_those_before() {
    const TEST: &str = test_name!(connections_beside_another_use_the_memory_of_those_before);
    if needs_soft("adapters share no memory") {
        return;
    }
    if role().is_some() {
        return in_turn();
    }
    let mut peers = ["one", "other"].map(|name| Peer::start(TEST, name));
    let swap = |peers: &mut [Peer; 2]| {
        let [first, second] = peers.each_mut().map(Peer::hear);
        peers[0].say(&second);
        peers[1].say(&first);
    };
    swap(&mut peers);
    let mut known = 0;
    // The number of messages and of receives of a connection, and the number of files that are new
    // for it.
    let rounds = [
        (1, 8, 1),
        (1, 8, 0),
        (9, 8, 0),
        (1, 8, 0),
        (1, 16, 1),
        (1, 8, 0),
    ];
    // A ring that has carried many messages is not kept for reuse.
    let much = [(60, 8, 0), (1, 8, 1), (0, 16, 0), (1, 16, 0)];
    for (messages, receives, new) in rounds.into_iter().chain(much) {
        for peer in &mut peers {
            peer.say(&format!("{messages} {receives}"));
        }
        swap(&mut peers);
        for peer in &mut peers {
            assert_eq!(peer.hear(), "done");
        }
        peers.iter_mut().for_each(|peer| peer.say("end"));
        let [here, there] = peers.each_mut().map(Peer::hear);
        assert_eq!(here, there);
        let arenas = here.parse::<usize>().unwrap();
        // The doorbell page, and the ring of the connection that stays.
        let before = if known == 0 { 2 } else { known };
        assert_eq!(
            arenas - before,
            new,
            "{messages} messages, {receives} receives"
        );
        known = arenas;
        peers.iter_mut().for_each(|peer| peer.say("go on"));
    }
    peers.into_iter().for_each(Peer::ends);
}

/// Messages that a process sent before it was killed are received first, and then the end is
/// reported.
#[test]
fn messages_of_a_process_that_was_killed_are_taken_first() {
    const TEST: &str = test_name!(messages_of_a_process_that_was_killed_are_taken_first);
    if needs_soft("adapters receive from no pool") {
        return;
    }
    let message = |number: u8| pattern(number, 100 * usize::from(number));
    for (at, setup) in Setup::all().into_iter().enumerate() {
        if role().is_some_and(|role| role != at.to_string()) {
            continue;
        }
        let side = Side::new(setup);
        if role().is_some() {
            side.meet_parent(false);
            run(async {
                for number in 0..9 {
                    side.send(&message(number)).await.unwrap();
                }
            });
            say("sent");
            hear();
            return;
        }
        let mut peer = Peer::start(TEST, &at.to_string());
        let pool = RecvPool::new(&side.pool);
        let rdma = Rdma::builder(&side.device).recv_pool(&pool);
        let side = Side {
            rdma: rdma.attach(&side.workq).unwrap(),
            ..side
        };
        side.meet_child(&mut peer, true);
        assert_eq!(peer.hear(), "sent");
        peer.kill();
        run(async {
            let mut stream = side.rdma.messages();
            for number in 0..9 {
                let taken = in_time("a message", stream.next()).await;
                let taken = taken.unwrap().unwrap();
                let data = taken.buf.as_ref().map_or_else(Vec::new, bytes);
                assert_eq!(data, message(number), "{setup:?}");
            }
            let error = in_time("the end", stream.next()).await.unwrap();
            assert_eq!(error.unwrap_err().cause(), Some(Reason::PeerGone));
            drop(stream);
            side.all_back().await;
        });
    }
}
