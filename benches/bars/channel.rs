//! S5: the round trip of a Channel over that of a bare Tokio Unix socket: on one thread, and
//! between two threads on two CPUs, which costs as much as between two processes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use support::counting;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Device,
    channel::{Channel, Service},
    device::Representor,
};

use super::measure::{interleave, per_op};
use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::sys;

const LEN: usize = 64;
const TRIPS: u64 = 2_000;
const ROUNDS: usize = 25;

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// A service for Channels on the DPU's side, and the host's function from which clients connect.
struct Card {
    service: Service,
    name: String,
    pf0: Device,
}

impl Card {
    fn new() -> Card {
        let p0 = Soft::builder().view(View::Dpu).build().open("p0");
        let hpf0 = Representor::open(&p0.expect("a port"), "hpf0").expect("a representor");
        let name = format!("bars {}", std::process::id());
        Card {
            service: Channel::builder().listen(&hpf0, &name).expect("a service"),
            name,
            pf0: Soft::builder().build().open("pf0").expect("a function"),
        }
    }

    async fn pair(&self) -> (Channel, Channel) {
        let client = Channel::builder().connect(&self.pf0, &self.name);
        let (client, server) = tokio::join!(client, self.service.accept());
        (client.expect("a client"), server.expect("a peer"))
    }
}

async fn ask(client: &Channel, trips: u64) {
    for _ in 0..trips {
        client.send(&[1; LEN]).await.expect("a send");
        client.recv().await.expect("an answer");
    }
}

async fn answer(server: &Channel, trips: u64) {
    for _ in 0..trips {
        let message = server.recv().await.expect("a question");
        server.send(&message).await.expect("a send");
    }
}

async fn ask_bare(stream: &mut UnixStream, trips: u64) {
    for _ in 0..trips {
        stream.write_all(&[1; LEN]).await.expect("a write");
        stream.read_exact(&mut [0; LEN]).await.expect("a read");
    }
}

async fn answer_bare(stream: &mut UnixStream, trips: u64) {
    for _ in 0..trips {
        let mut message = [0; LEN];
        stream.read_exact(&mut message).await.expect("a read");
        stream.write_all(&message).await.expect("a write");
    }
}

/// The answering side, on a thread of its own. Each order names the transport and the number of
/// round trips.
struct Answers {
    trips: Sender<(bool, u64)>,
    ready: Receiver<()>,
}

impl Answers {
    fn start(service: Service, socket: std::os::unix::net::UnixStream) -> Answers {
        let (trips, orders) = channel();
        let (say, ready) = channel();
        std::thread::spawn(move || {
            sys::pin(Some(1));
            runtime().block_on(async {
                let mut stream = UnixStream::from_std(socket).expect("a socket");
                let server = service.accept().await.expect("a peer");
                for (bare, trips) in orders {
                    say.send(()).expect("somebody asks");
                    match bare {
                        true => answer_bare(&mut stream, trips).await,
                        false => answer(&server, trips).await,
                    }
                }
            });
        });
        Answers { trips, ready }
    }

    fn begin(&self, bare: bool) {
        self.trips.send((bare, TRIPS)).expect("it lives");
        self.ready.recv().expect("it begins");
    }
}

pub(crate) fn s5(report: &mut Report) {
    one_thread(report);
    two_threads(report);
}

fn one_thread(report: &mut Report) {
    sys::pin(Some(0));
    let runtime = runtime();
    // A service needs a runtime to listen.
    let (client, server, mut bare) = runtime.block_on(async {
        let (client, server) = Card::new().pair().await;
        (client, server, UnixStream::pair().expect("two sockets"))
    });
    let server_bytes = || server.stats().received_bytes;
    let mut allocations = 0;
    let [ours, theirs] = interleave(
        ROUNDS,
        [
            &mut || {
                let (start, before) = (Instant::now(), counting::everywhere());
                runtime.block_on(async {
                    tokio::join!(ask(&client, TRIPS), answer(&server, TRIPS));
                });
                let took = per_op(start, TRIPS);
                allocations = counting::everywhere() - before;
                took
            },
            &mut || {
                let start = Instant::now();
                runtime.block_on(async {
                    let (one, other) = (&mut bare.0, &mut bare.1);
                    tokio::join!(ask_bare(one, TRIPS), answer_bare(other, TRIPS));
                });
                per_op(start, TRIPS)
            },
        ],
    );
    sys::pin(None);
    assert_eq!(
        server_bytes(),
        (ROUNDS as u64 + 1) * TRIPS * LEN as u64,
        "every trip went over it"
    );
    let (ours, theirs) = (ours.min(), theirs.min());
    let what = format!(
        "Channel round trip of {LEN} bytes over a bare Tokio Unix socket's, one thread ({ours:.0} ns against {theirs:.0})"
    );
    report.line("S5", ours / theirs, AtMost(1.3), "x", &what);
    let per_trip = allocations as f64 / TRIPS as f64;
    let what = "allocations per round trip: the two messages that were received";
    report.line("S5.alloc", per_trip.round(), Exactly(2.0), "", what);
}

fn two_threads(report: &mut Report) {
    let note = sys::both_cpus().err().unwrap_or_default();
    sys::pin(Some(0));
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    for socket in [&here, &there] {
        socket.set_nonblocking(true).expect("a socket");
    }
    let runtime = runtime();
    let (client, mut bare, answers) = runtime.block_on(async {
        let Card { service, name, pf0 } = Card::new();
        let answers = Answers::start(service, there);
        let client = Channel::builder().connect(&pf0, &name).await;
        let stream = UnixStream::from_std(here).expect("a socket");
        (client.expect("a client"), stream, answers)
    });
    let [ours, theirs] = interleave(
        ROUNDS,
        [
            &mut || {
                answers.begin(false);
                let start = Instant::now();
                runtime.block_on(ask(&client, TRIPS));
                per_op(start, TRIPS)
            },
            &mut || {
                answers.begin(true);
                let start = Instant::now();
                runtime.block_on(ask_bare(&mut bare, TRIPS));
                per_op(start, TRIPS)
            },
        ],
    );
    sys::pin(None);
    let (ours, theirs) = (ours.min() / 1e3, theirs.min() / 1e3);
    let what =
        format!("the same, two threads on two CPUs ({ours:.1} us against {theirs:.1}){note}");
    report.line("S5.two", ours / theirs, AtMost(1.3), "x", &what);
}
