//! Visits by themselves: a fabric that visits itself over the socket, another process's, hostile hosts and hostile guests.
#![expect(unsafe_code, reason = "forks")]

use std::any::Any;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, Weak};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::super::super::ended::Ended;
use super::super::super::host::{Guest, Host, Refused, Welcome};
use super::super::super::memory::Arena;
use super::super::super::protocol::greeting::{ANSWER_LEN, Claim, Greeting, HELLO, KNOCK_LEN};
use super::super::super::protocol::{Address, Contact, Id, Place, place, socket};
use super::super::importer::tests::{ROLE, again, alone_in, soon, until};
use super::super::invitation::{ENDPOINT, Invited, instance, invite};
use super::*;
use crate::sync::lock;

const LEN: usize = 8192;

fn hello(byte: u8) -> Hello {
    [byte; HELLO]
}

/// Counts, and waits for a count.
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

/// An endpoint that welcomes whoever says a number that it likes.
struct Endpoint {
    memfds: [Arc<OwnedFd>; 2],
    guests: Mutex<Vec<Guest>>,
    kept: Arc<Mutex<Vec<Guarded>>>,
    keeps: Arc<Count>,
    undone: Arc<AtomicUsize>,
}

/// What becomes of a connection to be kept.
struct Keep(Option<Arc<AtomicUsize>>);

impl Keep {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Keep {
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
            guests: Mutex::default(),
            kept: Arc::default(),
            keeps: Arc::default(),
            undone: Arc::default(),
        })
    }

    fn invite(self: &Arc<Self>) -> Invited {
        let host: Arc<dyn Host> = Arc::<Endpoint>::clone(self);
        invite(&ENDPOINT, &hello(1), Arc::downgrade(&host)).unwrap()
    }
}

