use tokio_doca::soft::Soft;
use tokio_doca::*;

fn run(mode: Mode, soft: &Soft) {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    rt.block_on(async {
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(1 << 20).unwrap();
        let pool = BufPool::builder(&mmap).element_size(4096).build().unwrap();
        let workq = WorkQ::builder().depth(4).mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        for i in 0..1000u32 {
            let (src, dst) = (pool.alloc().await, pool.alloc().await);
            src.extend_from_slice(&i.to_le_bytes()).unwrap();
            assert_eq!(dma.copy(&src, &dst).await.unwrap(), 4);
            assert_eq!(&dst.data().unwrap()[..], &i.to_le_bytes());
        }
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let (dma, pool) = (dma.clone(), pool.clone());
                tokio::spawn(async move {
                    for _ in 0..100 {
                        let (src, dst) = (pool.alloc().await, pool.alloc().await);
                        src.extend_from_slice(b"hello").unwrap();
                        dma.copy(&src, &dst).await.unwrap();
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        workq.shutdown().await.unwrap();
        assert!(device.jobs().unwrap() == 4200);
    });
}

#[test]
fn event_inline() {
    run(Mode::EventDriven, &Soft::builder().build());
}
#[test]
fn event_defer() {
    run(Mode::EventDriven, &Soft::builder().defer(true).build());
}
#[test]
fn busy_inline() {
    run(Mode::BusyPoll, &Soft::builder().build());
}
#[test]
fn busy_defer() {
    run(Mode::BusyPoll, &Soft::builder().defer(true).build());
}
