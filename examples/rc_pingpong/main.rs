//! Sends a message to and fro between two sides, by polling or event-driven (`-e`). Either side may
//! be rdma-core's `ibv_rc_pingpong`: this program uses its exchange and its flags.
//!
//! ```text
//! rc_pingpong -d rxe0 -e                        ibv_rc_pingpong -d rxe0 -g 1 -e HOST
//! ibv_rc_pingpong -d rxe0 -g 1 -e               rc_pingpong -d rxe0 -e HOST
//! ```
mod args;
mod exchange;

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use args::Args;
use exchange::Place;
use futures::future::join;
use futures::stream::StreamExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::unconstrained;
use tokio::time::timeout;
use tokio_doca::verbs::Address;
use tokio_doca::{Buf, BufPool, Device, Mmap, Mode, Rdma, WorkQ, rdma::RecvStream};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const HELP: &str = "\
Sends a message to and fro between two sides, of which either may be rdma-core's ibv_rc_pingpong.

  rc_pingpong [FLAG]...         waits for a client
  rc_pingpong [FLAG]... HOST    is the client of the server at HOST

  -p, --port PORT      of TCP (default: 18515)
  -d, --ib-dev NAME    device (default: the first adapter)
  -i, --ib-port PORT   port of the device: 1, the one that is used
  -s, --size BYTES     of a message (default: 4096)
  -m, --mtu BYTES      path MTU (default: 1024)
  -r, --rx-depth N     receives that are kept posted, each with memory of its own (default: 16)
  -n, --iters N        exchanges (default: 1000)
  -l, --sl N           service level: 0, the one that is used
  -e, --events         sleep until there is an event (default: poll)
  -g, --gid-idx N      index of the local GID (default: the device chooses)
  -c, --chk            the client compares what comes back with what it sent
  -h, --help           this
";

/// The time in which a peer that has connected by TCP must send its address.
const LIMIT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => session(&args).await,
        Ok(None) => stdout().write_all(HELP.as_bytes()).map_err(Into::into),
        Err(error) => Err(format!("{error}: see rc_pingpong -h").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(stderr(), "rc_pingpong: {error}");
            ExitCode::from(1)
        }
    }
}

async fn session(args: &Args) -> Result<()> {
    let device = device(args)?;
    let workq = WorkQ::builder().build()?;
    let rdma = Rdma::builder(&device)
        .recv_queue_size(args.rx_depth)
        .mtu(args.mtu)
        .gid_index(args.gid_index)
        .attach(&workq)?;
    let element = args.size.next_multiple_of(64);
    let elements = args.rx_depth as usize + 2;
    let mmap = Mmap::builder().device(&device).alloc(element * elements)?;
    let pool = BufPool::builder(&mmap).element_size(element).build()?;

    // Receives are posted before connecting, because the peer may send at once.
    let mut messages = rdma.recv_stream(&pool, args.rx_depth as usize);
    let Poll::Pending = futures::poll!(messages.next()) else {
        return Err("no receive can be posted".into());
    };
    connect(args, &rdma).await?;
    if !args.events {
        workq.set_mode(Mode::BusyPoll)?;
    }
    let (start, bytes) = (Instant::now(), 2 * args.size as u64 * args.iters);
    let trips = exchanges(args, &rdma, &pool, &mut messages);
    match args.events {
        true => trips.await?,
        // The future does not yield to the runtime, because this thread does not run the runtime
        // meanwhile.
        false => workq.block_on(unconstrained(trips))?,
    }
    let seconds = start.elapsed().as_secs_f64();
    let megabits = bytes as f64 * 8.0 / 1e6 / seconds;
    let micros = seconds * 1e6 / args.iters as f64;
    writeln!(
        stdout(),
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec\n\
         {} iters in {seconds:.2} seconds = {micros:.2} usec/iter",
        args.iters
    )?;
    Ok(())
}

/// Opens the device that the arguments name. Defaults to the first adapter.
fn device(args: &Args) -> Result<Device> {
    if let Some(name) = &args.device {
        return Ok(Device::open(name)?);
    }
    let all = Device::list()?;
    let adapter = all.iter().find(|info| info.provider() == "verbs");
    let adapter = adapter.ok_or("there is no adapter: the device is named by -d")?;
    Ok(Device::open(adapter.name())?)
}

/// Finds the peer by TCP, and connects to it.
async fn connect(args: &Args, rdma: &Rdma) -> Result<()> {
    let here = Address::of(&rdma.export()?)?;
    let here = Place {
        lid: here.lid,
        qpn: here.qpn,
        psn: here.psn,
        gid: here.gid,
    };
    say("local", &here)?;
    let connect = async |there: Place| -> Result<()> {
        say("remote", &there)?;
        let there = Address {
            lid: there.lid,
            qpn: there.qpn,
            psn: there.psn,
            gid: there.gid,
            mtu: Some(args.mtu),
        };
        Ok(rdma.connect(&there.to_blob()?).await?)
    };
    let late = |_| format!("the peer was not heard of within {LIMIT:?}");
    match &args.host {
        Some(host) => {
            let name = (&host[..], args.port);
            let reached = timeout(LIMIT, TcpStream::connect(name));
            let reached = reached.await.map_err(late)?;
            let mut stream = reached.map_err(|error| format!("{host}:{}: {error}", args.port))?;
            let there = timeout(LIMIT, exchange::call(&mut stream, here));
            connect(there.await.map_err(late)??).await
        }
        None => {
            let (mut stream, _) = listen(args.port).await?.accept().await?;
            let there = timeout(LIMIT, exchange::answer(&mut stream, here, connect));
            there.await.map_err(late)??;
            Ok(())
        }
    }
}

/// Listens on IPv6 and IPv4 where both exist, otherwise on IPv4 only.
async fn listen(port: u16) -> Result<TcpListener> {
    if let Ok(listener) = TcpListener::bind(("::", port)).await {
        return Ok(listener);
    }
    let listener = TcpListener::bind(("0.0.0.0", port)).await;
    Ok(listener.map_err(|error| format!("port {port}: {error}"))?)
}

fn say(which: &str, place: &Place) -> Result<()> {
    let Place { lid, qpn, psn, gid } = *place;
    let gid = std::net::Ipv6Addr::from(gid);
    let place = format!("LID 0x{lid:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
    Ok(writeln!(stdout(), "  {which} address: {place}")?)
}

/// The client sends a message, and the server sends it back. Each side waits for both its send and
/// its receive before the next round.
async fn exchanges(
    args: &Args,
    rdma: &Rdma,
    pool: &BufPool,
    messages: &mut RecvStream,
) -> Result<()> {
    let sent: Vec<u8> = (0..args.size).map(|at| (at % 251) as u8).collect();
    let src = pool.try_alloc()?;
    src.extend_from_slice(&sent)?;
    let mut next = async || -> Result<Buf> {
        let message = messages.next().await.ok_or("the connection is over")?;
        Ok(message?.buf.ok_or("an empty message came")?)
    };
    if args.host.is_some() {
        for _ in 0..args.iters {
            let (done, back) = join(rdma.send(&src), next()).await;
            done?;
            if args.check && back?.data()?[..] != sent {
                return Err("another message came back than was sent".into());
            }
        }
        return Ok(());
    }
    let mut came = next().await?;
    for left in (0..args.iters).rev() {
        if left == 0 {
            rdma.send(&came).await?;
            break;
        }
        let (sent, following) = join(rdma.send(&came), next()).await;
        sent?;
        came = following?;
    }
    Ok(())
}
