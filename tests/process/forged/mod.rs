//! The tools of a hostile process: the bytes of blobs and messages, written again from the
//! documentation of the fabric, sockets, and the descriptors that arrive on them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod endpoint;
pub mod event;
pub mod exporter;
pub mod rdma;
pub mod victim;

use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use hmac::{Hmac, KeyInit, Mac};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, bind, connect as connect_to, listen as listen_at, recvmsg, sendmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use sha2::{Digest, Sha256};

use support::LIMIT;

pub const REQUEST_LEN: usize = 132;
pub const ANSWER_LEN: usize = 112;
pub const PAYLOAD: usize = 48;
/// A request's flag that asks to keep the connection open.
pub const KEEP: u8 = 1;
pub const UNKNOWN: u8 = 1;
pub const FAILED: u8 = 3;
pub const UNEXPECTED: u8 = 5;

/// Kinds of tickets: the last byte of the magic number, and the number of the kind in requests.
pub const MEMORY: (u8, u8) = (0xb1, 0);
pub const ENDPOINT: (u8, u8) = (0xb4, 1);
pub const EVENT: (u8, u8) = (0xb7, 2);

fn hmac(key: &[u8; 16], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Pads the fields of a payload with zeros.
pub fn payload(fields: &[u8]) -> Vec<u8> {
    let mut payload = fields.to_vec();
    payload.resize(PAYLOAD, 0);
    payload
}

/// A ticket of any kind.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub of: (u8, u8),
    /// The kind of socket: 0 for an abstract name.
    pub kind: u8,
    pub slot: u32,
    pub generation: u32,
    /// Boot id, and device and inode of the network namespace.
    pub place: [u8; 32],
    pub instance: [u8; 16],
    pub key: [u8; 16],
    pub payload: Vec<u8>,
    pub name: Vec<u8>,
}

impl Ticket {
    pub fn parse(of: (u8, u8), bytes: &[u8]) -> Ticket {
        assert_eq!(&bytes[..7], b"tkdoca\x00");
        assert_eq!(bytes[7..10], [of.0, 1, 0]);
        let name = usize::from(bytes[13]);
        Ticket {
            of,
            kind: bytes[12],
            slot: u32::from_le_bytes(array(bytes, 14)),
            generation: u32::from_le_bytes(array(bytes, 18)),
            place: array(bytes, 22),
            instance: array(bytes, 54),
            key: array(bytes, 70),
            payload: bytes[86..134].to_vec(),
            name: bytes[134..134 + name].to_vec(),
        }
    }

    pub fn format(&self) -> Vec<u8> {
        let total = 134 + self.name.len() + 8;
        let mut bytes = b"tkdoca\x00".to_vec();
        bytes.extend([self.of.0, 1, 0]);
        bytes.extend((total as u16).to_le_bytes());
        bytes.extend([self.kind, self.name.len() as u8]);
        bytes.extend(self.slot.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.place);
        bytes.extend(self.instance);
        bytes.extend(self.key);
        bytes.extend(&self.payload);
        bytes.extend(&self.name);
        let sum = Sha256::digest(&bytes);
        bytes.extend(&sum[..8]);
        bytes
    }

    /// Returns a request by a client with this instance.
    pub fn request_of(
        &self,
        instance: [u8; 16],
        nonce: [u8; 16],
        stays: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut bytes = b"tkdoca\x00\xb2\x01\x00".to_vec();
        bytes.extend([self.of.1, stays]);
        bytes.extend(self.slot.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(nonce);
        bytes.extend(instance);
        bytes.extend(payload);
        bytes.extend(hmac(&self.key, &[&bytes]));
        bytes
    }

    /// Returns the answer that grants a request, with this payload.
    pub fn grant_of(&self, request: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = b"tkdoca\x00\xb3\x01\x00\x00\x00\x00\x00\x00\x00".to_vec();
        bytes.extend(self.instance);
        bytes.extend(payload);
        bytes.extend(hmac(&self.key, &[&bytes, request]));
        bytes
    }
}

/// Returns the answer that refuses a request.
pub fn refusal(status: u8) -> Vec<u8> {
    let mut bytes = b"tkdoca\x00\xb3\x01\x00".to_vec();
    bytes.push(status);
    bytes.resize(ANSWER_LEN, 0);
    bytes
}

/// An export in the form that importers get.
#[derive(Clone, Debug)]
pub struct Blob {
    pub audience: u8,
    pub port: u8,
    pub access: u32,
    pub len: u64,
    pub ticket: Ticket,
}

impl Deref for Blob {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.ticket
    }
}

impl DerefMut for Blob {
    fn deref_mut(&mut self) -> &mut Ticket {
        &mut self.ticket
    }
}

impl Blob {
    /// Returns a blob that no exporter made: `len` bytes that the DPU may access, by an exporter
    /// that listens at `name` on this host.
    pub fn forged(name: &[u8], access: u32, len: u64) -> Blob {
        Blob {
            audience: 1,
            port: 0,
            access,
            len,
            ticket: Ticket {
                of: MEMORY,
                kind: 0,
                slot: 0,
                generation: 1,
                place: place(),
                instance: [5; 16],
                key: [6; 16],
                payload: Vec::new(),
                name: name.to_vec(),
            },
        }
    }

