//! Keeps the memory while servers end and are restarted.
//!
//! The server ends with the keeper, and then all values are lost.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{ftruncate, getppid};
use tokio::net::TcpSocket;

use super::wire::BOOT;
use super::{Result, file_limit};

/// The first and the longest pause before a server is restarted. Each pause is twice as long as the
/// one before, until a server has lived for `LONG`.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
const LONG: Duration = Duration::from_millis(100);

/// Starts the server with the memory as its standard input. Restarts a server that was killed or
/// has failed, any number of times. Only if the first server fails before it has counted its start,
/// the keeper returns its error: the memory is still empty then.
pub(crate) fn keep(address: &str, memory: usize, flags: &[String]) -> Result<ExitCode> {
    file_limit::allows(memory)?;
    let memfd = memfd_create(
        c"kv_store",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    ftruncate(&memfd, memory.try_into()?)?;
    let memfd = File::from(memfd);
    // The bound socket reserves the port while no server listens on it.
    let address: SocketAddr = address.parse()?;
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let address = socket.local_addr()?.to_string();
    let mut pause = PAUSES[0];
    loop {
        let started = Instant::now();
        let ended = serve(&memfd, &address, flags);
        let mut boot = [0; 8];
        let empty = memfd.read_at(&mut boot, BOOT as u64).is_ok() && boot == [0; 8];
        let why = match ended {
            Ok(status) => match status.code() {
                Some(code) if code == 0 || empty => return Ok(ExitCode::from(code as u8)),
                _ => format!("the server died ({status})"),
            },
            Err(error) if empty => return Err(error),
            Err(error) => format!("no server could be started: {error}"),
        };
        let _ = writeln!(io::stderr(), "kv_store: {why}");
        if started.elapsed() > LONG {
            pause = PAUSES[0];
        }
        sleep(pause);
        pause = PAUSES[1].min(2 * pause);
    }
}

/// Starts a server, and waits until it has ended.
fn serve(memfd: &File, address: &str, flags: &[String]) -> Result<ExitStatus> {
    let mut command = Command::new(std::env::current_exe()?);
    let keeper = std::process::id().to_string();
    command.args(["server", address, &keeper]).args(flags);
    Ok(command.stdin(memfd.try_clone()?).status()?)
}

/// Makes this process, a server, end when its keeper ends for whatever reason.
pub(crate) fn end_with(keeper: i32) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    match getppid().as_raw() == keeper {
        true => Ok(()),
        // The keeper has ended before `set_pdeathsig` took effect.
        false => Err("the keeper has ended".into()),
    }
}
