//! Tests of services in general: a fabric that connects to itself over the socket, to another
//! process's fabric, to hostile servers, and with hostile clients.
#![expect(unsafe_code, reason = "forks")]

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, Weak};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill as signal_to};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::super::client::Granted;
use super::super::connections::KEPT;
use super::super::ended::Ended;
use super::super::memory::Arena;
use super::super::protocol::{ENDPOINT, EVENT, Id, REPLY_LEN, Refusal, Reply, Status};
use super::super::publish::{Published, instance, publish};
use super::super::service::{Client, Grant, Service};
use super::*;
use crate::process::hang_up;
use crate::sync::lock;

const LEN: usize = 8192;

fn filled(byte: u8) -> Payload {
    [byte; PAYLOAD]
}

/// A counter, with a method that waits for a count.
#[derive(Default)]
struct Count(Mutex<usize>, Condvar);

impl Count {
    fn add(&self) {
        *lock(&self.0) += 1;
        self.1.notify_all();
    }

    fn reaches(&self, count: usize) {
        let left = soon().saturating_duration_since(Instant::now());
        let below = |have: &mut usize| *have < count;
        let (have, _) = self
            .1
            .wait_timeout_while(lock(&self.0), left, below)
            .unwrap();
        assert_eq!(*have, count);
    }
}

impl Ended for Count {
    fn ended(&self) {
        assert_eq!(std::thread::current().name(), Some("doca-fabric"));
        self.add();
    }
}

/// A client's instance, the payload that it sent, and its process.
type Seen = (Id, Payload, Arc<Process>);

/// An endpoint that refuses the clients with certain numbers, and accepts all others.
struct Endpoint {
    memfds: [Arc<OwnedFd>; 2],
    clients: Mutex<Vec<Seen>>,
    kept: Arc<Mutex<Vec<Guarded>>>,
    keeps: Arc<Count>,
    undone: Arc<AtomicUsize>,
}

/// Counts a connection that the endpoint was to keep but did not get.
struct KeepAlive(Option<Arc<AtomicUsize>>);

impl KeepAlive {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        if let Some(undone) = &self.0 {
            undone.fetch_add(1, SeqCst);
        }
    }
}

impl Endpoint {
    fn new() -> Arc<Endpoint> {
        let memfd = |len| Arena::create(len).unwrap().0;
        Arc::new(Endpoint {
            memfds: [memfd(LEN), memfd(2 * LEN)],
            clients: Mutex::default(),
            kept: Arc::default(),
            keeps: Arc::default(),
            undone: Arc::default(),
        })
    }

    fn publish(self: &Arc<Self>) -> Published {
        let service: Arc<dyn Service> = Arc::<Endpoint>::clone(self);
        publish(&ENDPOINT, filled(1), Arc::downgrade(&service)).unwrap()
    }
}

