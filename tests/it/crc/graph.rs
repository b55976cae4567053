//! CRCs in graphs.

use support::crc::bitwise;
use support::*;
use tokio_doca::crc::{CrcCopied, CrcOptions};
use tokio_doca::graph::NodeState;
use tokio_doca::{error::Reason, graph::Graph};

use super::{attach, seeded};

#[test]
fn a_copy_is_checked_and_its_crc_goes_on_in_the_next_node() {
    each(async |bench| {
        let (crc, [head, body]) = (attach(bench), [pattern(1, 100), pattern(2, 3000)]);
        let (header, src, dst) = (bench.filled(&head), bench.filled(&body), bench.empty());
        let mut g = Graph::builder();
        let (first, second) = (g.crc32c(&crc), g.copy_crc(&crc));
        let (from, to) = (src.clone(), dst.clone());
        let seed = g.user(move |run| {
            let crc = run.result(first).expect("it is over")? as u32;
            run.set(second, (&from, &to, seeded(crc)))
        });
        g.depends(seed, first);
        g.depends(second, seed);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        instance.set(first, &header).unwrap();
        let whole = bitwise(0, &[&head[..], &body].concat());
        for _ in 0..3 {
            in_time("a run", instance.run()).await.unwrap();
            let copied = instance.result(second).unwrap().map(CrcCopied::from);
            let expected = CrcCopied {
                bytes: 3000,
                crc: whole,
            };
            assert_eq!(copied, Ok(expected));
            assert_eq!(bytes(&dst), body);
            dst.reset_data_len().unwrap();
        }

        // Corrupted data fails the run, and nothing is appended.
        let wrong = CrcOptions::new().expected(!bitwise(0, &head));
        instance.set(first, (&header, wrong)).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert!(error.to_string().contains("crc32c"), "{error}");
        let failed = instance.result(first).unwrap().unwrap_err();
        assert_eq!(failed.reason(), Reason::CrcMismatch);
        assert_eq!(instance.state(second), NodeState::NotStarted);
        assert_eq!(dst.data_len(), 0);
    });
}