impl Host for Endpoint {
    fn welcome(&self, guest: &Guest) -> Result<Welcome, Refused> {
        assert_eq!(std::thread::current().name(), Some("doca-fabric"));
        match guest.hello[0] {
            10 => return Err(Refused::Busy),
            11 => return Err(Refused::NotExpected),
            12 => return Err(Refused::Gone),
            13 => return Err(Refused::Failed(libc::EMFILE)),
            _ => {}
        }
        lock(&self.guests).push(Guest {
            process: Arc::clone(&guest.process),
            ..*guest
        });
        let (kept, keeps) = (Arc::clone(&self.kept), Arc::clone(&self.keeps));
        let undo = Keep(Some(Arc::clone(&self.undone)));
        let keep = move |socket| {
            undo.done();
            lock(&*kept).push(socket);
            keeps.add();
        };
        Ok(Welcome {
            hello: hello(guest.hello[0] + 100),
            memfds: self.memfds.clone(),
            keep: (guest.hello[0] != 20).then(|| Box::new(keep) as Box<_>),
            unheard: None,
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

fn parsed(invited: &Invited) -> Invitation {
    Invitation::parse(&ENDPOINT, invited.blob()).unwrap()
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    let error = result.err().expect("it is refused");
    assert_eq!(error.call(), None);
    error.kind()
}

/// An invitation that says something else.
fn with(invitation: &Invitation, change: impl FnOnce(&mut Contact)) -> Invitation {
    let mut invitation = invitation.clone();
    change(&mut invitation.contact);
    invitation
}

#[test]
fn a_guest_is_welcomed_gets_the_memory_and_has_the_connection() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    assert_eq!(invitation.hello, hello(1));
    assert_eq!(
        (invitation.slot, invitation.key),
        (invited.slot, invited.key)
    );
    let visit = invitation.visit(&hello(2), soon()).unwrap();
    assert_eq!(visit.hello, hello(102));
    assert!(!visit.stays && !visit.process.is_dead());
    let [link, channel] = &visit.memfds;
    assert!(Arena::received(link, LEN).is_ok() && Arena::received(channel, 2 * LEN).is_ok());
    endpoint.keeps.reaches(1);
    let guests = lock(&endpoint.guests);
    let guest = &guests[0];
    assert_eq!(
        (guest.instance, guest.hello),
        (instance().unwrap(), hello(2))
    );
    // This process visits itself: the same one, seen from both sides.
    assert!(Arc::ptr_eq(&guest.process, &visit.process));
    let kept = lock(&*endpoint.kept).pop().unwrap();
    let mut into = [0; 8];
    socket::send(kept.as_fd(), b"bell", &[]).unwrap();
    assert_eq!(socket::receive(visit.socket.as_fd(), &mut into), Ok(4));
    socket::send(visit.socket.as_fd(), b"bel", &[]).unwrap();
    assert_eq!(socket::receive(kept.as_fd(), &mut into), Ok(3));
    assert_eq!(endpoint.undone.load(SeqCst), 0);
}

#[test]
fn a_connection_that_nobody_keeps_is_closed_behind_the_answer() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let visit = parsed(&invited).visit(&hello(20), soon()).unwrap();
    assert_eq!(visit.hello, hello(120));
    let socket = visit.socket.as_fd();
    assert_eq!(socket::wait([Some(socket)], soon()), Ok([true]));
    assert_eq!(socket::receive(socket, &mut [0; 8]), Ok(0));
}

#[test]
fn an_own_endpoint_is_found_until_it_is_reset() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    let host = invitation.own().unwrap().unwrap();
    assert!(host.as_any().downcast::<Endpoint>().is_ok());
    assert!(!invitation.we_host().unwrap(), "it is the same instance");
    let forged = with(&invitation, |contact| contact.key = [0; 16]);
    assert_eq!(kind(forged.own().unwrap()), ErrorKind::ConnectionAborted);
    // Of others: whose instance is the smaller one hosts.
    let smaller = with(&invitation, |contact| contact.instance = [0; 16]);
    let larger = with(&invitation, |contact| contact.instance = [255; 16]);
    assert!(smaller.own().is_none() && larger.own().is_none());
    assert!(!smaller.we_host().unwrap() && larger.we_host().unwrap());
    // A reset: the old one is forgotten before or after the next is there.
    let next = endpoint.invite();
    drop(invited);
    assert_eq!(
        kind(invitation.own().unwrap()),
        ErrorKind::ConnectionAborted
    );
    let refused = invitation.visit(&hello(2), soon());
    assert_eq!(kind(refused), ErrorKind::ConnectionAborted);
    assert!(parsed(&next).own().unwrap().is_ok());
    assert!(parsed(&next).visit(&hello(2), soon()).is_ok());
    // An endpoint that nobody holds any more.
    let other = Endpoint::new();
    let invited = other.invite();
    drop(other);
    let gone = parsed(&invited);
    assert_eq!(kind(gone.own().unwrap()), ErrorKind::ConnectionAborted);
    assert_eq!(
        kind(gone.visit(&hello(2), soon())),
        ErrorKind::ConnectionAborted
    );
}

#[test]
fn a_slot_that_is_taken_again_does_not_answer_for_the_one_before() {
    let _fabric = current::fabric().unwrap();
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let old = parsed(&invited);
    drop(invited);
    let _others: Vec<_> = (0..64).map(|_| endpoint.invite()).collect();
    assert_eq!(kind(old.own().unwrap()), ErrorKind::ConnectionAborted);
    assert_eq!(
        kind(old.visit(&hello(2), soon())),
        ErrorKind::ConnectionAborted
    );
}

#[test]
fn who_is_refused_is_told_why() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    let said = |number| {
        let error = invitation.visit(&hello(number), soon()).err().unwrap();
        (error.kind(), error.to_string())
    };
    let (aborted, os) = (ErrorKind::ConnectionAborted, ErrorKind::OperatingSystem);
    for (number, kind, text) in [
        (10, aborted, "connected to another"),
        (11, aborted, "does not expect"),
        (12, aborted, "reset or dropped"),
        (13, os, "could not connect"),
    ] {
        let said = said(number);
        assert!(said.0 == kind && said.1.contains(text), "{said:?}");
    }
    let forged = with(&invitation, |contact| contact.key = [0; 16]);
    assert_eq!(kind(forged.visit(&hello(2), soon())), aborted);
    assert!(lock(&endpoint.guests).is_empty());
}

#[test]
fn an_endpoint_of_another_host_or_namespace_or_of_the_past_says_so() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let here = parsed(&invited);
    let visit = |change: &dyn Fn(&mut Contact)| {
        let refused = with(&here, change).visit(&hello(2), soon());
        refused.err().unwrap().to_string()
    };
    assert!(visit(&|contact| contact.place.boot = [1; 16]).contains("another host"));
    assert!(visit(&|contact| contact.place.net = (1, 2)).contains("set_socket_path"));
    let nobody = Address::Abstract(b"tokio-doca-nobody".to_vec());
    let stale = with(&here, |contact| contact.address = nobody);
    assert_eq!(
        kind(stale.visit(&hello(2), soon())),
        ErrorKind::ConnectionReset
    );
    // The key is right, and another instance answers.
    let other = with(&here, |contact| contact.instance = [1; 16]);
    assert_eq!(
        kind(other.visit(&hello(2), soon())),
        ErrorKind::NotPermitted
    );
}