impl Service for Endpoint {
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal> {
        assert_eq!(std::thread::current().name(), Some("doca-fabric"));
        let number = client.payload[0];
        match number {
            10 => return Err(Refusal::BUSY),
            11 => return Err(Refusal::UNEXPECTED),
            12 => return Err(Refusal::UNKNOWN),
            13 => return Err(Errno::EMFILE.into()),
            _ => {}
        }
        let process = client.process()?;
        lock(&self.clients).push((client.instance, client.payload, process));
        let (kept, keeps) = (Arc::clone(&self.kept), Arc::clone(&self.keeps));
        let undo = KeepAlive(Some(Arc::clone(&self.undone)));
        let keep = move |socket| {
            undo.done();
            lock(&*kept).push(socket);
            keeps.add();
        };
        Ok(Grant {
            payload: filled(number + 100),
            descriptors: Some(self.memfds.clone()),
            keep: (number != 20).then(|| Box::new(keep) as Box<_>),
            unsent: None,
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

fn parsed(published: &Published) -> Ticket {
    Ticket::parse(&ENDPOINT, published.blob()).unwrap()
}

/// Connects, and sends a payload of this number.
fn says(ticket: &Ticket, number: u8) -> Result<Granted> {
    ticket.connect(&filled(number), soon())
}

#[test]
fn a_client_is_accepted_gets_the_memory_and_has_the_connection() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    assert_eq!(ticket.payload, filled(1));
    assert_eq!(
        (ticket.slot, ticket.key),
        (published.ticket.slot, published.ticket.key)
    );
    let granted = says(&ticket, 2).unwrap();
    assert_eq!(granted.payload, filled(102));
    assert!(!granted.stays && !granted.process.is_dead());
    let [link, channel] = granted.descriptors.as_ref().unwrap();
    assert!(Arena::received(link, LEN).is_ok() && Arena::received(channel, 2 * LEN).is_ok());
    endpoint.keeps.reaches(1);
    let clients = lock(&endpoint.clients);
    let (its_instance, payload, process) = &clients[0];
    assert_eq!((*its_instance, *payload), (instance().unwrap(), filled(2)));
    // This process connects to itself, and both sides see the same process.
    assert!(Arc::ptr_eq(process, &granted.process));
    let kept = lock(&*endpoint.kept).pop().unwrap();
    let mut into = [0; 8];
    let socket = granted.line.into_socket();
    socket::send(kept.as_fd(), b"bell", &[]).unwrap();
    assert_eq!(socket::receive(socket.as_fd(), &mut into), Ok(4));
    socket::send(socket.as_fd(), b"bel", &[]).unwrap();
    assert_eq!(socket::receive(kept.as_fd(), &mut into), Ok(3));
    assert_eq!(endpoint.undone.load(SeqCst), 0);
}

#[test]
fn a_connection_that_no_service_keeps_is_asked_again() {
    const NAME: &str = "a_connection_that_no_service_keeps_is_asked_again";
    alone_in(module_path!(), NAME, || {
        let endpoint = Endpoint::new();
        let published = [endpoint.publish(), endpoint.publish()];
        let [first, other] = published.each_ref().map(parsed);
        let fabric = current::fabric().unwrap();
        let keep = |granted: Granted| granted.process.keep_line(granted.line);
        let granted = says(&first, 20).unwrap();
        let process = Arc::clone(&granted.process);
        let raw = granted.line.socket().as_raw_fd();
        keep(granted);
        // Each ticket leads to another server: at another address, of another instance, or in
        // another namespace.
        let elsewhere = Address::Abstract(b"tokio-doca-nobody".to_vec());
        for forged in [
            with(&first, |ticket| ticket.address = elsewhere),
            with(&first, |ticket| ticket.instance = [1; 16]),
            with(&first, |ticket| ticket.netns.net = (1, 2)),
        ] {
            assert!(fabric.lines.take(&forged).is_none());
        }
        // The request is proved with the key of its own ticket.
        let granted = says(&other, 20).unwrap();
        assert_eq!(granted.line.socket().as_raw_fd(), raw, "it is the same one");
        assert!(Arc::ptr_eq(&granted.process, &process));
        keep(granted);
        let forged = with(&other, |ticket| ticket.key = [2; 16]);
        assert_eq!(kind(says(&forged, 20)), ErrorKind::ConnectionAborted);
        assert!(fabric.lines.take(&first).is_none());
        // The server has hung up on the kept connection meanwhile.
        let granted = says(&first, 20).unwrap();
        hang_up(granted.line.socket());
        keep(granted);
        assert!(says(&first, 20).is_ok());
        // None of these calls blocks.
        let begin = || first.begin_connect(|| Ok((filled(20), true)));
        assert!(begin().is_none(), "none is kept");
        keep(says(&first, 20).unwrap());
        let begun = begin().unwrap();
        assert_eq!(
            socket::wait([Some(begun.as_fd())], soon()),
            Ok([true]),
            "the answer"
        );
        keep(first.complete_connect(begun).unwrap());
        let busy = lock(&endpoint.clients);
        let begun = begin().unwrap();
        assert_eq!(
            kind(first.complete_connect(begun)),
            ErrorKind::TimedOut,
            "there is no answer yet"
        );
        drop(busy);
        assert!(begin().is_none(), "it was given up");
        let granted = says(&first, 20).unwrap();
        hang_up(granted.line.socket());
        keep(granted);
        assert!(begin().is_none(), "the server has hung up");
        // Only a few connections are kept, and they end once the `Process` is dropped.
        for granted in [(); 6].map(|()| says(&first, 20).unwrap()) {
            keep(granted);
        }
        let lines = std::iter::from_fn(|| fabric.lines.take(&first));
        let lines: Vec<_> = lines.map(|(_, line)| line).collect();
        assert_eq!(lines.len(), 4);
        for line in lines {
            process.keep_line(line);
        }
        lock(&endpoint.clients).clear();
        drop(process);
        assert!(fabric.lines.take(&first).is_none());
    });
}

/// A child of fork(2) has a copy of each connection. It must end none of them, wait for no lock
/// that a thread of its parent held, and start no thread.
#[test]
fn a_child_leaves_the_connections_of_its_parent_alone() {
    const NAME: &str = "a_child_leaves_the_connections_of_its_parent_alone";
    alone_in(module_path!(), NAME, || {
        let endpoint = Endpoint::new();
        let published = endpoint.publish();
        let ticket = parsed(&published);
        for _ in 0..20 {
            let [kept, other] = [(); 2].map(|()| says(&ticket, 20).unwrap());
            kept.process.keep_line(kept.line);
            let process = kept.process;
            // SAFETY: the child allocates, which glibc permits. The other thread of this process
            // sleeps and holds no lock.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                process.keep_line(other.line);
                drop((process, other.process));
                let alone = threads() == 1;
                // SAFETY: this ends only the child.
                unsafe { libc::_exit(if alone { 7 } else { 8 }) };
            }
            let pid = Pid::from_raw(pid);
            assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
            let line = other.line.into_socket();
            let said = socket::receive(line.as_fd(), &mut [0; 8]);
            assert_eq!(said, Err(Errno::EAGAIN));
            assert!(says(&ticket, 20).is_ok());
        }
    });
}

/// Each client that never asks again costs a descriptor.
#[test]
fn connections_that_are_kept_are_bounded() {
    const NAME: &str = "connections_that_are_kept_are_bounded";
    alone_in(module_path!(), NAME, || {
        let endpoint = Endpoint::new();
        let published = endpoint.publish();
        let ticket = parsed(&published);
        let ask = || says(&ticket, 20).unwrap().line;
        let first = ask();
        let others: Vec<_> = (0..KEPT).map(|_| ask()).collect();
        assert_eq!(
            socket::wait([Some(first.socket().as_fd())], soon()),
            Ok([true])
        );
        assert_eq!(socket::receive(first.socket().as_fd(), &mut [0; 8]), Ok(0));
        for other in &others {
            let said = socket::receive(other.socket().as_fd(), &mut [0; 8]);
            assert_eq!(said, Err(Errno::EAGAIN));
        }
        assert!(says(&ticket, 20).is_ok());
    });
}

#[test]
fn an_own_endpoint_is_found_until_it_is_reset() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    let service = ticket.local().unwrap().unwrap();
    assert!(service.as_any().downcast::<Endpoint>().is_ok());
    assert!(
        !ticket.is_ours_to_serve().unwrap(),
        "it is the same instance"
    );
    let forged = with(&ticket, |ticket| ticket.key = [0; 16]);
    assert_eq!(kind(forged.local().unwrap()), ErrorKind::ConnectionAborted);
    // Of two endpoints, the one with the smaller instance is the server.
    let smaller = with(&ticket, |ticket| ticket.instance = [0; 16]);
    let larger = with(&ticket, |ticket| ticket.instance = [255; 16]);
    assert!(smaller.local().is_none() && larger.local().is_none());
    assert!(!smaller.is_ours_to_serve().unwrap() && larger.is_ours_to_serve().unwrap());
    // A reset publishes the next ticket, and then drops the old one, which opens nothing any more.
    let next = endpoint.publish();
    drop(published);
    assert_eq!(kind(ticket.local().unwrap()), ErrorKind::ConnectionAborted);
    let refused = says(&ticket, 2);
    assert_eq!(kind(refused), ErrorKind::ConnectionAborted);
    assert!(parsed(&next).local().unwrap().is_ok());
    assert!(says(&parsed(&next), 2).is_ok());
    // An endpoint that was dropped refuses its ticket.
    let other = Endpoint::new();
    let published = other.publish();
    drop(other);
    let gone = parsed(&published);
    assert_eq!(kind(gone.local().unwrap()), ErrorKind::ConnectionAborted);
    assert_eq!(kind(says(&gone, 2)), ErrorKind::ConnectionAborted);
}

#[test]
fn a_slot_that_is_taken_again_does_not_answer_for_the_one_before() {
    let _fabric = current::fabric().unwrap();
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let old = parsed(&published);
    drop(published);
    let _others: Vec<_> = (0..64).map(|_| endpoint.publish()).collect();
    assert_eq!(kind(old.local().unwrap()), ErrorKind::ConnectionAborted);
    assert_eq!(kind(says(&old, 2)), ErrorKind::ConnectionAborted);
}

#[test]
fn a_client_that_is_refused_is_told_why() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    let said = |number| {
        let error = says(&ticket, number).err().unwrap();
        (error.kind(), error.to_string())
    };
    let (aborted, os) = (ErrorKind::ConnectionAborted, ErrorKind::OperatingSystem);
    for (number, kind, text) in [
        (10, aborted, "connected to another"),
        (11, aborted, "does not expect"),
        (12, aborted, "taken back, reset"),
        (13, os, "could not share its endpoint"),
    ] {
        let said = said(number);
        assert!(said.0 == kind && said.1.contains(text), "{said:?}");
    }
    let forged = with(&ticket, |ticket| ticket.key = [0; 16]);
    assert_eq!(kind(says(&forged, 2)), aborted);
    assert!(lock(&endpoint.clients).is_empty());
}

