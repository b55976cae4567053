//! Limits on what one stranger can use up: descriptors in flight, places in an accept queue, and
//! threads; and which users are trusted.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, socket,
};
use support::channel::*;
use support::events::{Setup, blob, give};
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    ErrorKind, Mmap, Mode, Rdma, WorkQ,
    channel::Channel,
    mem::{Access, RemoteMmap},
};

use super::means::{become_a_stranger, is_hung_up};
use crate::forged::rdma::{Endpoint, RECEIVES};
use crate::forged::{Blob, FAILED, connect, event, listen, receive, send, status};

/// The number of answers that one user may leave unread.
const SHARE: usize = 32;

/// Sends `count` requests as a user, and reads no answer. Returns once all answers have arrived.
fn asks(blob: &Blob, uid: u32, count: usize) -> Vec<OwnedFd> {
    let blob = blob.clone();
    let ask = move || {
        become_a_stranger(uid);
        let one = |_| {
            let socket = connect(&blob.name);
            send(&socket, &blob.request([7; 16], 0), &[]).unwrap();
            socket
        };
        (0..count).map(one).collect()
    };
    let asked: Vec<OwnedFd> = std::thread::spawn(ask).join().unwrap();
    asked.iter().for_each(is_answered);
    asked
}

/// Waits until an answer has arrived.
fn is_answered(socket: &OwnedFd) {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(LIMIT).unwrap();
    assert_eq!(poll(&mut polled, limit), Ok(1), "an answer");
}

/// Runs a closure as another user, on its own thread.
fn as_user<T: Send + 'static>(uid: u32, does: impl FnOnce() -> T + Send + 'static) -> T {
    programs::assert_root();
    let user = std::thread::spawn(move || {
        become_a_stranger(uid);
        does()
    });
    user.join().unwrap()
}

/// Returns how many of these requests were granted; the others must have been refused with the
/// reason.
fn granted(asked: &[OwnedFd]) -> usize {
    let one = |socket: &&OwnedFd| {
        let (answer, with) = receive(socket);
        match status(&answer) {
            (0, 0) => assert_eq!(with.len(), 2),
            other => assert_eq!(other, (FAILED, libc::ETOOMANYREFS)),
        }
        with.len() == 2
    };
    asked.iter().filter(one).count()
}

/// Tests that need root, since only root can act as several users.
mod needs_root {
    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn a_user_who_reads_no_answers_uses_up_no_more_than_a_share() {
        programs::assert_root();
        let device = Soft::builder().build().open("pf0").unwrap();
        let builder = Mmap::builder().device(&device);
        let mmap = builder.access(Access::DPU_READ_ONLY).alloc(4096).unwrap();
        let bytes = mmap.export_dpu(&device).unwrap();
        let blob = Blob::parse(&bytes);
        let unread = asks(&blob, 64_001, 100);
        // Other users have their own shares, and this user's own processes have no limit.
        assert_eq!(granted(&asks(&blob, 64_002, 1)), 1);
        assert_eq!(granted(&asks(&blob, 0, SHARE + 10)), SHARE + 10);
        assert_eq!(granted(&unread), SHARE);
        // Once the answers are read, the share is free again.
        block_until("there is room again", || {
            granted(&asks(&blob, 64_001, 1)) == 1
        });
        // All users together have a limit as well, which is released with their connections.
        let many: Vec<_> = (0..10)
            .map(|user| asks(&blob, 64_010 + user, SHARE))
            .collect();
        let all: usize = many.iter().map(|asked| granted(asked)).sum();
        // An answer that was just read may still be counted.
        assert!((3 * SHARE..=4 * SHARE).contains(&all), "{all}");
        drop((unread, many));
        block_until("strangers are answered again", || {
            granted(&asks(&blob, 64_030, 1)) == 1
        });
    }

    /// The connection of another user's importer stays open until its answer is read. Meanwhile the
    /// event may get another importer.
    #[test]
    #[ignore = "needs root"]
    fn an_importer_that_reads_its_answer_late_disturbs_no_successor() {
        const TEST: &str = test_name!(an_importer_that_reads_its_answer_late_disturbs_no_successor);
        let setup = Setup::new(false, Mode::EventDriven);
        if role().is_some() {
            let event = setup.importer(&blob());
            say("imported");
            return run(in_time("the owner", async {
                assert_eq!(event.wait_gt(0).await, Ok(1));
                event.set(2).await.unwrap();
                hear();
            }));
        }
        // Other tests of this process would use up the shares of strangers.
        if !alone(TEST) {
            return;
        }
        let owner = setup.owner();
        let blob = owner.export_dpu(owner.device()).unwrap();
        let late = as_user(64_040, move || event::knock(&blob));
        is_answered(&late);
        let mut peer = Peer::start(TEST, "importer");
        give(&mut peer, &owner);
        assert_eq!(peer.hear(), "imported");
        let _memory = event::welcomed(&late);
        block_until("it is turned away", || is_hung_up(&late));
        drop(late);
        run(in_time("both sides", async {
            owner.set(1).await.unwrap();
            assert_eq!(owner.wait_gt(1).await, Ok(2));
        }));
        peer.ends();
    }

