//! Sync events as nodes of graphs: the values that are set, waits that take no slot, and the effect
//! of a failure on them.

use support::events::Setup;
use support::*;
use tokio_doca::graph::NodeState;
use tokio_doca::{Error, ErrorKind, error::Reason, graph::Graph};

#[test]
fn a_graph_signals_and_waits() {
    for setup in Setup::all() {
        let (owner, importer) = Setup { depth: 2, ..setup }.pair();
        let mut g = Graph::builder();
        let first = g.sync_event_add(&owner);
        let wait = g.sync_event_wait_gt(&owner);
        let low = g.sync_event_wait_gt(&owner);
        let (read, last) = (g.sync_event_get(&owner), g.sync_event_set(&owner));
        g.depends(read, (wait, low));
        g.depends(last, read);
        let graph = g.build().unwrap();
        assert!(graph.to_dot().contains("sync_event_wait_gt"));
        let mut instance = graph.instance().unwrap();
        instance.set(first, 1_u64).unwrap();
        instance.set(wait, 1_u64).unwrap();
        instance.set(low, (2_u64, 0xff_u64)).unwrap();
        instance.set(read, ()).unwrap();
        instance.set(last, 0_u64).unwrap();
        run(in_time("the runs", async {
            for _ in 0..10 {
                let answer = async {
                    assert_eq!(importer.wait_gt(0).await, Ok(1));
                    importer.set(3).await.unwrap();
                };
                let (ran, ()) = tokio::join!(instance.run(), answer);
                ran.unwrap();
                assert_eq!(instance.result(first), Some(Ok(0)));
                assert_eq!(instance.result(wait), Some(Ok(3)));
                assert_eq!(instance.result(low), Some(Ok(3)));
                assert_eq!(instance.result(read), Some(Ok(3)));
                assert_eq!(instance.result(last), Some(Ok(0)));
                assert_eq!(importer.get().await, Ok(0));
            }
        }));
    }
}

#[test]
fn a_wait_stops_with_the_first_failure_and_gives_its_place_back() {
    for setup in Setup::all() {
        let owner = setup.waits(1).owner();
        let mut g = Graph::builder();
        let (wait, add) = (g.sync_event_wait_gt(&owner), g.sync_event_add(&owner));
        let wrong = g.user(|_| Err(Error::new(ErrorKind::Unexpected, "wrong", "on purpose")));
        g.depends(wrong, add);
        let mut instance = g.build().unwrap().instance().unwrap();
        instance.set(wait, 1000_u64).unwrap();
        instance.set(add, 1_u64).unwrap();
        run(in_time("the run", async {
            let error = instance.run().await.unwrap_err();
            assert_eq!(error.node(), wrong.id());
            assert_eq!(instance.state(wait), NodeState::Stopped);
            // The wait's entry is free again.
            drop(owner.wait_gt(1000).start().unwrap());
            // Dropping a run also ends its wait.
            let mut run = Box::pin(instance.run());
            let _ = poll(run.as_mut());
            drop(run);
            drop(owner.wait_gt(1000).start().unwrap());
        }));
    }
}

#[test]
fn nodes_that_are_not_set_or_whose_event_is_elsewhere_are_refused() {
    let setup = &Setup::all()[0];
    let owner = setup.owner();
    let mut g = Graph::builder();
    let (wait, add) = (g.sync_event_wait_gt(&owner), g.sync_event_add(&owner));
    g.depends(add, wait);
    let graph = g.build().unwrap();
    let text = rejected(graph.instance_on(&setup.workq()), ErrorKind::InvalidValue);
    assert!(text.contains("another WorkQ"), "{text}");
    let mut instance = graph.instance().unwrap();
    run(in_time("the runs", async {
        let error = instance.run().await.unwrap_err();
        assert_eq!(
            (error.node(), error.kind()),
            (wait.id(), ErrorKind::BadState)
        );
        instance.set(wait, 0_u64).unwrap();
        owner.set(1).await.unwrap();
        let error = instance.run().await.unwrap_err();
        assert_eq!(error.node(), add.id());
        owner.stop();
        instance.set(add, 1_u64).unwrap();
        assert!(instance.run().await.is_err());
        let reason = instance
            .result(wait)
            .map(|result| result.unwrap_err().reason());
        assert_eq!(reason, Some(Reason::EventStopped));
    }));
}