#[test]
fn an_endpoint_of_another_host_or_namespace_or_of_the_past_says_so() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let here = parsed(&published);
    let granted = |change: &dyn Fn(&mut Ticket)| {
        let refused = with(&here, change).connect(&filled(2), soon());
        refused.err().unwrap().to_string()
    };
    assert!(granted(&|ticket| ticket.netns.boot = [1; 16]).contains("another host"));
    assert!(granted(&|ticket| ticket.netns.net = (1, 2)).contains("set_socket_path"));
    let nobody = Address::Abstract(b"tokio-doca-nobody".to_vec());
    let stale = with(&here, |ticket| ticket.address = nobody);
    assert_eq!(kind(says(&stale, 2)), ErrorKind::ConnectionReset);
    // The key is right, but another instance answers.
    let other = with(&here, |ticket| ticket.instance = [1; 16]);
    assert_eq!(kind(says(&other, 2)), ErrorKind::NotPermitted);
}

#[test]
fn a_server_that_lies_hangs_up_or_is_silent_is_told_apart() {
    let run = |play: Box<dyn FnOnce(OwnedFd, Request) + Send>, deadline| {
        let (ticket, thread) = hostile_server(&ENDPOINT, filled(1), play);
        let granted = ticket.connect(&filled(2), deadline);
        thread.join().unwrap();
        granted
    };
    let answers = |key: Id, instance: Id, files: usize, claimed: fn(Request) -> Request| {
        let play = move |socket: OwnedFd, request: Request| {
            assert!(request.is_proved(&[6; 16]) && !request.is_proved(&[7; 16]));
            let reply = Reply::granted(instance, false, &filled(3), &key, &claimed(request));
            let memfd = || Arena::create(LEN).unwrap().0.try_clone().unwrap();
            let memfds: Vec<_> = (0..files).map(|_| memfd()).collect();
            send(&socket, &reply, &memfds);
        };
        run(Box::new(play), soon())
    };
    let same = |request: Request| request;
    let granted = answers([6; 16], [5; 16], 2, same).unwrap();
    assert_eq!(granted.payload, filled(3));
    let replayed = |mut request: Request| {
        request.nonce = [9; 16];
        request
    };
    for refused in [
        answers([7; 16], [5; 16], 2, same),
        answers([6; 16], [4; 16], 2, same),
        answers([6; 16], [5; 16], 1, same),
        answers([6; 16], [5; 16], 3, same),
        answers([6; 16], [5; 16], 2, replayed),
    ] {
        assert_eq!(kind(refused), ErrorKind::NotPermitted);
    }
    // A client that needs descriptors refuses an answer without them.
    let without = answers([6; 16], [5; 16], 0, same).unwrap();
    let published = Endpoint::new().publish();
    let refused = without.both(&parsed(&published)).map(drop);
    assert_eq!(kind(refused), ErrorKind::NotPermitted);
    let hangs_up = run(Box::new(|_, _| {}), soon());
    assert_eq!(kind(hangs_up), ErrorKind::ConnectionReset);
    let junk = |socket: OwnedFd, _| socket::send(socket.as_fd(), &[7; 500], &[]).unwrap();
    assert_eq!(kind(run(Box::new(junk), soon())), ErrorKind::NotPermitted);
    let silent = |socket: OwnedFd, _| {
        // The server waits until the client gives up.
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
    };
    let shortly = Instant::now() + Duration::from_millis(20);
    assert_eq!(kind(run(Box::new(silent), shortly)), ErrorKind::TimedOut);
}