/// Answers one guest as it likes.
fn plays(
    play: impl FnOnce(OwnedFd, Claim) + Send + 'static,
) -> (Invitation, std::thread::JoinHandle<()>) {
    let name = place::hex(&place::random().unwrap()).into_bytes();
    let address = Address::Abstract(name);
    let listener = socket::listen(&address).unwrap().try_clone().unwrap();
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false).unwrap();
    let contact = Contact {
        slot: 0,
        generation: 1,
        place: Place::here().unwrap(),
        instance: [5; 16],
        key: [6; 16],
        address,
    };
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let socket = OwnedFd::from(socket);
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        let mut message = [0; KNOCK_LEN];
        socket::receive(socket.as_fd(), &mut message).unwrap();
        play(socket, Claim::parse(&message).unwrap());
    });
    let hello = hello(1);
    (
        Invitation {
            hello,
            contact,
            kind: &ENDPOINT,
        },
        thread,
    )
}

#[test]
fn a_host_that_lies_hangs_up_or_is_silent_is_told_apart() {
    let run = |play: Box<dyn FnOnce(OwnedFd, Claim) + Send>, deadline| {
        let (invitation, thread) = plays(play);
        let visit = invitation.visit(&hello(2), deadline);
        thread.join().unwrap();
        visit
    };
    let answers = |key: Id, instance: Id, files: usize, claimed: fn(Knock) -> Knock| {
        let play = move |socket: OwnedFd, claim: Claim| {
            assert!(claim.is_proved(&[6; 16]) && !claim.is_proved(&[7; 16]));
            let greeting = Greeting {
                keep: false,
                instance,
                hello: hello(3),
            };
            let message = greeting.format(&key, &claimed(claim.knock));
            let memfds: Vec<_> = (0..files).map(|_| Arena::create(LEN).unwrap().0).collect();
            let raw: Vec<_> = memfds.iter().map(AsRawFd::as_raw_fd).collect();
            socket::send(socket.as_fd(), &message, &raw).unwrap();
        };
        run(Box::new(play), soon())
    };
    let same = |knock: Knock| knock;
    assert_eq!(answers([6; 16], [5; 16], 2, same).unwrap().hello, hello(3));
    let replayed = |knock: Knock| Knock {
        nonce: [9; 16],
        ..knock
    };
    for refused in [
        answers([7; 16], [5; 16], 2, same),
        answers([6; 16], [4; 16], 2, same),
        answers([6; 16], [5; 16], 0, same),
        answers([6; 16], [5; 16], 1, same),
        answers([6; 16], [5; 16], 3, same),
        answers([6; 16], [5; 16], 2, replayed),
    ] {
        assert_eq!(kind(refused), ErrorKind::NotPermitted);
    }
    let hangs_up = run(Box::new(|_, _| {}), soon());
    assert_eq!(kind(hangs_up), ErrorKind::ConnectionReset);
    let junk = |socket: OwnedFd, _| socket::send(socket.as_fd(), &[7; 500], &[]).unwrap();
    assert_eq!(kind(run(Box::new(junk), soon())), ErrorKind::NotPermitted);
    let silent = |socket: OwnedFd, _| {
        // Until the guest gives up.
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
    };
    let shortly = Instant::now() + Duration::from_millis(20);
    assert_eq!(kind(run(Box::new(silent), shortly)), ErrorKind::TimedOut);
}

