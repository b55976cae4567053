//! The laws of `AsyncRead`, `AsyncBufRead` and `AsyncWrite`: the same program, with random pieces
//! and dropped futures, runs on a stream and on Tokio's in-memory pipe.

use std::io::IoSlice;
use std::iter;
use std::pin::pin;
use std::task::Poll;

use futures::future::{join, join3, try_join4};
use futures::{SinkExt, StreamExt};
use proptest::prelude::*;
use support::device::under_test;
use support::stream::{Net, byte, bytes, each, shares, small};
use support::*;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio_doca::Mode;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// A step of a program: the operation, its number of bytes, and whether its future is dropped after
/// one poll.
#[derive(Clone, Debug)]
struct Step {
    what: u8,
    len: usize,
    drops: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![0usize..20, 0usize..700, Just(252usize), Just(253)];
    let step = (0u8..4, len, any::<bool>());
    let step = step.prop_map(|(what, len, drops)| Step { what, len, drops });
    prop::collection::vec(step, 1..60)
}

/// Awaits a future, or polls it once and drops it.
async fn maybe<F: Future>(step: &Step, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    if !step.drops {
        return Some(future.await);
    }
    let once = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
    match once.await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => {
            tokio::task::yield_now().await;
            None
        }
    }
}

/// Executes `steps`, and shuts the stream down. Returns the number of bytes written.
async fn write(to: &mut (impl AsyncWrite + Unpin), steps: &[Step]) -> usize {
    let mut at = 0;
    for step in steps {
        let data = bytes(at..at + step.len);
        let (one, other) = data.split_at(step.len / 3);
        let written = match step.what {
            0 => maybe(step, to.write(&data)).await,
            1 => {
                maybe(
                    step,
                    to.write_vectored(&[IoSlice::new(one), IoSlice::new(other)]),
                )
                .await
            }
            2 => maybe(step, to.flush()).await.map(|done| done.map(|()| 0)),
            _ => {
                to.write_all(&data).await.unwrap();
                Some(Ok(data.len()))
            }
        };
        let written = written.map_or(0, Result::unwrap);
        assert!(written <= step.len);
        assert!(written > 0 || step.len == 0 || step.drops || step.what == 2);
        at += written;
    }
    to.shutdown().await.unwrap();
    assert!(to.write(b"late").await.is_err());
    at
}

/// Repeats the program's reads until the end. Returns the number of bytes read.
async fn read(from: &mut (impl AsyncBufRead + Unpin), steps: &[Step]) -> usize {
    let mut at = 0;
    let check = |at: usize, data: &[u8]| {
        assert!(data.iter().zip(at..).all(|(have, at)| *have == byte(at)));
        data.len()
    };
    for step in steps.iter().cycle() {
        let mut room = vec![0; step.len + 1];
        match step.what {
            0 | 1 => match maybe(step, from.read(&mut room)).await {
                Some(Ok(0)) => break,
                Some(len) => at += check(at, &room[..len.unwrap()]),
                None => {}
            },
            _ => match maybe(step, from.fill_buf()).await.map(Result::unwrap) {
                Some([]) => break,
                Some(data) => {
                    let len = check(at, &data[..data.len().min(step.len)]);
                    from.consume(len);
                    at += len;
                }
                None => {}
            },
        }
        if steps.iter().all(|step| step.what > 1 && step.len == 0) {
            // The program itself would never consume a byte.
            at += from.read(&mut room[..1]).await.unwrap();
        }
    }
    // After the end, reads keep returning the end.
    assert_eq!(from.read(&mut [0; 9]).await.unwrap(), 0);
    assert!(from.fill_buf().await.unwrap().is_empty());
    at
}

/// Runs both directions at once, each of which ends by itself, with a task for each half.
async fn program<A, B>(here: A, there: B, steps: [Vec<Step>; 4])
where
    A: AsyncRead + AsyncWrite + Send + 'static,
    B: AsyncRead + AsyncWrite + Send + 'static,
{
    let [to, from, back_to, back_from] = steps;
    let (here_reads, mut here_writes) = tokio::io::split(here);
    let (there_reads, mut there_writes) = tokio::io::split(there);
    // A half does not implement `AsyncBufRead`.
    let mut here_reads = BufReader::with_capacity(7, here_reads);
    let mut there_reads = BufReader::with_capacity(1000, there_reads);
    let sent = tokio::spawn(async move { write(&mut here_writes, &to).await });
    let came = tokio::spawn(async move { read(&mut there_reads, &from).await });
    let sent_back = tokio::spawn(async move { write(&mut there_writes, &back_to).await });
    let came_back = tokio::spawn(async move { read(&mut here_reads, &back_from).await });
    let all = try_join4(sent, came, sent_back, came_back);
    let (sent, came, sent_back, came_back) = in_time("the program", all).await.unwrap();
    assert_eq!((sent, sent_back), (came, came_back));
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        cases: ProptestConfig::default().cases.min(32),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_stream_is_a_pipe(steps in [steps(), steps(), steps(), steps()]) {
        runtime().block_on(async {
            let pipe = tokio::io::duplex(300);
            program(pipe.0, pipe.1, steps.clone()).await;
            for mode in [Mode::EventDriven, Mode::BusyPoll] {
                for defer in [false, true] {
                    let device = under_test(defer);
                    let pooled = shares(&device).then(|| small().recv_bufs(2));
                    for options in iter::once(small()).chain(pooled) {
                        let net = Net::new(&device, mode, options).await;
                        let (here, there) = net.pair().await;
                        program(here, there, steps.clone()).await;
                    }
                }
            }
        });
    }

    /// The stream itself lends the data, without a `BufReader`.
    #[test]
    fn what_a_stream_lends_is_what_was_written(steps in [steps(), steps()]) {
        runtime().block_on(async {
            let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
            let (mut here, mut there) = net.pair().await;
            let both = join(write(&mut here, &steps[0]), read(&mut there, &steps[1]));
            let (sent, came) = in_time("the program", both).await;
            assert_eq!(sent, came);
        });
    }
}

#[test]
fn codecs_work_on_streams() {
    each(small(), async |net| {
        let (here, there) = net.pair().await;
        let frames = |stream| Framed::new(stream, LengthDelimitedCodec::new());
        let ((mut sink, mut stream), mut there) = (frames(here).split(), frames(there));
        let messages: Vec<_> = (0..60).map(|n| Bytes::from(bytes(n..31 * n))).collect();
        let sends = async {
            for message in &messages {
                sink.feed(message.clone()).await.unwrap();
            }
            sink.close().await.unwrap();
        };
        let answers = async {
            for message in &messages {
                assert_eq!(stream.next().await.unwrap().unwrap(), message);
            }
            assert!(stream.next().await.is_none());
        };
        let echo = async {
            while let Some(message) = there.next().await {
                there.send(message.unwrap().freeze()).await.unwrap();
            }
            SinkExt::<Bytes>::close(&mut there).await.unwrap();
        };
        in_time("the echo", join3(sends, answers, echo)).await;
    });
}
