//! Streams whose peers are slow, many or hostile: each peer delays only its own stream, and every
//! frame finds a posted receive.

use futures::FutureExt;
use futures::future::{join, join_all};
use support::device::{adapter, needs_soft, under_test};
use support::stream::{Net, bytes, each, each_by_rdma, each_of_soft, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::{RdmaStream, StreamOptions};
use tokio_doca::{Mode, rdma::RdmaState};

/// Writes until the peer accepts no more. Returns the number of bytes written.
async fn fill(stream: &mut RdmaStream) -> usize {
    let mut at = 0;
    for _ in 0..100 {
        // Gives frames in flight some time.
        for _ in 0..100 {
            let data = bytes(at..at + 252);
            match stream.write(&data).now_or_never() {
                Some(written) => at += written.unwrap(),
                None => break,
            }
        }
        tokio::task::yield_now().await;
    }
    at
}

#[test]
fn a_reader_that_does_not_read_leaves_nothing_waiting_in_the_device() {
    each_by_rdma(2, 64, small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        assert_eq!(fill(&mut here).await, 3 * 252);
        assert_eq!(here.rdma().unwrap().workq().in_flight(), 0);
        // The writer of the other direction is not blocked.
        assert_eq!(fill(&mut there).await, 3 * 252);
        for stream in [&here, &there] {
            assert_eq!(stream.rdma().unwrap().state(), RdmaState::Connected);
        }
        let (mut one, mut other) = ([0; 3 * 252], [0; 3 * 252]);
        let both = join(here.read_exact(&mut one), there.read_exact(&mut other));
        let (one, other) = in_time("the reads", both).await;
        one.and(other).unwrap();
        assert!(here.write(b"more").now_or_never().is_some() || fill(&mut here).await > 0);
    });
}

/// Each frame of credits uses a receive that is reserved for it. The receive is posted again before
/// the peer may send another such frame, although no task reads.
#[test]
fn a_side_that_does_not_read_has_room_for_credits_and_the_end() {
    let options = StreamOptions::new().timeout(LIMIT);
    each(options.connections(1), async |net| {
        let (mut here, mut there) = net.pair().await;
        for _ in 0..8 {
            here.write_u8(1).await.unwrap();
            there.write_u8(2).await.unwrap();
        }
        // This is one byte more than there were credits for, so this side processes all frames that
        // have arrived, without reading their data.
        let (written, read) = join(here.write_u8(1), there.read_exact(&mut [0; 4])).await;
        written.and(read.map(drop)).unwrap();
        there.read_exact(&mut [0; 5]).await.unwrap();
        in_time("the end", there.shutdown()).await.unwrap();
        let mut came = Vec::new();
        here.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, [2; 8]);
    });
}

/// A full window of the largest frames fits into the memory of a connection.
#[test]
fn a_window_of_the_largest_frames_is_sent_to_a_reader_that_sleeps() {
    let largest = StreamOptions::new()
        .timeout(LIMIT)
        .connections(1)
        .send_window(64);
    for options in [
        largest.frame_size(128 << 10).recv_window(3),
        largest.frame_size(4096).recv_window(112),
    ] {
        each(options, async |net| {
            let (mut here, mut there) = net.pair().await;
            let mut sent = 0;
            let data = vec![7; 200 << 10];
            let mut idle = 0;
            while idle < 50 {
                match here.write(&data).now_or_never() {
                    Some(written) => (sent, idle) = (sent + written.unwrap(), 0),
                    None => {
                        idle += 1;
                        tokio::task::yield_now().await;
                    }
                }
            }
            assert!(sent > 300 << 10, "{sent}");
            until("all is sent", || {
                here.flush().now_or_never();
                here.rdma().is_none_or(|rdma| rdma.workq().in_flight() == 0)
            })
            .await;
            let mut came = vec![0; sent];
            in_time("the data", there.read_exact(&mut came))
                .await
                .unwrap();
        });
    }
}