    pub fn parse(bytes: &[u8]) -> Blob {
        let ticket = Ticket::parse(MEMORY, bytes);
        let said = &ticket.payload;
        Blob {
            audience: said[0],
            port: said[1],
            access: u32::from_le_bytes(array(said, 2)),
            len: u64::from_le_bytes(array(said, 6)),
            ticket,
        }
    }

    /// Returns the description of the memory, which an exporter repeats in its answer.
    fn said(&self) -> Vec<u8> {
        let mut said = vec![self.audience, self.port];
        said.extend(self.access.to_le_bytes());
        said.extend(self.len.to_le_bytes());
        payload(&said)
    }

    pub fn format(&self) -> Vec<u8> {
        let payload = self.said();
        let ticket = self.ticket.clone();
        Ticket { payload, ..ticket }.format()
    }

    /// Returns a request for this export.
    pub fn request(&self, nonce: [u8; 16], stays: u8) -> Vec<u8> {
        self.request_of([8; 16], nonce, stays, &payload(&[]))
    }

    /// Returns the answer that grants a request. If `more` is not 0, it contains more than it
    /// should.
    pub fn grant(&self, request: &[u8], more: u64) -> Vec<u8> {
        let mut said = self.said();
        said[24..32].copy_from_slice(&more.to_le_bytes());
        self.grant_of(request, &said)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

/// Returns the status of an answer, and its errno.
pub fn status(answer: &[u8]) -> (u8, i32) {
    assert_eq!(answer.len(), ANSWER_LEN);
    (answer[10], i32::from_le_bytes(array(answer, 12)))
}

/// Returns the location of this process in the form that blobs have.
fn place() -> [u8; 32] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16).unwrap().to_be_bytes();
    let net = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
    let net = [net.dev().to_le_bytes(), net.ino().to_le_bytes()].concat();
    [&boot[..], &net].concat().try_into().unwrap()
}

/// Returns a socket name that is not in use.
pub fn name() -> Vec<u8> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("tokio-doca-hostile-{}-{number}", std::process::id()).into()
}

/// Makes a socket whose calls wait no longer than the limit.
fn patient(kind: SockType) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let limit = TimeVal::seconds(LIMIT.as_secs() as i64);
    setsockopt(&socket, sockopt::SendTimeout, &limit).unwrap();
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit).unwrap();
    socket
}

pub fn connect(name: &[u8]) -> OwnedFd {
    try_connect(name).unwrap()
}

pub fn try_connect(name: &[u8]) -> nix::Result<OwnedFd> {
    let socket = patient(SockType::SeqPacket);
    connect_to(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    Ok(socket)
}

pub fn listen(name: &[u8]) -> OwnedFd {
    listen_with(name, SockType::SeqPacket, 100)
}

pub fn listen_with(name: &[u8], kind: SockType, backlog: i32) -> OwnedFd {
    let socket = patient(kind);
    let address = UnixAddr::new_abstract(name).unwrap();
    bind(socket.as_raw_fd(), &address).unwrap();
    listen_at(&socket, Backlog::new(backlog).unwrap()).unwrap();
    socket
}

pub fn accept(listener: &OwnedFd) -> OwnedFd {
    let socket = nix::sys::socket::accept(listener.as_raw_fd()).unwrap();
    own(socket)
}

/// Sends one message with descriptors.
pub fn send(to: &OwnedFd, message: &[u8], with: &[RawFd]) -> nix::Result<()> {
    let rights = [ControlMessage::ScmRights(with)];
    let control = if with.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(message)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(to.as_raw_fd(), &parts, control, flags, None).map(drop)
}

/// Receives one message with its descriptors; no bytes if the peer has hung up.
pub fn receive(from: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = vec![0; 1000];
    let mut room = nix::cmsg_space!([RawFd; 16]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(&mut room), flags);
    let message = match message {
        Err(nix::Error::ECONNRESET) => return (Vec::new(), Vec::new()),
        message => message.unwrap(),
    };
    let mut descriptors = Vec::new();
    for one in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(raw) = one {
            descriptors.extend(raw.into_iter().map(own));
        }
    }
    let len = message.bytes;
    bytes.truncate(len);
    (bytes, descriptors)
}

#[expect(unsafe_code, reason = "descriptors come as numbers")]
fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel opened this descriptor in the call before, so nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Requests an export as an importer does, and returns the answer.
pub fn ask(blob: &Blob) -> (Vec<u8>, Vec<OwnedFd>) {
    let socket = connect(&blob.name);
    send(&socket, &blob.request([7; 16], 0), &[]).unwrap();
    receive(&socket)
}

/// Forks a child that keeps all descriptors open until it is killed, at the latest by its alarm.
/// Returns its process id.
#[expect(unsafe_code, reason = "forks")]
pub fn fork_and_linger() -> i32 {
    // SAFETY: the child only makes calls that are safe after fork(2).
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: takes no pointers.
            unsafe { libc::alarm(4 * LIMIT.as_secs() as u32) };
            loop {
                // SAFETY: takes no pointers.
                unsafe { libc::pause() };
            }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

/// Kills this process.
pub fn die() -> ! {
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
    unreachable!("dead")
}