#[test]
fn clients_that_talk_nonsense_or_go_are_nobodys_clients() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    let connect = || socket::connect(&ticket.address, soon()).unwrap();
    let request = |ticket: &Ticket| ticket.request([8; 16], [7; 16], false, &filled(2));
    let right = request(&ticket);
    let right = right.as_bytes();
    let longer = [right, &[0]].concat();
    let changed = |at| {
        let mut message = right.to_vec();
        message[at] = 2;
        message
    };
    // The last message has a flag that does not exist.
    for message in [&right[..REQUEST_LEN - 1], &longer, &changed(11)] {
        let socket = connect();
        socket::send(socket.as_fd(), message, &[]).unwrap();
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        assert_eq!(socket::receive(socket.as_fd(), &mut [0; 9]), Ok(0));
    }
    // The first message is from another release, the second is made without the key, and the third
    // is of another kind: each gets a refusal.
    let strangers = request(&with(&ticket, |ticket| ticket.key = [0; 16]));
    let others = request(&with(&ticket, |ticket| ticket.kind = &EVENT));
    for (message, status) in [
        (&changed(8)[..], Status::Version),
        (strangers.as_bytes(), Status::Unknown),
        (others.as_bytes(), Status::Unknown),
    ] {
        let socket = connect();
        socket::send(socket.as_fd(), message, &[]).unwrap();
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        let mut reply = [0; REPLY_LEN];
        let len = socket::receive(socket.as_fd(), &mut reply).unwrap();
        assert_eq!(Reply::parse(&reply[..len]).unwrap().status, status);
    }
    assert!(lock(&endpoint.clients).is_empty());
    // Clients that ask and leave are at most accepted in vain, and the connections that were to be
    // kept are given back.
    for _ in 0..50 {
        let socket = connect();
        socket::send(socket.as_fd(), right, &[]).unwrap();
        drop(socket);
    }
    assert!(says(&ticket, 2).is_ok());
    let kept = || lock(&*endpoint.kept).len();
    until("each is kept or given back", || {
        lock(&endpoint.clients).len() == kept() + endpoint.undone.load(SeqCst)
    });
}

