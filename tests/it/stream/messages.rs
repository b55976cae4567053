//! The frames of a stream as messages: Bufs that are passed on without a copy.

use std::io::ErrorKind;

use futures::future::join;
use futures::{FutureExt, SinkExt, StreamExt, TryStreamExt};
use support::device::{needs_soft, under_test};
use support::stream::{Net, bytes, each, each_of_soft, each_sharing, small};
use support::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::{RdmaMessages, RdmaStream};
use tokio_doca::{Buf, BufPool, Mmap, Mode};

/// The maximum size of a message on small streams, in bytes.
const MOST: usize = 252;

/// Returns a pool of the application's own memory for messages to send.
fn pool(stream: &RdmaStream) -> BufPool {
    let any = under_test(false);
    let device = stream.rdma().map_or(&any, |rdma| rdma.device());
    let memory = Mmap::builder().device(device);
    let memory = memory.alloc(64 * 1024).unwrap();
    BufPool::builder(&memory)
        .element_size(1024)
        .build()
        .unwrap()
}

fn filled(pool: &BufPool, bytes: &[u8]) -> Buf {
    let buf = pool.try_alloc().unwrap();
    buf.set_data(RdmaMessages::HEADROOM, 0).unwrap();
    buf.extend_from_slice(bytes).unwrap();
    buf
}

fn data(buf: &Buf) -> Vec<u8> {
    buf.data().unwrap().to_vec()
}

/// The other side forwards the messages that it receives.
#[test]
fn bufs_are_handed_over_and_sent_on() {
    each(small(), async |net| {
        let (here, there) = net.pair().await;
        let pool = pool(&here);
        let (mut here, mut there) = (here.into_messages(), there.into_messages());
        assert_eq!(here.max_message_size(), MOST);
        let lens = || (1..=MOST).step_by(7).chain([MOST]);
        let echo = async {
            while let Some(buf) = there.recv_buf().await.unwrap() {
                there.send_buf(buf).await.unwrap();
            }
            there.close().await.unwrap();
        };
        let story = async {
            for len in lens() {
                here.send_buf(filled(&pool, &bytes(0..len))).await.unwrap();
                let came = here.recv_buf().await.unwrap().unwrap();
                assert_eq!(data(&came), bytes(0..len));
            }
            here.close().await.unwrap();
            assert!(here.recv_buf().await.unwrap().is_none());
            let late = here.send_buf(filled(&pool, b"late")).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        };
        in_time("the echo", join(echo, story)).await;
        let all = pool.elements();
        until("all is back", || free_bufs(&pool) == all).await;
    });
}

#[test]
fn a_sink_and_a_stream_of_bufs_forward_all() {
    // Forwarding holds the Bufs of the send window, one that was fed, and the next one.
    each_sharing(4, 64, small(), async |net| {
        let (here, there) = net.pair().await;
        let pool = pool(&here);
        let (mut sink, mut answers) = here.into_messages().split::<Buf>();
        let (back, echo) = there.into_messages().split::<Buf>();
        let sends = async {
            for number in 0..40u8 {
                // Feeds more messages than the windows hold, before any flush.
                sink.feed(filled(&pool, &[number; 9])).await.unwrap();
            }
            sink.close().await.unwrap();
        };
        let receives = async {
            for number in 0..40u8 {
                let buf = answers.try_next().await.unwrap().unwrap();
                assert_eq!(data(&buf), [number; 9]);
            }
            assert!(answers.next().await.is_none());
        };
        let all = join(join(sends, receives), echo.forward(back));
        in_time("all", all).await.1.unwrap();
    });
}