/// A slow reader gets everything from a fast writer, and a reader gets each byte of a slow writer
/// at once.
#[test]
fn slow_readers_and_slow_writers_are_waited_for() {
    const LEN: usize = 20_000;
    each(small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        let fast = async {
            here.write_all(&bytes(0..LEN)).await.unwrap();
            // Sends single bytes, each of which is answered.
            for at in 0..50 {
                here.write_u8(at).await.unwrap();
                assert_eq!(here.read_u8().await.unwrap(), at);
            }
        };
        let slow = async {
            let mut came = Vec::<u8>::new();
            while came.len() < LEN {
                let mut some = [0; 100];
                let most = some.len().min(LEN - came.len());
                let len = there.read(&mut some[..most]).await.unwrap();
                came.extend(&some[..len]);
                tokio::task::yield_now().await;
            }
            assert!(came == bytes(0..LEN));
            for _ in 0..50 {
                let byte = there.read_u8().await.unwrap();
                there.write_u8(byte).await.unwrap();
            }
        };
        in_time("both", join(fast, slow)).await;
    });
}

/// The peers of all streams but the last do not read; the last stream works.
#[test]
fn peers_that_do_not_read_hold_up_themselves_alone() {
    const STREAMS: usize = 64;
    for defer in [false, true] {
        let device = under_test(defer);
        let options = small().connections(STREAMS);
        run(async {
            let net = Net::new(&device, Mode::EventDriven, options).await;
            let mut pairs = Vec::new();
            for _ in 0..STREAMS {
                pairs.push(net.pair().await);
            }
            let full = rejected(
                net.connector.connect(net.addr).await,
                tokio_doca::ErrorKind::Full,
            );
            mentions(&full, &[STREAMS as u64]);
            for (here, _) in &mut pairs[1..] {
                assert_eq!(fill(here).await, 3 * 252);
            }
            let (here, there) = &mut pairs[0];
            let mut came = vec![0; 100_000];
            let data = bytes(0..came.len());
            let both = join(here.write_all(&data), there.read_exact(&mut came));
            let (written, read) = in_time("the last", both).await;
            written.and(read.map(drop)).unwrap();
            assert!(came == data);
            // Afterwards all streams are used at once.
            let all = pairs
                .iter_mut()
                .enumerate()
                .map(|(at, (here, there))| async move {
                    let write = here.write_all(&[7; 5000]);
                    let mut came = vec![0; 5000 + if at > 0 { 3 * 252 } else { 0 }];
                    let (written, read) = join(write, there.read_exact(&mut came)).await;
                    written.and(read.map(drop)).unwrap();
                });
            in_time("all", join_all(all)).await;
        });
    }
}

/// At first no stream is read; then all but the last have read a part of a frame, and the last
/// stream works.
#[test]
fn sixty_four_streams_share_two_buffers() {
    const STREAMS: usize = 64;
    if needs_soft("64 connections take long") {
        return;
    }
    let options = small().connections(STREAMS).recv_bufs(2);
    each_of_soft(options, async |net| {
        let mut pairs = Vec::new();
        for _ in 0..STREAMS {
            pairs.push(net.pair().await);
        }
        for (here, there) in &mut pairs {
            assert_eq!(fill(here).await, 3 * 252);
            assert_eq!(fill(there).await, 3 * 252);
        }
        // Each writer receives the data that arrived before the peer's credits.
        for (here, there) in &mut pairs {
            let (mut one, mut other) = ([0; 100], [0; 100]);
            let both = join(here.read_exact(&mut one), there.read_exact(&mut other));
            let (one, other) = in_time("a part", both).await;
            one.and(other).unwrap();
        }
        let workqs = [&pairs[0].0, &pairs[0].1].map(|stream| stream.rdma().unwrap().workq());
        assert!(workqs.iter().all(|workq| workq.in_flight() == 0));
        let (here, there) = &mut pairs[STREAMS - 1];
        let mut came = vec![0; 100_000 + 3 * 252 - 100];
        let data = bytes(3 * 252..3 * 252 + 100_000);
        let both = join(here.write_all(&data), there.read_exact(&mut came));
        let (written, read) = in_time("the last", both).await;
        written.and(read.map(drop)).unwrap();
        assert!(came == bytes(100..came.len() + 100));
        // Afterwards all streams are used at once, in both directions.
        let all = pairs[..STREAMS - 1].iter_mut().map(async |(here, there)| {
            let (mut one, mut other) = (vec![0; 5656], vec![0; 5656]);
            let data = bytes(756..5756);
            futures::join!(async { here.write_all(&data).await.unwrap() }, async {
                there.read_exact(&mut other).await.unwrap()
            },);
            futures::join!(async { there.write_all(&data).await.unwrap() }, async {
                here.read_exact(&mut one).await.unwrap()
            },);
            assert!(one == bytes(100..5756) && other == one);
            assert_eq!(here.rdma().unwrap().state(), RdmaState::Connected);
        });
        in_time("all", join_all(all)).await;
    });
}

