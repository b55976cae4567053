//! Copies to and from memory that another device has exported, as nodes.

use support::*;
use tokio_doca::graph::NodeState;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Mmap,
    error::Reason,
    graph::Graph,
    mem::{Access, BufChain, RemoteMmap},
};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);

#[test]
fn memory_of_the_host_is_written_and_read_by_nodes() {
    for config in configs() {
        let dpu = Soft::builder().view(View::Dpu).defer(config.defer);
        let bench = Bench::on(config, dpu.build(), "p0");
        let host = Soft::builder().build().open("pf0").unwrap();
        let mmap = Mmap::builder().device(&host).access(DPU);
        let mmap = mmap.alloc(2 * ELEMENT).unwrap();
        let blob = mmap.export_dpu(&host).unwrap();
        run(async {
            let remote = RemoteMmap::from_export(&bench.device, &blob).await.unwrap();
            let mut g = Graph::builder();
            let [there, on, back, plain] = [(); 4].map(|()| g.dma_copy(&bench.dma));
            g.depends(on, there);
            g.depends(back, on);
            g.depends(plain, back);
            let graph = g.build().unwrap();
            assert_eq!(graph.label(back).unwrap(), "dma_copy#2");
            let mut instance = graph.instance().unwrap();
            let (src, dst, last) = (bench.filled(b"0123456789"), bench.empty(), bench.empty());
            let (first, second) = (remote.buf(..10).unwrap(), remote.buf(ELEMENT..).unwrap());
            instance.set(there, (&src, &first)).unwrap();
            instance.set(on, (&first, &second)).unwrap();
            let part = second.slice(..8).unwrap();
            instance.set(back, (part, &dst)).unwrap();
            instance.set(plain, (&dst, &last)).unwrap();
            for _ in 0..2 {
                in_time("a run", instance.run()).await.unwrap();
                assert_eq!(instance.result(on), Some(Ok(10)));
                assert_eq!(instance.result(back), Some(Ok(8)));
                assert_eq!(&last.data().unwrap()[..], b"01234567");
                dst.reset_data_len().unwrap();
                last.reset_data_len().unwrap();
            }
            // A copy between ranges that overlap is refused.
            instance
                .set(on, (&first, remote.buf(5..20).unwrap()))
                .unwrap();
            let error = in_time("a run", instance.run()).await.unwrap_err();
            assert_eq!(error.node(), on.id());
            let reason = instance.result(on).unwrap().unwrap_err().reason();
            assert_eq!(reason, Reason::Overlap);

            // Memory that was exported as read-only is not written.
            let builder = Mmap::builder().device(&host).access(Access::DPU_READ_ONLY);
            let readable = builder.alloc(ELEMENT).unwrap();
            let blob = readable.export_dpu(&host).unwrap();
            let remote = RemoteMmap::from_export(&bench.device, &blob).await.unwrap();
            instance
                .set(there, (&src, remote.buf(..).unwrap()))
                .unwrap();
            let error = in_time("a run", instance.run()).await.unwrap_err();
            assert_eq!(error.node(), there.id());
            let reason = instance.result(there).unwrap().unwrap_err().reason();
            assert_eq!(reason, Reason::RemoteNotWritable);
            assert_eq!(instance.state(on), NodeState::NotStarted);
            drop((instance, graph, src, dst, last));
            bench.all_back().await;
        });
    }
}

/// A copy from a list to itself is refused. The list's lock is taken for one side at a time, so
/// that the call does not block itself.
#[test]
fn a_list_is_not_copied_onto_itself() {
    for config in configs() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let bench = Bench::new(config);
            let mut g = Graph::builder();
            let copy = g.dma_copy(&bench.dma);
            let mut instance = g.build().unwrap().instance().unwrap();
            let chain = BufChain::with_capacity(2);
            for _ in 0..2 {
                chain.push(bench.filled(b"data")).unwrap();
            }
            instance.set(copy, (&chain, &chain)).unwrap();
            run(async { instance.run().await.unwrap_err() });
            let reason = instance.result(copy).unwrap().unwrap_err().reason();
            tell.send(reason).unwrap();
        });
        assert_eq!(told.recv_timeout(LIMIT), Ok(Reason::Overlap));
    }
}