#[test]
fn a_buf_that_is_no_message_is_refused_and_stays_as_it_was() {
    each(small(), async |net| {
        let (here, mut there) = net.pair().await;
        let pool = pool(&here);
        let mut here = here.into_messages();
        let bare = pool.try_alloc().unwrap();
        bare.extend_from_slice(b"no headroom").unwrap();
        let refused = [filled(&pool, &[7; MOST + 1]), filled(&pool, b""), bare];
        for buf in refused {
            let error = here.send_buf(buf.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            mentions(&error.to_string(), &[buf.data_len() as u64]);
            let fed = here.feed(buf).await.unwrap_err();
            assert_eq!(fed.kind(), ErrorKind::InvalidInput);
        }
        // A Buf that is in use is refused, and can be sent afterwards.
        let used = filled(&pool, b"used");
        let guard = used.data_mut().unwrap();
        assert!(here.send_buf(used.clone()).await.is_err());
        drop(guard);
        assert_eq!((used.headroom(), data(&used)), (4, b"used".to_vec()));
        here.send_buf(used).await.unwrap();
        let mut came = [0; 4];
        in_time("the data", there.read_exact(&mut came))
            .await
            .unwrap();
        assert_eq!(&came, b"used");
    });
}

#[test]
fn a_peer_may_read_and_write_bytes() {
    each(small(), async |net| {
        let (here, mut there) = net.pair().await;
        let pool = pool(&here);
        let mut here = here.into_messages();
        here.send_buf(filled(&pool, b"some bytes")).await.unwrap();
        here.feed(filled(&pool, b" and more")).await.unwrap();
        here.flush().await.unwrap();
        let mut came = [0; 12];
        let read = there.read_exact(&mut came);
        in_time("the bytes", read).await.unwrap();
        assert_eq!(&came, b"some bytes a");
        // The unread rest of a frame becomes a message.
        let mut there = there.into_messages();
        let rest = in_time("the rest", there.recv_buf()).await.unwrap();
        assert_eq!(data(&rest.unwrap()), b"nd more");
        let mut there = there.into_stream();
        there.write_all(b"back").await.unwrap();
        let back = in_time("what is back", here.next()).await.unwrap();
        assert_eq!(data(&back.unwrap()), b"back");
    });
}

/// A send that waits for a slot or for the peer, and is dropped, has sent nothing.
#[test]
fn a_dropped_send_has_sent_nothing() {
    run(async {
        let device = under_test(true);
        let net = Net::deep(1, &device, Mode::EventDriven, small()).await;
        let (here, there) = net.pair().await;
        let pool = pool(&here);
        let (mut here, mut there) = (here.into_messages(), there.into_messages());
        let (mut sent, mut dropped) = (0, 0);
        while dropped < 5 {
            let buf = filled(&pool, &[sent; 3]);
            match here.send_buf(buf.clone()).now_or_never() {
                Some(ended) => {
                    ended.unwrap();
                    sent += 1;
                }
                None => {
                    assert_eq!((buf.headroom(), data(&buf)), (4, vec![sent; 3]));
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        let mut numbers = 0;
        while numbers < sent {
            let buf = in_time("a message", there.recv_buf()).await.unwrap();
            assert_eq!(data(&buf.unwrap()), [numbers; 3]);
            numbers += 1;
        }
    });
}

/// A message that was copied to the heap waits for a shared Buf. If that wait is given up, or the
/// stream is dropped, other streams get the Buf.
#[test]
fn a_dropped_recv_buf_holds_up_nobody() {
    if needs_soft("others take longer to say that nothing came") {
        return;
    }
    each_of_soft(small().recv_bufs(2), async |net| {
        for drops in [false, true] {
            let mut pairs = Vec::new();
            for _ in 0..3 {
                pairs.push(net.pair().await);
            }
            for (here, _) in &mut pairs {
                here.write_all(b"message").await.unwrap();
            }
            let (here, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let [first, mut second, third] = theirs.try_into().unwrap();
            let (mut first, mut third) = (first.into_messages(), third.into_messages());
            let kept = in_time("the first", first.recv_buf())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(
                in_time("a look", second.fill_buf()).await.unwrap(),
                b"message"
            );
            let last = in_time("the third", third.recv_buf())
                .await
                .unwrap()
                .unwrap();
            let mut second = second.into_messages();
            assert!(second.recv_buf().now_or_never().is_none(), "there is none");
            let second = (!drops).then_some(second);
            let mut here = here;
            here[0].write_all(b"another").await.unwrap();
            let mut next = Box::pin(first.recv_buf());
            poll_pending(next.as_mut());
            drop(last);
            let next = in_time("the next", next).await.unwrap().unwrap();
            assert_eq!(data(&next), b"another");
            drop((kept, next));
            if let Some(mut second) = second {
                let came = in_time("the second", second.recv_buf()).await;
                assert_eq!(data(&came.unwrap().unwrap()), b"message");
            }
        }
    });
}
