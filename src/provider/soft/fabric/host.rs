//! The host's side: endpoints that guests of other processes come to, and how they are answered.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use nix::errno::Errno;

use super::connection::{After, Then};
use super::process::{Fabric, Station};
use super::protocol::greeting::{self, Claim, Greeting, Hello, Knock};
use super::protocol::wire::{Bad, Status};
use super::protocol::{Id, Keyed, Slots, socket};
use super::watch::Process;
use crate::process::Guarded;
use crate::sync::lock;

/// An endpoint that guests of other processes come to.
pub(in super::super) trait Host: Send + Sync {
    /// A guest has proved that it has the blob. On the fabric's thread: it must not block.
    ///
    /// That it was welcomed does not say that it has heard of it: it may have given up, or have ended.
    fn welcome(&self, guest: &Guest) -> Result<Welcome, Refused>;

    /// For a visit within the process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Who comes.
pub(in super::super) struct Guest {
    /// Of its fabric, as it says. Whoever knows another's can say that: [`Guest::process`] is the kernel's word.
    pub(in super::super) instance: Id,
    pub(in super::super) hello: Hello,
    pub(in super::super) process: Arc<Process>,
}

/// What a guest gets.
pub(in super::super) struct Welcome {
    pub(in super::super) hello: Hello,
    /// Of the link, and of the channel.
    pub(in super::super) memfds: [Arc<OwnedFd>; 2],
    /// Takes the connection once the answer was sent; dropped without a call if it could not be. `None`: the fabric is done with it.
    pub(in super::super) keep: Option<Box<dyn FnOnce(Guarded) + Send>>,
    /// Called if the answer could not be sent: the guest may come again.
    pub(in super::super) unheard: Option<Box<dyn FnOnce() + Send>>,
}

/// Why a guest is not welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refused {
    /// There is another one.
    Busy,
    /// It says what the host can make nothing of, or the host connects to another.
    NotExpected,
    /// The endpoint is being reset.
    Gone,
    /// A system call failed, with this errno.
    Failed(i32),
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        match refused {
            Refused::Busy => Status::Busy,
            Refused::NotExpected => Status::Unwanted,
            Refused::Gone => Status::Unknown,
            Refused::Failed(errno) => Status::Failed(errno),
        }
    }
}

/// An exported endpoint.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) key: Id,
    pub(super) host: Weak<dyn Host>,
    /// For the processes of its guests, which keep it.
    pub(super) fabric: Weak<Fabric>,
}

impl Keyed for Seat {
    fn key(&self) -> &Id {
        &self.key
    }
}

/// What becomes of a knock.
pub(super) enum Verdict {
    /// It is none.
    Silence,
    Refuse(Status),
    Admit(Knock, Seat),
}

/// Judges a knock, which may be any bytes. `room` is whether one more connection may stay.
pub(super) fn judge(seats: &Mutex<Slots<Seat>>, message: &[u8], room: bool) -> Verdict {
    let claim = match Claim::parse(message) {
        Ok(claim) => claim,
        Err(Bad::Version(_)) => return Verdict::Refuse(Status::Version),
        Err(Bad::Malformed) => return Verdict::Silence,
    };
    let slot = (claim.knock.slot, claim.knock.generation);
    let seats = lock(seats);
    let claimed = seats.claimed(slot, |key| claim.is_proved(key)).cloned();
    drop(seats);
    match claimed {
        None => Verdict::Refuse(Status::Unknown),
        Some(_) if claim.knock.keep && !room => Verdict::Refuse(Status::Failed(libc::EUSERS)),
        Some(seat) => Verdict::Admit(claim.knock, seat),
    }
}

/// Answers one knock, in the fabric's thread.
pub(super) fn answer(
    instance: &Id,
    station: &Station,
    message: &[u8],
    from: &Guarded,
    room: bool,
) -> After {
    let refuse = |status| {
        let _ = socket::send(from.as_fd(), &greeting::refusal(status), &[]);
        After::Refused
    };
    let (knock, seat) = match judge(&station.seats, message, room) {
        Verdict::Silence => return After::Refused,
        Verdict::Refuse(status) => return refuse(status),
        Verdict::Admit(knock, seat) => (knock, seat),
    };
    let (Some(host), Some(fabric)) = (seat.host.upgrade(), seat.fabric.upgrade()) else {
        return refuse(Status::Unknown);
    };
    let watch = || -> nix::Result<_> {
        let pidfd = socket::pidfd(from)?;
        let keep = knock.keep || pidfd.is_none();
        let process = Process::across(&fabric, knock.instance, from, pidfd)?;
        Ok((keep, process))
    };
    let (keep, process) = match watch() {
        Ok((true, _)) if !room => return refuse(Status::Failed(libc::EUSERS)),
        Ok(watched) => watched,
        Err(errno) => return refuse(Status::Failed(errno as i32)),
    };
    let guest = Guest {
        instance: knock.instance,
        hello: knock.hello,
        process,
    };
    let welcome = match host.welcome(&guest) {
        Ok(welcome) => welcome,
        Err(refused) => return refuse(refused.into()),
    };
    let greeting = Greeting {
        keep,
        instance: *instance,
        hello: welcome.hello,
    };
    let message = greeting.format(&seat.key, &knock);
    let memfds = welcome.memfds.each_ref().map(|memfd| memfd.as_raw_fd());
    let sent = socket::send(from.as_fd(), &message, &memfds);
    if let (Err(_), Some(unheard)) = (sent, welcome.unheard) {
        unheard();
    }
    match (sent, welcome.keep) {
        (Ok(()), Some(to)) => After::Answered(Then::HandOver(to)),
        (Ok(()), None) if keep => After::Answered(Then::Keep),
        (Ok(()), None) => After::Answered(Then::HangUp),
        // Too many of ours are on their way to guests that do not take them.
        (Err(Errno::ETOOMANYREFS), _) => refuse(Status::Failed(libc::ETOOMANYREFS)),
        (Err(_), _) => After::Refused,
    }
}
