//! A load that rises and falls: each client sends a message there and back, and makes a copy.

use std::time::{Duration, Instant};

use futures::future::{try_join, try_join_all};
use services::Result;
use tokio_doca::{BufPool, Device, Dma, Mmap, Rdma, WorkQ};

/// The maximum number of clients, and the period in which their number rises from zero and falls
/// back.
const CLIENTS: usize = 24;
const PERIOD: Duration = Duration::from_secs(40);
/// The time until a message is answered.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of Bufs in the pool, two for each client and some more, and the size of each in
/// bytes.
const BUFS: usize = 64;
const SIZE: usize = 512 << 10;

pub(crate) struct Load {
    workq: WorkQ,
    pool: BufPool,
    dma: Dma,
    rdmas: [Rdma; 2],
}

impl Load {
    pub(crate) fn new(device: &Device) -> Result<Load> {
        let workq = WorkQ::builder().build()?;
        let memory = Mmap::builder().device(device).alloc(BUFS * SIZE)?;
        let rdma = || Rdma::builder(device).attach(&workq);
        Ok(Load {
            pool: BufPool::builder(&memory).element_size(SIZE).build()?,
            dma: Dma::builder(device).attach(&workq)?,
            rdmas: [rdma()?, rdma()?],
            workq,
        })
    }

    pub(crate) fn workq(&self) -> &WorkQ {
        &self.workq
    }

    pub(crate) fn rdma(&self) -> &Rdma {
        &self.rdmas[0]
    }

    pub(crate) fn pool(&self) -> &BufPool {
        &self.pool
    }

    pub(crate) async fn run(&self) -> Result {
        let [a, b] = &self.rdmas;
        try_join(a.connect(&b.export()?), b.connect(&a.export()?)).await?;
        let begun = Instant::now();
        try_join_all((0..CLIENTS).map(|client| self.client(client, begun))).await?;
        Ok(())
    }

    async fn client(&self, client: usize, begun: Instant) -> Result {
        loop {
            let turns = begun.elapsed().div_duration_f64(PERIOD);
            let share = (1.0 - (turns * std::f64::consts::TAU).cos()) / 2.0;
            if (client as f64) < share * CLIENTS as f64 {
                self.work().await?;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Sends a message there and back, and makes a copy that is long enough for an engine.
    async fn work(&self) -> Result {
        let [a, b] = &self.rdmas;
        let (src, dst) = (self.pool.alloc().await, self.pool.alloc().await);
        src.extend_from_slice(&[7; 1024])?;
        let ask = async {
            a.send(&src).await?;
            src.reset_data_len()?;
            a.recv(&src).await?;
            Result::<()>::Ok(())
        };
        let answer = async {
            b.recv(&dst).await?;
            tokio::time::sleep(PAUSE).await;
            b.send(&dst).await?;
            Ok(())
        };
        try_join(ask, answer).await?;
        src.set_data(0, SIZE)?;
        dst.reset_data_len()?;
        self.dma.copy(&src, &dst).await?;
        Ok(())
    }
}