#[test]
fn guests_that_talk_nonsense_or_go_are_nobodys_guests() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    let connect = || socket::connect(&invitation.address, soon()).unwrap();
    let knock = Knock {
        slot: invitation.slot,
        generation: invitation.generation,
        nonce: [7; 16],
        keep: false,
        instance: [8; 16],
        hello: hello(2),
    };
    let right = knock.format(&invitation.key);
    let longer = [&right[..], &[0]].concat();
    let flags = |at| {
        let mut message = right.clone();
        message[at] = 2;
        message
    };
    for message in [&right[..KNOCK_LEN - 1], &longer, &flags(10)] {
        let socket = connect();
        socket::send(socket.as_fd(), message, &[]).unwrap();
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        assert_eq!(socket::receive(socket.as_fd(), &mut [0; 9]), Ok(0));
    }
    // Of another release, and without the key: they are told.
    let strangers = knock.format(&[0; 16]);
    for (message, status) in [(flags(8), Status::Version), (strangers, Status::Unknown)] {
        let socket = connect();
        socket::send(socket.as_fd(), &message, &[]).unwrap();
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        let mut answer = [0; ANSWER_LEN];
        let len = socket::receive(socket.as_fd(), &mut answer).unwrap();
        assert_eq!(Answer::parse(&answer[..len]).unwrap().status, status);
    }
    assert!(lock(&endpoint.guests).is_empty());
    // One that knocks and goes: welcomed in vain, if at all, and what was to be kept is given back.
    for _ in 0..50 {
        let socket = connect();
        socket::send(socket.as_fd(), &right, &[]).unwrap();
        drop(socket);
    }
    assert!(invitation.visit(&hello(2), soon()).is_ok());
    let kept = || lock(&*endpoint.kept).len();
    until("each is kept or given back", || {
        lock(&endpoint.guests).len() == kept() + endpoint.undone.load(SeqCst)
    });
}

/// This test, in a process of its own that invites, and does what it reads.
struct Other {
    process: Child,
    invitation: Invitation,
}

impl Other {
    fn start(test: &str) -> Other {
        let mut command = again(module_path!(), test, "host");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        let marked = said
            .map(|line| line.unwrap())
            .find_map(|line| line.split_once("SAYS ").map(|(_, said)| said.to_owned()));
        let digits = marked.expect("it says its invitation");
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let invitation = Invitation::parse(&ENDPOINT, &bytes).unwrap();
        Other {
            process,
            invitation,
        }
    }

    fn signal(&self, signal: Signal) -> Pid {
        let pid = Pid::from_raw(self.process.id() as i32);
        kill(pid, signal).unwrap();
        pid
    }

