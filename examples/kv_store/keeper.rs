//! Keeps the memory while servers come and go.
//!
//! What was put is lost once neither the keeper nor a server lives.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use tokio::net::TcpSocket;

use super::Result;

/// The pause before a server is started anew; longer if it did not live longer.
const PAUSE: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(100);
/// How a program ends that has panicked.
const PANICKED: i32 = 101;

/// Starts the server, whose standard input is the memory, and starts it anew when it was killed.
pub(crate) fn keep(address: &str, memory: usize, flags: &[String]) -> Result<ExitCode> {
    let memfd = memfd_create(
        c"kv_store",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    ftruncate(&memfd, memory.try_into()?)?;
    // The port is kept while no server listens there.
    let address: SocketAddr = address.parse()?;
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let address = socket.local_addr()?.to_string();
    let mut pause = PAUSE;
    loop {
        let started = Instant::now();
        let status = Command::new(std::env::current_exe()?)
            .args(["server", &address])
            .args(flags)
            .stdin(Stdio::from(memfd.try_clone()?))
            .spawn()?
            .wait()?;
        match status.code() {
            None | Some(PANICKED) => {}
            Some(code) => return Ok(ExitCode::from(code as u8)),
        }
        let _ = writeln!(io::stderr(), "kv_store: the server died ({status})");
        pause = match started.elapsed() > LONG {
            true => PAUSE,
            false => (2 * pause).min(LONG),
        };
        sleep(pause);
    }
}
