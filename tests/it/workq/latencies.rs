//! `WorkQ::latencies`: how long jobs took, by kind.

use std::time::{Duration, Instant};

use futures::future::try_join;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::sha::{Algorithm, Sha};
use tokio_doca::stream::StreamOptions;
use tokio_doca::workq::Histogram;
use tokio_doca::{Dma, Rdma, WorkQ};

fn of(workq: &WorkQ, kind: &str) -> Histogram {
    let latencies = workq.latencies().unwrap();
    let found = latencies.iter().find(|(name, _)| *name == kind);
    found.unwrap().1.clone()
}

#[test]
fn each_kind_of_job_has_its_own_histogram() {
    each(async |bench| {
        assert_eq!(bench.workq.latencies(), None, "they were not asked for");
        let mode = bench.workq.mode();
        let workq = WorkQ::builder().mode(mode).latencies(true).build().unwrap();
        let dma = Dma::builder(&bench.device).attach(&workq).unwrap();
        let sha = Sha::builder(&bench.device).attach(&workq).unwrap();
        let pair = [(); 2].map(|()| Rdma::builder(&bench.device).attach(&workq).unwrap());
        support::both_sides::connect(&pair[0], &pair[1]);

        let (src, dst) = (bench.filled(b"hello"), bench.empty());
        // The WorkQ is older than its jobs: its age is no part of their time.
        let held = Duration::from_millis(20);
        tokio::time::sleep(held).await;
        let before = Instant::now();
        for _ in 0..10 {
            dst.reset_data_len().unwrap();
            assert_eq!(dma.copy(&src, &dst).await, Ok(5));
        }
        // One after the other: together they took no longer than the loop.
        let (sum, took) = (of(&workq, "copy").sum(), before.elapsed());
        assert!(sum <= took, "{sum:?} in {took:?}");
        dst.reset_data_len().unwrap();
        sha.hash(Algorithm::Sha256, &src, &dst).await.unwrap();
        dst.reset_data_len().unwrap();
        let sent = futures::join!(pair[0].send(&src), pair[1].recv(&dst));
        assert_eq!((sent.0, sent.1.unwrap().len), (Ok(5), 5));

        let hold = bench.hold();
        dst.reset_data_len().unwrap();
        let before = Instant::now();
        let copy = dma.copy(&src, &dst).start().unwrap();
        let begun = Instant::now();
        tokio::time::sleep(held).await;
        let held = begun.elapsed();
        drop(hold);
        assert_eq!(copy.await, Ok(5));
        let took = before.elapsed();

        let counts = ["copy", "sha", "rdma", "crc"].map(|kind| of(&workq, kind).count());
        assert_eq!(counts, [11, 1, 1, 0]);
        let copies = of(&workq, "copy");
        let (longest, last) = (copies.quantile(1.0), copies.sum() - sum);
        assert!(longest >= held && held <= last, "{held:?}: {last:?}");
        assert!(last <= took, "{last:?} in {took:?}");
    });
}

#[test]
fn a_write_to_a_stream_is_a_job() {
    each(async |bench| {
        let [here, there] = [(); 2].map(|()| {
            let workq = WorkQ::builder().mode(bench.workq.mode());
            workq.latencies(true).build().unwrap()
        });
        let options = StreamOptions::new().timeout(LIMIT).connections(1);
        let local: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = options.bind(&bench.device, &there, local).await.unwrap();
        let addr = listener.tcp_addr().unwrap();
        let connector = options.connector(&bench.device, &here).unwrap();
        let accept = async { listener.accept().await?.accept(b"").await };
        let (mut to, mut from) = try_join(connector.connect(addr), accept).await.unwrap();
        to.write_all(b"hello").await.unwrap();
        let mut came = [0; 5];
        from.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"hello");
        // The connector's introduction is one as well.
        until("both have ended", || of(&here, "rdma").count() == 2).await;
        assert_eq!(of(&there, "rdma").count(), 0);
    });
}
