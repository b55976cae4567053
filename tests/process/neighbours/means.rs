//! The tools of a hostile neighbor: being another user, and sending descriptors whose closing takes
//! time.

use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use support::peer::{again, role};
use support::*;

use crate::refused::refuse;

/// How long closing a bomb takes: twice as long as anything else may take here.
pub(crate) const LINGER: Duration = LIMIT.saturating_mul(2);

/// Runs `story` as this kernel permits, and again as on a kernel before Linux 6.16, each time in
/// its own process.
pub(crate) fn both_ways(test: &str, story: impl FnOnce()) {
    if let Some(way) = role() {
        if way == "taken" {
            // Plays a kernel that does not know SO_PASSRIGHTS.
            refuse(libc::SYS_setsockopt, (2, 83), libc::ENOPROTOOPT);
        }
        return story();
    }
    for way in ["refused", "taken"] {
        if way == "taken" && programs::is_emulated("filter system calls") {
            continue;
        }
        let output = again(test, way).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way}: {}\n{text}", output.status);
        eprintln!("{way}: {text}");
    }
}

/// Gives the calling thread another user, if root runs the test; other threads keep theirs.
#[expect(unsafe_code, reason = "glibc would change all threads")]
pub(crate) fn become_a_stranger(uid: u32) {
    if nix::unistd::geteuid().is_root() {
        // SAFETY: takes no pointers.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(done, 0);
    }
}

/// Returns whether the other end has hung up.
pub(crate) fn is_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
}

/// A TCP socket with unsent data: closing its last descriptor takes as long as it lingers.
pub(crate) struct Bomb {
    socket: Option<OwnedFd>,
    /// The other end, which reads nothing. Once it is closed, closing the first end no longer
    /// waits.
    _there: (TcpListener, TcpStream),
}

#[expect(unsafe_code, reason = "nix has no SO_LINGER with a time")]
fn linger(socket: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: LINGER.as_secs() as i32,
    };
    let (at, len) = (&raw const linger, size_of::<libc::linger>());
    let (fd, option) = (socket.as_raw_fd(), libc::SO_LINGER);
    // SAFETY: a pointer to a value of this option, with its length.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at.cast(), len as u32) };
    assert_eq!(set, 0);
}

impl Bomb {
    pub(crate) fn new() -> Bomb {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        setsockopt(&socket, sockopt::SndBuf, &(256 << 10)).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Writes until the buffers of both ends are full, so that unsent data is left.
        let mut full = 0;
        while full < 20 {
            match nix::unistd::write(&socket, &[0; 1 << 16]) {
                Ok(_) => full = 0,
                Err(_) => {
                    full += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        linger(&socket);
        Bomb {
            socket: Some(socket.into()),
            _there: (listener, there),
        }
    }

    /// Takes the socket itself. If its descriptor is the last one, closing it takes until this bomb
    /// is dropped.
    pub(crate) fn take(&mut self) -> OwnedFd {
        self.socket.take().unwrap()
    }

    /// Sends the descriptor, and keeps no copy. Returns false if the receiver refuses descriptors.
    pub(crate) fn throw(&mut self, to: impl AsFd, message: &[u8]) -> bool {
        let raw = [self.socket.as_ref().unwrap().as_raw_fd()];
        let with = [ControlMessage::ScmRights(&raw)];
        let (parts, flags) = ([IoSlice::new(message)], MsgFlags::MSG_NOSIGNAL);
        match sendmsg::<()>(to.as_fd().as_raw_fd(), &parts, &with, flags, None) {
            Ok(_) => {
                self.socket = None;
                true
            }
            Err(errno) => {
                assert_eq!(errno, nix::Error::EPERM);
                false
            }
        }
    }
}

impl Drop for Bomb {
    /// Closes the other end first.
    fn drop(&mut self) {
        let _ =
            nix::sys::socket::shutdown(self._there.1.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(socket) = self.socket.take() {
            let off = libc::linger {
                l_onoff: 0,
                l_linger: 0,
            };
            setsockopt(&socket, sockopt::Linger, &off).unwrap();
        }
    }
}

/// An honest connection on the same runtime. Records the longest time between two of its messages,
/// in microseconds.
pub(crate) struct Bystander(Arc<AtomicU64>, tokio::task::JoinHandle<()>);

impl Bystander {
    pub(crate) async fn start() -> Bystander {
        let longest = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn({
            let longest = Arc::clone(&longest);
            let (client, server) = channel::pair().await;
            async move {
                let mut last = Instant::now();
                loop {
                    client.send(b"honest").await.unwrap();
                    assert_eq!(server.recv().await.unwrap(), "honest");
                    let gap = last.elapsed().as_micros() as u64;
                    last = Instant::now();
                    longest.fetch_max(gap, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        let bystander = Bystander(longest, task);
        // Waits, to measure the gaps without an attack.
        tokio::time::sleep(Duration::from_millis(50)).await;
        bystander
    }

    /// Checks that the connection was served: its longest gap is much shorter than a bomb takes.
    pub(crate) async fn went_on(self, quiet: Duration) {
        // Counts a gap that has not ended yet as well.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let gap = self.longest();
        eprintln!("longest gap: {quiet:?} before, {gap:?} under attack");
        assert!(gap < quiet + LINGER / 2, "{gap:?}, and {quiet:?} before");
        assert!(!self.1.is_finished());
        self.1.abort();
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
