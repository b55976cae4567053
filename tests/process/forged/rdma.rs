//! A hostile endpoint: the bytes of its blob and its messages, and all it can write to a channel
//! and to a link's page, written again from the documentation.

use std::os::fd::{AsRawFd, OwnedFd};

use super::*;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::{pread, pwrite};
use nix::unistd::ftruncate;

pub const PAGE: usize = 4096;
/// The number of receives of a hostile endpoint.
pub const RECEIVES: u32 = 4;
/// The status of an answer that grants a request.
pub const WELCOME: u8 = 0;
const STREAM: usize = 512 << 10;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Returns an endpoint's description of itself: the number of its queue, its receives, and its
/// permissions (none).
fn card(queue: u64, receives: u32) -> Vec<u8> {
    let rest = [receives.to_le_bytes(), [0; 4]].concat();
    [&queue.to_le_bytes()[..], &rest].concat()
}

/// An endpoint as its export describes it.
#[derive(Clone)]
pub struct Endpoint(pub Ticket);

impl Deref for Endpoint {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.0
    }
}

impl DerefMut for Endpoint {
    fn deref_mut(&mut self) -> &mut Ticket {
        &mut self.0
    }
}

impl Endpoint {
    pub fn parse(bytes: &[u8]) -> Endpoint {
        Endpoint(Ticket::parse(ENDPOINT, bytes))
    }

    /// Makes a hostile endpoint in a queue of this number. The side with the smaller instance is
    /// the host.
    pub fn hostile(is_host: bool, queue: u64) -> Endpoint {
        Endpoint(Ticket {
            of: ENDPOINT,
            kind: 0,
            slot: 1,
            generation: 1,
            place: place(),
            instance: [if is_host { 0 } else { 0xff }; 16],
            key: [6; 16],
            payload: payload(&card(queue, RECEIVES)),
            name: name(),
        })
    }

    /// Returns the number of receives.
    fn receives(&self) -> u32 {
        word(&self.payload, 8) as u32
    }

    /// Returns the payload of a visit's request, which names a link that the guest has already.
    pub fn question(&self, receives: u32, link: u64) -> Vec<u8> {
        let mut question = card(word(&self.payload, 0), receives);
        question.extend(self.slot.to_le_bytes());
        question.extend(self.generation.to_le_bytes());
        question.extend(&hmac(&self.key, &[b"tokio-doca endpoint"])[..16]);
        question.extend(link.to_le_bytes());
        payload(&question)
    }

    /// Sends a request to a host, without reading the answer.
    pub fn knock(&self, host: &Endpoint, question: &[u8]) -> OwnedFd {
        let request = host.request_of(self.instance, [7; 16], 0, question);
        let socket = connect(&host.name);
        send(&socket, &request, &[]).unwrap();
        socket
    }

    /// Visits a host. Returns the status of the answer if the host does not welcome the guest.
    pub fn visit(&self, host: &Endpoint, question: &[u8]) -> Result<Hold, u8> {
        let socket = self.knock(host, question);
        let (answer, memfds) = receive(&socket);
        let (status, _) = status(&answer);
        let Ok([page, channel]) = <[OwnedFd; 2]>::try_from(memfds) else {
            return Err(status);
        };
        assert_eq!(status, WELCOME);
        Ok(Hold {
            page,
            channel,
            bell: Some(socket),
            shape: [host.receives(), RECEIVES],
            own: 1,
            index: word(&answer[32..], 8) as u32,
        })
    }

    /// Accepts a guest's connection, and reads its request.
    pub fn knocked(&self, listener: &OwnedFd) -> Knocked {
        let socket = accept(listener);
        let (said, _) = receive(&socket);
        assert_eq!(said.len(), REQUEST_LEN);
        let receives = word(&said, 60) as u32;
        Knocked {
            socket,
            said,
            receives,
        }
    }

    /// Returns the greeting with this link number and channel number.
    pub fn greeting(&self, knocked: &Knocked, link: u64, index: u64) -> Vec<u8> {
        self.greeting_of(knocked, &[link, index])
    }

