//! The halves of a stream in two tasks: one task may receive what the other one waits for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use support::device::{adapter, under_test};
use support::stream::{Net, bytes, each_sharing, small};
use support::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_doca::Mode;
use tokio_doca::stream::RdmaStream;

/// The task of one half, which this test plays.
struct Half {
    count: Arc<Count>,
    /// The number of wake-ups before the last poll.
    since: usize,
}

impl Half {
    fn new() -> Half {
        Half {
            count: Count::new(),
            since: 0,
        }
    }

    fn poll<T>(&mut self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.since = self.count.wakes();
        poll(&mut Context::from_waker(&self.count.waker()))
    }

    /// Polls only when the half was woken.
    async fn ready<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        loop {
            until("a half is woken", || self.count.wakes() > self.since).await;
            if let Poll::Ready(done) = self.poll(&mut poll) {
                return done;
            }
        }
    }
}

fn poll_write(stream: &mut RdmaStream, cx: &mut Context<'_>) -> Poll<usize> {
    let written = Pin::new(stream).poll_write(cx, &[7; 200]);
    written.map(Result::unwrap)
}

fn poll_read(stream: &mut RdmaStream, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
    let mut room = [0; 200];
    let mut room = ReadBuf::new(&mut room);
    let read = Pin::new(stream).poll_read(cx, &mut room);
    read.map(|read| read.map(|()| room.filled().to_vec()).unwrap())
}

/// Returns the number of frames in flight, as far as it is known: none over TCP.
fn in_flight(stream: &RdmaStream) -> usize {
    stream.rdma().map_or(0, |rdma| rdma.workq().in_flight())
}

/// Writes until the writer waits for a credit. Returns the number of bytes written.
async fn fill(stream: &mut RdmaStream, writer: &mut Half) -> usize {
    let mut len = 0;
    loop {
        match writer.poll(|cx| poll_write(stream, cx)) {
            Poll::Ready(written) => len += written,
            Poll::Pending if in_flight(stream) == 0 => return len,
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
}

/// With a shared pool the reader takes the message for which the writer waits.
#[test]
fn a_writer_is_woken_by_credits_behind_a_frame_that_the_reader_took() {
    for ends in [false, true] {
        each_sharing(8, 64, small(), async |net| {
            let (mut here, mut there) = net.pair().await;
            let mut writer = Half::new();
            let len = fill(&mut here, &mut writer).await;
            let came = if ends {
                in_time("the end", there.shutdown()).await.unwrap();
                0
            } else {
                in_time("a frame", there.write_all(b"frame")).await.unwrap();
                5
            };
            let read = in_time("a frame", here.read(&mut [0; 9])).await;
            assert_eq!(read.unwrap(), came);
            // The reader reads no more.
            let mut data = vec![0; len];
            in_time("the data", there.read_exact(&mut data))
                .await
                .unwrap();
            writer.ready(|cx| poll_write(&mut here, cx)).await;
        });
    }
}

/// With a shared pool the writer takes the message that the reader waits for.
#[test]
fn a_reader_is_woken_by_a_frame_behind_credits_that_the_writer_took() {
    each_sharing(8, 64, small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        let (mut writer, mut reader) = (Half::new(), Half::new());
        let len = fill(&mut here, &mut writer).await;
        assert!(reader.poll(|cx| poll_read(&mut here, cx)).is_pending());
        let mut data = vec![0; len];
        in_time("the data", there.read_exact(&mut data))
            .await
            .unwrap();
        in_time("the rest", here.write_all(b"rest")).await.unwrap();
        in_time("the rest", there.read_exact(&mut [0; 4]))
            .await
            .unwrap();
        in_time("an answer", there.write_all(b"answer"))
            .await
            .unwrap();
        let answer = reader.ready(|cx| poll_read(&mut here, cx)).await;
        assert_eq!(answer, b"answer");
    });
}

/// Two tasks of a multi-threaded runtime use the halves of a stream.
#[test]
fn halves_are_for_two_tasks() {
    let len = if adapter().is_some() {
        1 << 16
    } else {
        1 << 20
    };
    let story = async move {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        let (here, there) = net.pair().await;
        let mut tasks = Vec::new();
        for stream in [here, there] {
            let (mut reads, mut writes) = tokio::io::split(stream);
            tasks.push(tokio::spawn(async move {
                for at in (0..len).step_by(1000) {
                    let data = bytes(at..len.min(at + 1000));
                    writes.write_all(&data).await.unwrap();
                }
                writes.shutdown().await.unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let mut came = Vec::new();
                reads.read_to_end(&mut came).await.unwrap();
                assert!(came == bytes(0..len));
            }));
        }
        for task in tasks {
            in_time("a half", task).await.unwrap();
        }
    };
    workers().block_on(async { tokio::spawn(story).await.unwrap() });
}
