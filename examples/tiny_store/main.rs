//! A store of blocks that another process replicates: the service that the guide builds.
//!
//! ```text
//! $ cargo run --example tiny_store -- replica 127.0.0.1:7001
//! $ cargo run --example tiny_store -- serve 127.0.0.1:7000 127.0.0.1:7001    (another terminal)
//! $ echo hello | cargo run --example tiny_store -- put 127.0.0.1:7000 5
//! $ cargo run --example tiny_store -- get 127.0.0.1:7000 5
//! hello
//! ```

mod client;
mod mirror;
mod server;
mod store;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_doca::Device;
use tokio_doca::stream::StreamOptions;

use client::Client;
use mirror::Mirror;
use store::{BLOCK, CLIENTS, Result, Store};

const USAGE: &str =
    "tiny_store replica ADDR | serve ADDR [REPLICA] | put ADDR BLOCK | get ADDR BLOCK";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tiny_store: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a future that completes at SIGINT (Ctrl-C) or SIGTERM. From now on, these signals have
/// no other effect.
fn stopped() -> Result<impl Future> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?; // the device's threads have blocked all signals
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || stop.send(signals.wait()));
    Ok(stopped)
}

/// Returns how long a client may send no request: a minute, or the milliseconds in `IDLE_MS`.
fn idle() -> Result<Duration> {
    let millis = std::env::var("IDLE_MS").map_or(Ok(60_000), |millis| millis.parse())?;
    Ok(Duration::from_millis(millis))
}

async fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [verb, addr, rest @ ..] = &args[..] else {
        return Err(USAGE.into());
    };
    let addr: SocketAddr = addr.parse()?;
    let device = match std::env::var("DEVICE") {
        Ok(name) => Device::open(&name)?, // mlx5_0, for example
        Err(_) => Device::open_default()?,
    };
    match (*verb, rest) {
        ("replica", []) => {
            let listener = TcpListener::bind(addr).await?;
            println!("listening on {}", listener.local_addr()?);
            mirror::lend(&device, listener).await
        }
        ("serve", [] | [_]) => {
            let stopped = stopped()?;
            let replica = rest.first().map(|addr| addr.parse()).transpose()?;
            let store = Mirror::new(Store::new(&device)?, replica).await?;
            let options = StreamOptions::new().connections(CLIENTS);
            let listener = options.bind(&device, &store.store.workq, addr).await?;
            println!("listening on {}", listener.local_addr());
            server::serve(listener, store, idle()?, stopped).await
        }
        ("put", [block]) => {
            let mut input = Vec::new();
            std::io::stdin()
                .take(BLOCK as u64 + 1)
                .read_to_end(&mut input)?;
            if input.len() > BLOCK {
                return Err(format!("a block has {BLOCK} bytes, and the input more").into());
            }
            let mut data = [0; BLOCK];
            data[..input.len()].copy_from_slice(&input);
            Client::connect(&device, addr)
                .await?
                .write(block.parse()?, &data)
                .await
        }
        ("get", [block]) => {
            let data = Client::connect(&device, addr)
                .await?
                .read(block.parse()?)
                .await?;
            let end = data
                .iter()
                .rposition(|&byte| byte != 0)
                .map_or(0, |last| last + 1);
            Ok(std::io::stdout().write_all(&data[..end])?)
        }
        _ => Err(USAGE.into()),
    }
}
