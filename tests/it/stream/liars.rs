//! Peers that give credits for receives that they do not post: what they hold, and for how long.

use std::pin::pin;
use std::time::Duration;

use futures::future::join;
use futures::{FutureExt, poll};
use support::device::{defers, needs_soft, under_test};
use support::stream::{Net, bytes, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::error::{JobError, Reason};
use tokio_doca::mem::BufInventory;
use tokio_doca::stream::RdmaStream;
use tokio_doca::{Dma, Mmap, Mode};

use super::exchange::Raw;

/// Of its Slots streams have eight, and each of them four.
const DEPTH: u32 = 16;
const LIARS: usize = 4;

/// Writes until the stream would wait.
fn fill(stream: &mut RdmaStream) {
    while let Some(written) = stream.write(&[7; 200]).now_or_never() {
        written.unwrap();
    }
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
    let device = under_test(defer);
    let options = small().connections(LIARS + 1).send_window(64);
    let net = Net::deep(DEPTH, &device, mode, options).await;
    let (mut here, mut there) = net.pair().await;
    let mut liars = Vec::new();
    for _ in 0..LIARS {
        liars.push(Raw::meet(&net, 255).await);
    }
    let workq = there.rdma().workq();
    for (_, stream) in &mut liars {
        assert_eq!(stream.rdma().rnr_timeout(), Duration::from_millis(100));
        fill(stream);
    }
    assert_eq!(workq.in_flight(), DEPTH as usize / 2, "{mode:?}");
    // There is a Slot for everybody else.
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
    assert_eq!(workq.stats().waiting, LIARS as u64 - 2, "{mode:?}");
    if copied.is_pending() {
        in_time("a copy", copy).await.unwrap();
    }
    // Their writes wait in turn, and fail.
    for (_, stream) in &mut liars {
        assert_eq!(end(stream).await, Reason::NoReceive);
    }
    // An honest stream goes on.
    let sent = bytes(0..1000);
    let mut came = vec![0; 1000];
    let both = join(there.write_all(&sent), here.read_exact(&mut came));
    let (wrote, read) = in_time("honest data", both).await;
    wrote.and(read.map(drop)).unwrap();
    assert_eq!(came, sent);
    until("their Slots are free", || workq.in_flight() == 0).await;
}
