//! The code that the programs in `src/bin` share. Your own service needs only the adapters of
//! [`tokio_doca_http`]:
//!
//! - [`http`] has a server and a client made with hyper;
//! - [`grpc`] has a codec and a tonic service, in place of the code that `protoc` generates;
//! - [`idle`] ends the stream of a client that is silent for 10 s;
//! - [`tls`] makes certificates for demonstrations.

pub mod grpc;
pub mod http;
pub mod idle;
pub mod tls;

use std::net::SocketAddr;
use std::process::ExitCode;

use tokio_doca::stream::StreamOptions;
use tokio_doca::{Device, WorkQ};
use tokio_doca_http::Listener;

/// The result of a program.
pub type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs a program with its arguments, and returns its exit code.
pub async fn run(program: impl AsyncFnOnce(&[&str]) -> Result) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    end(program(&args).await)
}

/// Returns the exit code, and prints the error of a program that has failed on stderr.
pub fn end(ended: Result) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens the device that the variable `RDMA_DEVICE` names, and makes a WorkQ. Defaults to the first
/// device, which is a software device.
pub fn open() -> Result<(Device, WorkQ)> {
    let device = match std::env::var("RDMA_DEVICE") {
        Ok(name) => Device::open(&name)?,
        Err(_) => Device::open_default()?,
    };
    // Deep enough for the operations of all streams of `options`.
    let workq = WorkQ::builder().depth(1024).build()?;
    Ok((device, workq))
}

/// Binds a listener on the device that [`open`] opens.
pub async fn listen(addr: SocketAddr) -> Result<Listener> {
    let (device, workq) = open()?;
    Ok(options().bind(&device, &workq, addr).await?.into())
}

/// Returns the URI of a server for clients on this machine.
pub fn uri(listener: &Listener) -> String {
    format!("http://{}", listener.local_addr())
}

/// Returns the stream options of the examples, with memory for 128 streams on each side.
pub fn options() -> StreamOptions {
    StreamOptions::new().connections(128)
}