/// Acts as an exporting process, which does what it reads.
fn plays() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    play(|_| hex(published.blob()));
}

#[test]
fn another_process_is_connected_to_stopped_and_lost() {
    const NAME: &str = "another_process_is_connected_to_stopped_and_lost";
    if std::env::var(ROLE).is_ok() {
        return plays();
    }
    let mut other = Other::start(module_path!(), NAME);
    let ticket = other.ticket(&ENDPOINT);
    let pid = Pid::from_raw(other.process.id() as i32);
    let signal = |signal| signal_to(pid, signal).unwrap();
    assert!(ticket.local().is_none());
    let _ours = Endpoint::new().publish();
    let ours = instance().unwrap();
    assert_eq!(ticket.is_ours_to_serve().unwrap(), ours < ticket.instance);
    let first = says(&ticket, 2).unwrap();
    let second = says(&ticket, 3).unwrap();
    assert_eq!(second.payload, filled(103));
    // Since Linux 6.9 the kernel identifies the process by the pidfd's inode; before that, by its
    // number.
    assert!(Arc::ptr_eq(&first.process, &second.process));
    let (ended, late) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let weak = |count: &Arc<Count>| -> Weak<dyn Ended> {
        let ended: Arc<dyn Ended> = Arc::<Count>::clone(count);
        Arc::downgrade(&ended)
    };
    first.process.on_end(weak(&ended));
    second.process.on_end(weak(&ended));

    signal(Signal::SIGSTOP);
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(stopped, Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    let shortly = Instant::now() + Duration::from_millis(50);
    assert_eq!(
        kind(ticket.connect(&filled(4), shortly)),
        ErrorKind::TimedOut
    );
    signal(Signal::SIGCONT);
    assert!(says(&ticket, 5).is_ok());
    assert!(!first.process.is_dead());

    signal(Signal::SIGKILL);
    ended.reaches(2);
    assert!(first.process.is_dead() && second.process.is_dead());
    // A party that registers after the end is notified all the same, once for each registration.
    first.process.on_end(weak(&late));
    late.reaches(1);
    first.process.on_end(weak(&late));
    late.reaches(2);
    ended.reaches(2);
    assert_eq!(kind(says(&ticket, 6)), ErrorKind::ConnectionReset);
}

#[test]
fn without_a_pidfd_the_end_of_the_connection_is_the_end_of_the_process() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let fabric = current::fabric().unwrap();
    let granted = says(&parsed(&published), 2).unwrap();
    endpoint.keeps.reaches(1);
    let kept = lock(&*endpoint.kept).pop().unwrap();
    let socket = granted.line.into_socket();
    let across = || Process::across(&fabric, [8; 16], &socket, None, false).unwrap();
    let (one, other) = (across(), across());
    assert!(
        !Arc::ptr_eq(&one, &other),
        "nobody knows whether they are the same"
    );
    let ended = Arc::new(Count::default());
    let weak: Arc<dyn Ended> = Arc::<Count>::clone(&ended);
    one.on_end(Arc::downgrade(&weak));
    // A message on the connection does not count as its end.
    socket::send(kept.as_fd(), b"bell", &[]).unwrap();
    assert!(says(&parsed(&published), 2).is_ok());
    assert!(!one.is_dead());
    drop(kept);
    ended.reaches(1);
    assert!(one.is_dead());
    let known = Arc::downgrade(&one.watched);
    drop(one);
    until("nothing is kept of it", || known.strong_count() == 0);
}

