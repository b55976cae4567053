//! Split streams between threads: small writes, flushes and reads in random order, whose futures
//! are sometimes dropped. Each byte arrives in its place, and no task waits for ever.

use std::pin::pin;
use std::task::Poll;

use support::device::{adapter, under_test};
use support::stream::{Net, byte, bytes, shares, small};
use support::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_doca::Mode;
use tokio_doca::stream::StreamOptions;

/// A random number generator with the same numbers in each run (Knuth's MMIX).
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> usize {
        let Dice(state) = self;
        *state = state.wrapping_mul(6_364_136_223_846_793_005);
        *state = state.wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) % end) as usize
    }
}

/// Awaits a future, or polls it one to three times and drops it.
async fn maybe<F: Future>(dice: &mut Dice, future: F) -> Option<F::Output> {
    let (mut future, polls) = (pin!(future), dice.below(4));
    if polls == 0 {
        return Some(future.await);
    }
    for _ in 0..polls {
        let once = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
        match once.await {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
    None
}

async fn write(mut to: impl AsyncWrite + Unpin, len: usize, mut dice: Dice) {
    let mut at = 0;
    while at < len {
        let most = if dice.below(7) == 0 { 600 } else { 60 };
        let end = len.min(at + 1 + dice.below(most));
        match dice.below(8) {
            0 => _ = maybe(&mut dice, to.flush()).await.map(Result::unwrap),
            1 => tokio::task::yield_now().await,
            _ => {
                let data = bytes(at..end);
                let written = maybe(&mut dice, to.write(&data)).await;
                at += written.map_or(0, Result::unwrap);
            }
        }
    }
    to.shutdown().await.unwrap();
}

async fn read(mut from: impl AsyncRead + Unpin, len: usize, mut dice: Dice) {
    let (mut at, mut room) = (0, [0; 400]);
    loop {
        let most = 1 + dice.below(300);
        let read = maybe(&mut dice, from.read(&mut room[..most])).await;
        match read.map(Result::unwrap) {
            Some(0) => break assert_eq!(at, len),
            Some(came) => {
                let right = room[..came]
                    .iter()
                    .zip(at..)
                    .all(|(it, at)| *it == byte(at));
                assert!(right, "of the {came} bytes at {at}");
                at += came;
            }
            None => {}
        }
    }
}

/// Runs two pairs, each half in its own task.
async fn storm(net: Net, len: usize, mut dice: Dice) {
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let (here, there) = net.pair().await;
        for stream in [here, there] {
            let (reads, writes) = tokio::io::split(stream);
            let mut roll = || Dice(dice.below(1 << 30) as u64);
            let (one, other) = (roll(), roll());
            tasks.push(tokio::spawn(write(writes, len, one)));
            tasks.push(tokio::spawn(read(reads, len, other)));
        }
    }
    for task in tasks {
        in_time("a half", task).await.unwrap();
    }
}

#[test]
fn each_byte_of_a_storm_arrives() {
    let (seeds, len) = match adapter() {
        Some(_) => (2, 1 << 12),
        None => (60, 30_000),
    };
    for seed in 1..=seeds {
        let mut dice = Dice(seed);
        let mut pick = |of: [usize; 4]| of[dice.below(4)];
        let options: StreamOptions = small()
            .recv_window(pick([1, 2, 2, 5]))
            .send_window(pick([1, 2, 3, 4]));
        let (depth, bufs) = (pick([2, 8, 8, 64]) as u32, pick([0, 0, 0, 3]));
        let mode = [Mode::EventDriven, Mode::EventDriven, Mode::BusyPoll][dice.below(3)];
        let device = under_test(dice.below(3) == 1);
        let options = match bufs {
            1.. if shares(&device) => options.recv_bufs(bufs),
            _ => options,
        };
        eprintln!("{seed}: {mode:?}, a depth of {depth}, {options:?}");
        let story = async move {
            let net = Net::deep(depth, &device, mode, options).await;
            storm(net, len, dice).await;
        };
        workers().block_on(async { tokio::spawn(story).await.unwrap() });
    }
}
