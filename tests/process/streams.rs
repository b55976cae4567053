//! Streams with random behavior: pieces of random sizes, writes that are dropped, halves that end
//! early, streams that are given up, and a process that is killed in the middle.
//!
//! `TOKIO_DOCA_STREAMS_SECONDS` sets the duration (default: 1 s); `TOKIO_DOCA_STREAMS_SEED` repeats
//! the choices of a run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use futures::future::{join_all, try_join};
use support::device::{defers, under_test};
use support::peer::{Peer, hear, role, say};
use support::random::{Random, setting};
use support::stream::{Net, byte, bytes};
use support::{test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::{RdmaStream, StreamOptions};
use tokio_doca::{Mode, WorkQ};

const TEST: &str = test_name!(streams_are_used_at_random_and_their_process_is_killed);
/// Number of streams of a process at once.
const STREAMS: usize = 8;
/// The latest moment of a kill, in microseconds.
const LATEST: u64 = 200_000;

fn options() -> StreamOptions {
    let options = StreamOptions::new().connections(4 * STREAMS).timeout(LIMIT);
    let options = options.frame_size(256).recv_window(3).send_window(2);
    options.linger(Duration::from_millis(50))
}

/// Returns a WorkQ for both sides, with fewer slots than frames.
fn workq(random: &mut Random) -> WorkQ {
    let modes = [Mode::EventDriven, Mode::BusyPoll];
    let mode = modes[random.below(8) as usize / 7];
    WorkQ::builder().depth(2).mode(mode).build().unwrap()
}

/// Writes and reads random pieces: the echo must equal the data, as far as each side continues.
async fn talk(stream: RdmaStream, mut random: Random) -> io::Result<()> {
    let len = random.below(20_000) as usize;
    let gives_up = random.below(4) == 0;
    let mut other = Random(random.below(u64::MAX));
    let (mut reads, mut writes) = tokio::io::split(stream);
    let write = async {
        let mut at = 0;
        while at < len {
            let data = bytes(at..len.min(at + 1 + random.below(900) as usize));
            match random.below(4) {
                0 => match writes.write(&data).now_or_never() {
                    Some(written) => at += written?,
                    None => tokio::task::yield_now().await,
                },
                _ => at += writes.write(&data).await?,
            }
        }
        writes.shutdown().await
    };
    let read = async {
        let mut at = 0;
        loop {
            let mut room = vec![0; 1 + other.below(900) as usize];
            let came = reads.read(&mut room).await?;
            assert!((at..).zip(&room[..came]).all(|(at, &it)| byte(at) == it));
            at += came;
            if came == 0 {
                assert_eq!(at, len);
                return Ok(());
            }
            if gives_up && at > len / 2 {
                return Err(io::ErrorKind::Other.into());
            }
        }
    };
    match try_join(write, read).await {
        Err(error) if gives_up && error.kind() == io::ErrorKind::Other => Ok(()),
        ended => ended.map(drop),
    }
}

/// The process that is killed: uses streams until then.
fn caller() {
    let mut random = Random(hear().unwrap().parse().unwrap());
    let addr: SocketAddr = hear().unwrap().parse().unwrap();
    let defer = defers()[random.below(defers().len() as u64) as usize];
    let (device, workq) = (under_test(defer), workq(&mut random));
    run(async {
        let connector = options().connector(&device, &workq).unwrap();
        say("begun");
        loop {
            let talks = (0..STREAMS).map(|_| {
                let random = Random(random.below(u64::MAX));
                let connector = &connector;
                async move { talk(connector.connect(addr).await?, random).await }
            });
            let talks: Vec<_> = talks.collect();
            let ended = in_time("the streams", join_all(talks)).await;
            if let Some(error) = ended.into_iter().find_map(Result::err) {
                say(&format!("{error:?}"));
                break;
            }
            say("round");
        }
    });
}

/// Echoes until a stream or its process ends.
async fn serve(net: Arc<Net>) {
    loop {
        let incoming = net.listener.accept().await.unwrap();
        tokio::spawn(async move {
            let Ok(stream) = incoming.accept(b"").await else {
                return;
            };
            let (mut reads, mut writes) = tokio::io::split(stream);
            if tokio::io::copy(&mut reads, &mut writes).await.is_ok() {
                _ = writes.shutdown().await;
            }
        });
    }
}

#[test]
fn streams_are_used_at_random_and_their_process_is_killed() {
    if role().is_some() {
        return caller();
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = setting("TOKIO_DOCA_STREAMS_SEED").unwrap_or(now.unwrap().as_nanos() as u64);
    let seconds = setting("TOKIO_DOCA_STREAMS_SECONDS").unwrap_or(1);
    println!("TOKIO_DOCA_STREAMS_SEED={seed}");
    let mut random = Random(seed);
    let runtime = workers();
    let net = runtime.block_on(Net::deep(
        2,
        &under_test(false),
        Mode::EventDriven,
        options(),
    ));
    let net = Arc::new(net);
    let serving = runtime.spawn(serve(Arc::clone(&net)));
    let (start, mut rounds, mut kills) = (Instant::now(), 0, 0);
    while kills == 0 || start.elapsed() < Duration::from_secs(seconds) {
        let mut peer = Peer::start(TEST, "caller");
        peer.say(&random.below(u64::MAX).to_string());
        peer.say(&net.addr.to_string());
        assert_eq!(peer.hear(), "begun");
        for _ in 0..random.below(4) {
            assert_eq!(peer.hear(), "round", "after {kills} kills");
            rounds += 1;
        }
        std::thread::sleep(Duration::from_micros(random.below(LATEST)));
        peer.kill();
        kills += 1;
    }
    println!("{rounds} rounds of {STREAMS} streams, {kills} kills");
    // All memory has been returned: the maximum number of streams can connect.
    serving.abort();
    runtime.block_on(async {
        let mut pairs = Vec::new();
        for _ in 0..4 * STREAMS {
            pairs.push(net.pair_once_there_is_memory().await);
        }
    });
}