#[test]
fn a_client_that_can_watch_nothing_else_keeps_the_connection() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    let dialed = ticket.dial(soon()).unwrap();
    // The endpoint does not keep the connection.
    let request = ticket.request([8; 16], dialed.nonce, true, &filled(20));
    let answer = ticket.exchange(&dialed, &request, soon()).unwrap();
    let (reply, _) = ticket.granted(&request, answer).unwrap();
    assert!(reply.stays);
    // The server has answered other clients since, and has not hung up.
    assert!(says(&ticket, 2).is_ok());
    let no = socket::receive(dialed.line.socket().as_fd(), &mut [0; 8]);
    assert_eq!(no, Err(Errno::EAGAIN));
}

#[test]
fn a_child_of_fork_is_told_and_takes_nothing_from_its_parent() {
    const NAME: &str = "a_child_of_fork_is_told_and_takes_nothing_from_its_parent";
    alone_in(module_path!(), NAME, fork);
}

fn fork() {
    let endpoint = Endpoint::new();
    let published = endpoint.publish();
    let ticket = parsed(&published);
    let granted = says(&ticket, 2).unwrap();
    let ended = Arc::new(Count::default());
    let weak: Arc<dyn Ended> = Arc::<Count>::clone(&ended);
    // SAFETY: the child allocates, which glibc permits. The other thread of this process sleeps and
    // holds no lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused =
            |result: Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::BadState);
        let told = refused(says(&ticket, 2).map(drop))
            && refused(ticket.is_ours_to_serve().map(drop))
            && refused(ticket.local().unwrap().map(drop));
        granted.process.on_end(Arc::downgrade(&weak));
        drop((granted, published));
        // SAFETY: this ends only the child.
        unsafe { libc::_exit(if told { 7 } else { 8 }) };
    }
    let pid = Pid::from_raw(pid);
    assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
    assert!(!granted.process.is_dead());
    assert!(says(&ticket, 2).is_ok());
}

#[test]
fn a_thousand_connects_leave_nothing_behind() {
    const NAME: &str = "a_thousand_connects_leave_nothing_behind";
    alone_in(module_path!(), NAME, || {
        let endpoint = Endpoint::new();
        let before = (descriptors(), threads());
        for round in 0..2 {
            let tickets: Vec<_> = (0..100).map(|_| endpoint.publish()).collect();
            for published in &tickets {
                for number in [2, 10, 20, 13, 3] {
                    let granted = parsed(published).connect(&filled(number), soon());
                    assert_eq!(granted.is_ok(), number != 10 && number != 13);
                }
            }
            assert_eq!(threads(), before.1 + 1);
            endpoint.keeps.reaches((round + 1) * 200);
            // The clients are dropped without the lock, since the last fabric goes with them.
            let clients = std::mem::take(&mut *lock(&endpoint.clients));
            drop((clients, tickets));
            lock(&*endpoint.kept).clear();
        }
        until("all is back", || (descriptors(), threads()) == before);
    });
}
