//! Tests of `metrics_page`, over TCP and over RDMA.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use services::options;
use support::programs::text;
use support::{in_time, workers};

use super::Net;
use super::programs::Server;

/// Returns the names and values of all figures on a page.
fn figures(page: &str) -> Vec<(&str, f64)> {
    let lines: Vec<&str> = page.lines().collect();
    lines.chunks(3).map(figure).collect()
}

/// Parses one figure. Each has a line of help and a line with its kind.
fn figure<'a>(lines: &[&'a str]) -> (&'a str, f64) {
    let &[help, kind, line] = lines else {
        panic!("{lines:?}")
    };
    let (name, value) = line.split_once(' ').unwrap();
    let is_counter = name.ends_with("_total");
    let expected = if is_counter { "counter" } else { "gauge" };
    assert!(help.starts_with(&format!("# HELP {name} ")), "{name}");
    assert_eq!(kind, format!("# TYPE {name} {expected}"));
    (name, value.parse().unwrap())
}

#[test]
fn the_metrics_page_has_figures_that_move_over_tcp_and_over_rdma() {
    workers().block_on(async {
        let page = Server::start("metrics_page", &["127.0.0.1:0", "127.0.0.1:0"]);
        // The first address is for RDMA, the second for TCP.
        let tcp = page.next_addr();
        let (net, _) = Net::new(options()).await;
        let client = Client::builder(TokioExecutor::new());
        let client: Client<_, Empty<Bytes>> = client.build(net.service());
        let get = async |path: &str| {
            let response = client.get(page.uri(path).parse().unwrap()).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            text(&body).to_owned()
        };
        let moves = async {
            loop {
                let text = get("/metrics").await;
                let found = figures(&text);
                let value = |name| found.iter().find(|it| it.0 == name).unwrap().1;
                assert_eq!(value("tokio_doca_workq_failed_total"), 0.0);
                if value("tokio_doca_workq_received_total") > 0.0
                    && value("tokio_doca_rdma_receives_posted_total") > 0.0
                    && value("tokio_doca_pool_high_water") > 0.0
                {
                    break;
                }
            }
        };
        in_time("the figures move", moves).await;
        let html = get("/").await;
        // The page loads nothing from other servers.
        let links = html.matches("http").count();
        assert_eq!(links, html.matches("http://www.w3.org/2000/svg").count());
        assert!(!html.contains("src=") && html.contains("fetch(\"/metrics\""));
        // Each figure that the charts draw exists.
        let text = get("/metrics").await;
        let groups = ["workq_", "rdma_", "pool_"];
        let is_figure = |word: &&str| groups.iter().any(|it| word.starts_with(it));
        let drawn: Vec<&str> = html.split('"').filter(is_figure).collect();
        assert!(drawn.len() > 10);
        for name in drawn {
            let line = format!("\ntokio_doca_{name} ");
            assert!(text.contains(&line), "{name}");
        }
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("http://{tcp}/metrics").parse().unwrap();
        let body = client.get(uri).await.unwrap().into_body();
        let by_tcp = body.collect().await.unwrap().to_bytes();
        assert_eq!(
            figures(support::programs::text(&by_tcp)).len(),
            figures(&text).len()
        );
    });
}
