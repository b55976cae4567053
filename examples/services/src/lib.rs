//! What the programs in `src/bin` share. [`tokio_doca_http`] has the adapters, and your own service
//! needs nothing else:
//!
//! - [`http`] has a server and a client of hyper's;
//! - [`grpc`] has a codec and a service of tonic's, in place of what `protoc` generates;
//! - [`idle`] takes the stream of a client that says nothing for 10 s;
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

/// What a program ends with.
pub type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs a program with its arguments.
pub async fn run(program: impl AsyncFnOnce(&[&str]) -> Result) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    end(program(&args).await)
}

/// Writes why a program has failed to its standard error.
pub fn end(ended: Result) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens the device that the variable `RDMA_DEVICE` names, and a WorkQ. Defaults to the first
/// device, which is a software device.
pub fn open() -> Result<(Device, WorkQ)> {
    let device = match std::env::var("RDMA_DEVICE") {
        Ok(name) => Device::open(&name)?,
        Err(_) => Device::open_default()?,
    };
    // As deep as what all streams of `options` may have on their way.
    let workq = WorkQ::builder().depth(1024).build()?;
    Ok((device, workq))
}

/// Listens on the device that [`open`] opens.
pub async fn listen(addr: SocketAddr) -> Result<Listener> {
    let (device, workq) = open()?;
    Ok(options().bind(&device, &workq, addr).await?.into())
}

/// Returns the URI of a server, for clients of this machine.
pub fn uri(listener: &Listener) -> String {
    format!("http://{}", listener.local_addr())
}

/// Returns the options of the examples: memory for 128 streams on each side.
pub fn options() -> StreamOptions {
    StreamOptions::new().connections(128)
}