/// The write has more slices than are passed to a device at once, some of them empty.
#[test]
fn a_vectored_write_of_many_slices_is_one_frame() {
    each(small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        for slices in [1, 15, 16, 17, 80] {
            let data = bytes(0..4 * slices);
            let empty = std::io::IoSlice::new(&[]);
            let parts = data.chunks(4).map(std::io::IoSlice::new);
            let parts: Vec<_> = parts.flat_map(|part| [empty, part]).collect();
            let sent = in_time("a write", here.write_vectored(&parts))
                .await
                .unwrap();
            assert_eq!(sent, data.len().min(252));
            let mut came = [0; 300];
            let len = in_time("a read", there.read(&mut came)).await.unwrap();
            assert!(came[..len] == data[..sent]);
        }
    });
}

#[test]
fn a_device_that_shares_no_buffers_says_so() {
    let (_, device) = support::loopback::Loopback::device(false);
    run(async {
        let workq = tokio_doca::WorkQ::builder().build().unwrap();
        let options = small().recv_bufs(2);
        let refused = rejected(
            options.connector(&device, &workq),
            tokio_doca::ErrorKind::NotSupported,
        );
        mentions(&refused, &[0, 256]);
    });
}

#[test]
fn streams_of_one_memory_come_and_go() {
    const ROUNDS: usize = 20;
    each(small().connections(2), async |net| {
        for round in 0..ROUNDS {
            let pair = async || match adapter() {
                Some(_) => net.pair_once_there_is_memory().await,
                None => net.pair().await,
            };
            let (mut one, mut two) = pair().await;
            let (mut three, mut four) = pair().await;
            for (from, to) in [(&mut one, &mut two), (&mut four, &mut three)] {
                from.write_all(&[round as u8; 700]).await.unwrap();
                from.shutdown().await.unwrap();
                let mut came = Vec::new();
                in_time("the data", to.read_to_end(&mut came))
                    .await
                    .unwrap();
                assert_eq!(came, [round as u8; 700]);
            }
            // The streams are dropped here without lingering, so that the next round finds memory.
        }
    });
}

/// Tokio copies in both directions, as a proxy does.
#[test]
fn a_proxy_copies_both_directions() {
    if needs_soft("four connections take long") {
        return;
    }
    each(small(), async |net| {
        let (mut client, mut front) = net.pair().await;
        let (mut back, mut server) = net.pair().await;
        let proxy = tokio::io::copy_bidirectional(&mut front, &mut back);
        let question = async {
            client.write_all(&bytes(0..9000)).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let answer = async {
            let mut question = Vec::new();
            server.read_to_end(&mut question).await.unwrap();
            server.write_all(&question).await.unwrap();
            server.shutdown().await.unwrap();
        };
        let ((copied, answer), ()) = in_time("all", join(join(proxy, question), answer)).await;
        assert_eq!(copied.unwrap(), (9000, 9000));
        assert!(answer == bytes(0..9000));
    });
}

/// A file server's transfer with the default options: a hundred megabytes arrive, with no byte
/// lost, duplicated or misplaced.
#[test]
fn a_hundred_megabytes_arrive() {
    const BLOCK: usize = 1_000_000;
    let block = |at: u64| {
        let mut block = vec![at as u8; BLOCK];
        block[..8].copy_from_slice(&at.to_be_bytes());
        block
    };
    let device = under_test(false);
    run(async {
        let options = StreamOptions::new().connections(1).timeout(LIMIT);
        let net = Net::new(&device, Mode::EventDriven, options).await;
        let (mut here, mut there) = net.pair().await;
        let sends = async {
            for at in 0..100 {
                let sent = in_time("a block is sent", here.write_all(&block(at))).await;
                sent.unwrap();
            }
            here.shutdown().await.unwrap();
        };
        let takes = async {
            let mut came = vec![0; BLOCK];
            for at in 0..100 {
                let read = in_time("a block comes", there.read_exact(&mut came)).await;
                read.unwrap();
                assert!(came == block(at), "block {at}");
            }
            assert_eq!(there.read(&mut came).await.unwrap(), 0);
        };
        tokio::join!(sends, takes);
    });
}
