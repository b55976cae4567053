//! Copies, hashes and checks in one graph.

use sha2::Digest;
use support::*;
use tokio_doca::graph::NodeState;
use tokio_doca::soft::Fault;
use tokio_doca::{
    Error, ErrorKind,
    graph::Graph,
    sha::{Algorithm, Sha},
};

#[test]
fn a_copy_and_a_hash_of_the_same_source_are_checked_by_a_user_node() {
    each(async |bench| {
        let sha = Sha::builder(&bench.device).attach(&bench.workq).unwrap();
        let text = [7_u8; 3000];
        let (src, dst, digest) = (bench.filled(&text), bench.empty(), bench.empty());
        let mut g = Graph::builder();
        let copy = g.dma_copy(&bench.dma);
        let hash = g.sha(&sha, Algorithm::Sha256);
        let (written, sum) = (dst.clone(), digest.clone());
        let check = g.user(move |run| {
            assert_eq!(
                (run.result(copy), run.result(hash)),
                (Some(Ok(3000)), Some(Ok(32)))
            );
            match sha2::Sha256::digest(&*written.data()?)[..] == sum.data()?[..] {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Unexpected, "check", "another digest")),
            }
        });
        g.depends(check, (copy, hash));
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        instance.set(copy, (&src, &dst)).unwrap();
        instance.set(hash, (&src, &digest)).unwrap();
        for _ in 0..3 {
            in_time("a run", instance.run()).await.unwrap();
            dst.reset_data_len().unwrap();
            digest.reset_data_len().unwrap();
        }

        // The hash fails: the check is not run, and the copy drains.
        let hold = bench.hold();
        bench.soft.faults().push(Fault::Pass);
        bench
            .soft
            .faults()
            .push(Fault::Error(ErrorKind::IoFailed, 1));
        drop(hold);
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert!(error.to_string().contains("sha"), "{error}");
        assert_eq!(instance.state(copy), NodeState::Completed);
        assert_eq!(instance.state(check), NodeState::NotStarted);
        drop(instance);
        drop(graph);
        drop((src, dst, digest));
        bench.all_back().await;
    });
}