    /// Returns an answer with these words.
    pub fn greeting_of(&self, knocked: &Knocked, words: &[u64]) -> Vec<u8> {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.grant_of(&knocked.said, &payload(&words))
    }

    /// Refuses a guest.
    pub fn refuse(&self, knocked: &Knocked, status: u8) {
        send(&knocked.socket, &refusal(status), &[]).unwrap();
    }

    /// Welcomes a guest correctly.
    pub fn welcome(&self, knocked: Knocked, link: u64, index: u32) -> Hold {
        let shape = [RECEIVES, knocked.receives];
        let (page, channel) = (memfd(PAGE, SEALS), memfd(channel_len(shape), SEALS));
        let raw = [page.as_raw_fd(), channel.as_raw_fd()];
        let greeting = self.greeting(&knocked, link, index.into());
        send(&knocked.socket, &greeting, &raw).unwrap();
        Hold {
            page,
            channel,
            bell: Some(knocked.socket),
            shape,
            own: 0,
            index,
        }
    }
}

/// A guest that waits for its greeting.
pub struct Knocked {
    pub socket: OwnedFd,
    said: Vec<u8>,
    pub receives: u32,
}

pub const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

pub fn memfd(len: usize, seals: SealFlag) -> OwnedFd {
    let memfd = memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&memfd, len as i64).unwrap();
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    memfd
}

/// Returns the offset of a side's messages, given its number of receives.
fn messages_at(own: u32) -> usize {
    (384 + 8 * own as usize).next_multiple_of(128)
}

fn block([own, peers]: [u32; 2]) -> usize {
    (messages_at(own) + 128 * peers as usize + STREAM).next_multiple_of(4096)
}

pub fn channel_len([host, guest]: [u32; 2]) -> usize {
    block([host, guest]) + block([guest, host])
}

/// All that a connected endpoint can write. Offsets in a side's block: presence 0, parked 8, wants
/// 16, produced 128, consumed 256, receives 384. Offsets in a side's half of the page: armed 0,
/// summary 128, hints 256.
pub struct Hold {
    pub page: OwnedFd,
    pub channel: OwnedFd,
    pub bell: Option<OwnedFd>,
    shape: [u32; 2],
    /// The index of this side: 0 for the host.
    own: usize,
    pub index: u32,
}

impl Hold {
    /// Returns the offset of a side's block.
    fn base(&self, side: usize) -> usize {
        let [host, guest] = self.shape;
        side * block([host, guest])
    }

    pub fn len(&self) -> usize {
        channel_len(self.shape)
    }

    pub fn own(&self, at: usize) -> usize {
        self.base(self.own) + at
    }

    pub fn peers(&self, at: usize) -> usize {
        self.base(1 - self.own) + at
    }

    pub fn put(&self, at: usize, value: u64) {
        assert_eq!(
            pwrite(&self.channel, &value.to_le_bytes(), at as i64),
            Ok(8)
        );
    }

    pub fn get(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(pread(&self.channel, &mut bytes, at as i64), Ok(8));
        u64::from_le_bytes(bytes)
    }

    /// Writes a word in the half of the page of this side (0) or of the peer (1).
    pub fn put_page(&self, whose: usize, at: usize, value: u64) {
        let half = (self.own + whose) % 2 * (PAGE / 2);
        let written = pwrite(&self.page, &value.to_le_bytes(), (half + at) as i64);
        assert_eq!(written, Ok(8));
    }

    /// Posts a receive, as an honest side does.
    pub fn post(&self, number: u64, room: u32) {
        let turn = number as usize % RECEIVES as usize;
        self.put(
            self.own(384 + 8 * turn),
            (number + 1) << 32 | u64::from(room),
        );
    }