    /// An unread answer keeps its connection open, but no resource of the `Rdma` that answered.
    #[test]
    #[ignore = "needs root"]
    fn a_guest_that_does_not_read_its_answer_keeps_nothing_of_its_host() {
        const TEST: &str =
            test_name!(a_guest_that_does_not_read_its_answer_keeps_nothing_of_its_host);
        if !alone(TEST) {
            return;
        }
        let device = Soft::builder().build().open("pf0").unwrap();
        let before = descriptors();
        let workq = WorkQ::builder().build().unwrap();
        let builder = Rdma::builder(&device).recv_queue_size(RECEIVES);
        let rdma = builder.attach(&workq).unwrap();
        let host = Endpoint::parse(&rdma.export().unwrap());
        let guest = Endpoint::hostile(false, 1);
        let unread = as_user(64_041, move || {
            guest.knock(&host, &guest.question(RECEIVES, 0))
        });
        is_answered(&unread);
        drop((rdma, workq));
        // Only the guest's own end is left.
        block_until("its host has gone", || descriptors() <= before + 1);
        drop(unread);
    }

    /// A service turns away a limited number of strangers per poll, even for a task for which Tokio
    /// keeps no budget.
    #[test]
    #[ignore = "needs root"]
    fn strangers_in_line_take_one_turn_at_a_time() {
        const STRANGERS: usize = 300;
        const TEST: &str = test_name!(strangers_in_line_take_one_turn_at_a_time);
        if !alone(TEST) {
            return;
        }
        run(async {
            let name = unique("turns");
            let service = service(Channel::builder(), &name);
            let vuid = representor("hpf0").info().vuid().to_owned();
            let at = format!("tokio-doca/{}/{vuid}/{name}", nix::unistd::geteuid());
            let connect =
                move || -> Vec<_> { (0..STRANGERS).map(|_| Raw::at(&at).unwrap()).collect() };
            let strangers = as_user(64_321, connect);
            let away = || strangers.iter().filter(|raw| is_hung_up(&raw.0)).count();
            let mut accept = Box::pin(tokio::task::unconstrained(service.accept()));
            let mut before = 0;
            until("all are turned away", || {
                poll_pending(accept.as_mut());
                let after = away();
                assert!(
                    after <= before + 64,
                    "{before} before a turn, {after} after"
                );
                before = after;
                after == STRANGERS
            })
            .await;
        });
    }
}

/// Tests that need user namespaces. They fail where those are forbidden, so they are ignored by
/// default.
mod needs_user_namespaces {
    use super::*;

    #[test]
    #[ignore = "needs user namespaces"]
    #[expect(unsafe_code, reason = "a namespace is entered before exec")]
    fn a_user_without_a_number_is_nobodys_own() {
        const TEST: &str = test_name!(a_user_without_a_number_is_nobodys_own);
        if role().is_some() {
            // The user id here equals that of any stranger whose id is unmapped.
            return run(async {
                let (name, pf0) = (unique("nobody"), function("pf0"));
                let uid = nix::unistd::geteuid().as_raw().to_string();
                let listened = Channel::builder().listen(&representor("hpf0"), &name);
                let text = rejected(listened, ErrorKind::NotPermitted);
                assert!(
                    text.contains("user namespace") && text.contains(&uid),
                    "{text}"
                );
                let connected = Channel::builder().connect(&pf0, &name).await;
                let text = rejected(connected, ErrorKind::NotPermitted);
                assert!(
                    text.contains("user namespace") && text.contains(&uid),
                    "{text}"
                );
                say("nobody's");
            });
        }
        let mut nobody = Peer::start_with(TEST, "nobody", |command| {
            let enter = || unshare(CloneFlags::CLONE_NEWUSER).map_err(Into::into);
            // SAFETY: makes one system call, which is allowed between fork and exec.
            unsafe { command.pre_exec(enter) };
        });
        assert_eq!(nobody.hear(), "nobody's");
        nobody.ends();
    }
}

/// Fills the accept queue of a listener with connections whose sockets are closed. Returns their
/// number.
fn fill(name: &str) -> usize {
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    for count in 0.. {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        match connect_to(socket.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(errno) => {
                assert_eq!(errno, nix::Error::EAGAIN);
                return count;
            }
        }
    }
    unreachable!("a line has an end")
}

