//! Peers that give credits for receives that they do not post: what they occupy, and for how long.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures::{FutureExt, poll};
use support::device::{defers, needs_soft, under_test};
use support::stream::{Net, crosses, small};
use support::{in_time, run, until};
use tokio::io::AsyncWriteExt;
use tokio_doca::error::{JobError, Reason};
use tokio_doca::mem::BufInventory;
use tokio_doca::stream::RdmaStream;
use tokio_doca::{Dma, Mmap, Mode};

use super::exchange::Raw;

/// The number of slots, of which streams may use eight, and each stream four; and the number of
/// liars.
const DEPTH: u32 = 16;
const LIARS: usize = 4;

/// How long a liar's stream lasts.
const LIMIT: Duration = Duration::from_millis(100);

/// Writes until the stream would wait, or has ended.
fn fill(stream: &mut RdmaStream) {
    while let Some(Ok(_)) = stream.write(&[7; 200]).now_or_never() {}
}

/// Writes until the stream ends.
async fn end(stream: &mut RdmaStream) -> Reason {
    let write = async {
        loop {
            if let Err(error) = stream.write_all(&[7; 200]).await {
                break error;
            }
        }
    };
    let error = in_time("the end of a liar's stream", write).await;
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    let error: &JobError = source.expect("an error of a job");
    error.cause().unwrap_or(error.reason())
}

#[test]
fn peers_that_post_no_receives_hold_half_of_the_slots_for_a_moment() {
    if needs_soft("an adapter is told of no receives") {
        return;
    }
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        for &defer in defers() {
            run(liars(mode, defer));
        }
    }
}

async fn liars(mode: Mode, defer: bool) {
    // If the machine gives this test no CPU for a while, the liars' streams end before they are
    // examined.
    for _ in 0..100 {
        if is_seen_in_time(mode, defer).await {
            return;
        }
    }
    panic!("no liar was looked at in time");
}

/// Runs the test. Returns true if the liars were examined before the first one could have ended.
async fn is_seen_in_time(mode: Mode, defer: bool) -> bool {
    let device = under_test(defer);
    let options = small().connections(LIARS + 1).send_window(64);
    let net = Net::deep(DEPTH, &device, mode, options).await;
    let (mut here, mut there) = net.pair().await;
    let mut liars = Vec::new();
    for _ in 0..LIARS {
        liars.push(Raw::meet(&net, 255).await);
    }
    let workq = there.rdma().unwrap().workq();
    let begun = Instant::now();
    for (_, stream) in &mut liars {
        assert_eq!(stream.rdma().unwrap().rnr_timeout(), LIMIT);
        fill(stream);
    }
    let in_flight = workq.in_flight();
    // A slot is free for other operations.
    let memory = Mmap::builder().device(&device).alloc(128).unwrap();
    let inventory = BufInventory::with_capacity(2);
    let (src, dst) = (
        inventory.buf(&memory, ..64).unwrap(),
        inventory.buf(&memory, 64..).unwrap(),
    );
    src.extend_from_slice(&[9; 64]).unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let mut copy = pin!(dma.copy(&src, &dst).into_future());
    let copied = poll!(copy.as_mut());
    let waiting = workq.stats().waiting;
    let in_time_for_it = begun.elapsed() < LIMIT / 2;
    if in_time_for_it {
        assert_eq!(in_flight, DEPTH as usize / 2, "{mode:?}");
        assert_eq!(waiting, LIARS as u64 - 2, "{mode:?}");
    }
    if copied.is_pending() {
        in_time("a copy", copy).await.unwrap();
    }
    // An honest stream does not wait for the liars either; it needs no slot while its peer reads.
    crosses(&mut there, &mut here).await;
    // The liars' writes take turns, and fail.
    for (_, stream) in &mut liars {
        assert_eq!(end(stream).await, Reason::NoReceive);
    }
    crosses(&mut there, &mut here).await;
    until("their Slots are free", || workq.in_flight() == 0).await;
    in_time_for_it
}