    /// Publishes the head of a message; its fields may be wrong.
    pub fn publish(&self, number: u64, kind: u64, len: u32) {
        let own = self.shape[self.own];
        let peers = self.shape[1 - self.own];
        let entry = messages_at(own) + 128 * (number as usize % peers as usize);
        self.put(self.own(entry + 8), kind << 32);
        self.put(self.own(entry), (number + 1) << 32 | u64::from(len));
    }

    /// Sends a message that fits into the entry of its head, as an honest side does.
    pub fn says(&self, number: u64, message: [u8; 4]) {
        let peers = self.shape[1 - self.own];
        let entry = messages_at(self.shape[self.own]) + 128 * (number as usize % peers as usize);
        self.put(self.own(entry + 16), u32::from_le_bytes(message).into());
        self.publish(number, 0, 4);
    }

    /// Makes the peer poll the channel, and wakes it.
    pub fn hint(&self) {
        let word = self.index as usize / 64;
        self.put_page(1, 256 + 8 * word, 1 << (self.index % 64));
        self.put_page(1, 128, 1 << word);
        self.ring();
    }

    /// Wakes the peer; returns false if the socket is full.
    pub fn ring(&self) -> bool {
        let Some(bell) = &self.bell else { return true };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        nix::sys::socket::send(bell.as_raw_fd(), &[1], flags) != Err(nix::Error::EAGAIN)
    }

    /// Sends messages on the doorbell socket that no honest peer sends: of odd lengths, and with
    /// descriptors.
    pub fn stuff(&self, random: &mut Random) {
        let Some(bell) = &self.bell else { return };
        let bytes = [1; 4000];
        let len = [0, 1, 64, 65, 4000][random.below(5) as usize];
        let raw = [self.page.as_raw_fd(), self.channel.as_raw_fd()];
        let with = [ControlMessage::ScmRights(&raw)];
        let with = &with[..random.below(2) as usize];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let parts = [IoSlice::new(&bytes[..len])];
        // The socket may be full.
        let _ = sendmsg::<()>(bell.as_raw_fd(), &parts, with, flags, None);
    }

    /// Returns the offset of a random word that either side depends on.
    fn word_that_matters(&self, random: u64) -> usize {
        let side = random as usize % 2;
        let [own, peers] = [self.shape[side] as usize, self.shape[1 - side] as usize];
        let which = (random >> 8) as usize % 12;
        let turn = (random >> 16) as usize;
        let at = match which {
            // Chosen rarely, because it ends the connection in the usual way.
            0 if random >> 56 == 0 => 0,
            0 | 1 => 8,
            2 => 16,
            3..5 => 128,
            5..7 => 256,
            7..9 => 384 + 8 * (turn % own),
            9 | 10 => messages_at(own as u32) + 128 * (turn % peers),
            _ => messages_at(own as u32) + 128 * (turn % peers) + 8,
        };
        self.base(side) + at
    }

    /// Writes a random value at a random place: mostly a plausible value to a word that matters.
    pub fn scribble(&self, random: &mut Random) {
        let at = match random.below(8) {
            0 => random.below(self.len() as u64 / 8) as usize * 8,
            1 => {
                let at = random.below(PAGE as u64 / 8) as i64 * 8;
                let value = random.word().to_le_bytes();
                assert_eq!(pwrite(&self.page, &value, at), Ok(8));
                return;
            }
            2 => return self.hint(),
            _ => self.word_that_matters(random.word()),
        };
        let lens = [
            0,
            1,
            111,
            112,
            113,
            4096,
            1 << 16,
            1 << 19,
            1 << 31,
            u32::MAX,
        ];
        let len = u64::from(lens[random.below(10) as usize]);
        let value = match random.below(7) {
            0 => random.word(),
            1 => random.below(5),
            2 => self.get(at).wrapping_add(random.below(3)).wrapping_sub(1),
            3 => self.get(at) ^ 1 << random.below(64),
            4 => self.get(at).wrapping_add(len),
            _ => (1 + random.below(12)) << 32 | len,
        };
        self.put(at, value);
    }
}

/// A random number generator (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        // The low bits are less random.
        (self.word() >> 16) % end
    }
}