    /// What such a process does: until it is told to end.
    fn play() {
        let endpoint = Endpoint::new();
        let invited = endpoint.invite();
        let digits: String = invited
            .blob()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        println!("SAYS {digits}");
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn another_process_is_visited_stopped_and_lost() {
    const NAME: &str = "another_process_is_visited_stopped_and_lost";
    if std::env::var(ROLE).is_ok() {
        return Other::play();
    }
    let other = Other::start(NAME);
    let invitation = &other.invitation;
    assert!(invitation.own().is_none());
    let _ours = Endpoint::new().invite();
    let ours = instance().unwrap();
    assert_eq!(invitation.we_host().unwrap(), ours < invitation.instance);
    let first = invitation.visit(&hello(2), soon()).unwrap();
    let second = invitation.visit(&hello(3), soon()).unwrap();
    assert_eq!(second.hello, hello(103));
    // Since Linux 6.9 the kernel says that it is the same; its number says so before.
    assert!(Arc::ptr_eq(&first.process, &second.process));
    let (ended, late) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let weak = |count: &Arc<Count>| -> Weak<dyn Ended> {
        let ended: Arc<dyn Ended> = Arc::<Count>::clone(count);
        Arc::downgrade(&ended)
    };
    first.process.on_end(weak(&ended));
    second.process.on_end(weak(&ended));

    let pid = other.signal(Signal::SIGSTOP);
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(stopped, Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    let shortly = Instant::now() + Duration::from_millis(50);
    assert_eq!(
        kind(invitation.visit(&hello(4), shortly)),
        ErrorKind::TimedOut
    );
    other.signal(Signal::SIGCONT);
    assert!(invitation.visit(&hello(5), soon()).is_ok());
    assert!(!first.process.is_dead());

    other.signal(Signal::SIGKILL);
    ended.reaches(2);
    assert!(first.process.is_dead() && second.process.is_dead());
    // Who asks too late is told all the same, and once.
    first.process.on_end(weak(&late));
    late.reaches(1);
    first.process.on_end(weak(&late));
    late.reaches(2);
    ended.reaches(2);
    assert_eq!(
        kind(invitation.visit(&hello(6), soon())),
        ErrorKind::ConnectionReset
    );
}

#[test]
fn without_a_pidfd_the_end_of_the_connection_is_the_end_of_the_process() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let fabric = current::fabric().unwrap();
    let visit = parsed(&invited).visit(&hello(2), soon()).unwrap();
    endpoint.keeps.reaches(1);
    let kept = lock(&*endpoint.kept).pop().unwrap();
    let across = || Process::across(&fabric, [8; 16], &visit.socket, None).unwrap();
    let (one, other) = (across(), across());
    assert!(
        !Arc::ptr_eq(&one, &other),
        "nobody knows whether they are the same"
    );
    let ended = Arc::new(Count::default());
    let weak: Arc<dyn Ended> = Arc::<Count>::clone(&ended);
    one.on_end(Arc::downgrade(&weak));
    // What is said is no end.
    socket::send(kept.as_fd(), b"bell", &[]).unwrap();
    assert!(parsed(&invited).visit(&hello(2), soon()).is_ok());
    assert!(!one.is_dead());
    drop(kept);
    ended.reaches(1);
    assert!(one.is_dead());
    let known = Arc::downgrade(&one.watched);
    drop(one);
    until("nothing is kept of it", || known.strong_count() == 0);
}

#[test]
fn a_guest_that_can_watch_nothing_else_keeps_the_connection() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    let socket = socket::connect(&invitation.address, soon()).unwrap();
    let knock = Knock {
        slot: invitation.slot,
        generation: invitation.generation,
        nonce: [7; 16],
        keep: true,
        instance: [8; 16],
        // The endpoint does not keep it.
        hello: hello(20),
    };
    let message = knock.format(&invitation.key);
    socket::send(socket.as_fd(), &message, &[]).unwrap();
    assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
    let mut answer = [0; ANSWER_LEN];
    let (len, with) = socket::receive_with(socket.as_fd(), &mut answer).unwrap();
    let (answer, _) = invitation.greeted(&knock, &answer[..len], with).unwrap();
    assert!(answer.greeting.keep);
    // It has answered others since, and did not hang up.
    assert!(invitation.visit(&hello(2), soon()).is_ok());
    let no = socket::receive(socket.as_fd(), &mut [0; 8]);
    assert_eq!(no, Err(Errno::EAGAIN));
}

#[test]
fn a_child_of_fork_is_told_and_takes_nothing_from_its_parent() {
    const NAME: &str = "a_child_of_fork_is_told_and_takes_nothing_from_its_parent";
    alone_in(module_path!(), NAME, fork);
}

fn fork() {
    let endpoint = Endpoint::new();
    let invited = endpoint.invite();
    let invitation = parsed(&invited);
    let visit = invitation.visit(&hello(2), soon()).unwrap();
    let ended = Arc::new(Count::default());
    let weak: Arc<dyn Ended> = Arc::<Count>::clone(&ended);
    // SAFETY: the child allocates, which glibc allows; the other thread of this process holds no lock, as it sleeps.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused =
            |result: Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::BadState);
        let told = refused(invitation.visit(&hello(2), soon()).map(drop))
            && refused(invitation.we_host().map(drop))
            && refused(invitation.own().unwrap().map(drop));
        visit.process.on_end(Arc::downgrade(&weak));
        drop((visit, invited));
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(if told { 7 } else { 8 }) };
    }
    let pid = Pid::from_raw(pid);
    assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
    assert!(!visit.process.is_dead());
    assert!(invitation.visit(&hello(2), soon()).is_ok());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_visits_leave_nothing_behind() {
    const NAME: &str = "a_thousand_visits_leave_nothing_behind";
    alone_in(module_path!(), NAME, || {
        let endpoint = Endpoint::new();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = (descriptors(), threads());
        for round in 0..2 {
            let invitations: Vec<_> = (0..100).map(|_| endpoint.invite()).collect();
            for invited in &invitations {
                for number in [2, 10, 20, 13, 3] {
                    let visit = parsed(invited).visit(&hello(number), soon());
                    assert_eq!(visit.is_ok(), number != 10 && number != 13);
                }
            }
            assert_eq!(threads(), before.1 + 1);
            endpoint.keeps.reaches((round + 1) * 200);
            // Dropped outside the lock: the last fabric goes with them.
            let guests = std::mem::take(&mut *lock(&endpoint.guests));
            drop((guests, invitations));
            lock(&*endpoint.kept).clear();
        }
        until("all is back", || (descriptors(), threads()) == before);
    });
}