#[test]
fn a_client_stands_in_line_while_strangers_fill_it() {
    run(async {
        let name = unique("line");
        let service = service(Channel::builder(), &name);
        let vuid = representor("hpf0").info().vuid().to_owned();
        let at = format!("tokio-doca/{}/{vuid}/{name}", nix::unistd::geteuid());
        let strangers = std::thread::spawn(move || {
            become_a_stranger(64_321);
            fill(&at)
        });
        until("the line is full", || strangers.is_finished()).await;
        assert!(strangers.join().unwrap() > 0);
        let pf0 = function("pf0");
        let builder = Channel::builder();
        let mut connects: Vec<_> = (0..10)
            .map(|_| Box::pin(builder.connect(&pf0, &name)))
            .collect();
        for connect in &mut connects {
            poll_pending(connect.as_mut());
        }
        let clients = futures::future::join_all(connects);
        let servers = async {
            let mut servers = Vec::new();
            while servers.len() < 10 {
                servers.push(service.accept().await.unwrap());
            }
            servers
        };
        let both = async { tokio::join!(clients, servers) };
        let (clients, servers) = in_time("all are accepted", both).await;
        assert!(clients.iter().all(Result::is_ok), "{clients:?}");
        assert_eq!(servers.len(), 10);
    });
}

#[test]
fn a_client_of_a_service_that_never_accepts_is_told_in_the_end() {
    run(async {
        let name = unique("deaf");
        let _service = service(Channel::builder(), &name);
        let vuid = representor("hpf0").info().vuid().to_owned();
        fill(&format!(
            "tokio-doca/{}/{vuid}/{name}",
            nix::unistd::geteuid()
        ));
        let pf0 = function("pf0");
        let connect = Channel::builder().connect(&pf0, &name);
        let error = in_time("an end", connect).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    });
}

#[test]
fn imports_under_way_take_a_bounded_number_of_threads() {
    const TEST: &str = test_name!(imports_under_way_take_a_bounded_number_of_threads);
    if !alone(TEST) {
        return;
    }
    const IMPORTS: usize = 300;
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let access = Access::DPU_READ_WRITE.bits();
    let blob = Blob::forged(&crate::forged::name(), access, 4096);
    // The listener accepts connections, and never answers.
    let listener = listen(&blob.name);
    let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    run(async {
        let before = threads();
        let import = |_| Box::pin(RemoteMmap::from_export(&dpu, &blob.format()).timeout(LIMIT));
        let mut imports: Vec<_> = (0..IMPORTS).map(import).collect();
        for import in &mut imports {
            poll_pending(import.as_mut());
        }
        let most = threads();
        assert!(most <= before + 64 + 2, "{most} threads, {before} before");
        // Each import ends with an error, including those for which no thread was free.
        drop(listener);
        for import in imports {
            let error = in_time("an end", import).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        until("the threads end", || threads() <= before + 1).await;
    });
}

/// Two processes share a folder: neither takes or removes a path of the other.
#[test]
fn processes_that_share_a_folder_keep_their_paths() {
    const TEST: &str = test_name!(processes_that_share_a_folder_keep_their_paths);
    if role().is_some() {
        let device = Soft::builder().build().open("pf0").unwrap();
        let builder = Mmap::builder()
            .device(&device)
            .access(Access::DPU_READ_ONLY);
        let mmap = builder.alloc(4096).unwrap();
        while hear().is_some() {
            say(&hex(&mmap.export_dpu(&device).unwrap()));
            hear();
            mmap.stop().unwrap();
            mmap.start([&device]).unwrap();
            say("over");
        }
        return;
    }
    let folder = programs::Folder::new();
    let mut exporters = [(); 2].map(|()| {
        Peer::start_with(TEST, "exporter", |command| {
            command.env("TOKIO_DOCA_SOFT_SOCKET", &folder.0);
        })
    });
    let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    let import = |blob: &[u8]| RemoteMmap::from_export(&dpu, blob).timeout(LIMIT).wait();
    let [one, other] = &mut exporters;
    for _ in 0..50 {
        one.say("export");
        let first = unhex(&one.hear());
        other.say("export");
        let second = unhex(&other.hear());
        one.say("over");
        assert_eq!(one.hear(), "over");
        assert_eq!(import(&second).unwrap().len(), 4096);
        assert_eq!(
            import(&first).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        other.say("over");
        assert_eq!(other.hear(), "over");
    }
    exporters.into_iter().for_each(Peer::ends);
    assert!(std::fs::read_dir(&folder.0).unwrap().next().is_none());
}
