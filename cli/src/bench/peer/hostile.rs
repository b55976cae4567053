//! Tests `bench serve` against clients that have the token, and break the protocol.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_doca::stream::{RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Device, Mode};

use super::serve::Server;
use super::*;
use crate::bench::limits::MEMORY;
use crate::bench::load::Load;
use crate::transfer::{Session, meet};

struct Host {
    device: Device,
    token: Token,
    listener: RdmaListener,
    free: Semaphore,
}

impl Host {
    async fn new() -> Host {
        let device = Device::open("pf1").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = StreamOptions::new().bind(&device, &workq, at).await;
        Host {
            device,
            token: Token::of("a token of this test"),
            listener: listener.unwrap(),
            free: Semaphore::new((MEMORY >> 10) as usize),
        }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.tcp_addr().unwrap()
    }

    /// Answers one client as `bench serve` does.
    async fn answer(&self) -> Result<Asked, String> {
        let incoming = self.listener.accept().await.unwrap();
        let met = meet(&BENCH, &self.token, incoming, b"a server").await;
        let (mut stream, session) = met.unwrap();
        let server = Server {
            device: &self.device,
            addr: self.addr(),
            free: &self.free,
        };
        server.answer(&mut stream, &session).await
    }

    /// Answers a client that runs `client` after its proof, and returns the error of the server.
    async fn against(&self, client: impl AsyncFnOnce(RdmaStream, Session)) -> String {
        let play = async {
            let workq = WorkQ::builder().build().unwrap();
            let options = StreamOptions::new().connections(1);
            let connector = options.connector(&self.device, &workq).unwrap();
            let met = call(&connector, &BENCH, &self.token, self.addr().into()).await;
            let Ok((stream, session, _)) = met else {
                panic!("it did not meet the server");
            };
            client(stream, session).await;
        };
        let (answered, ()) = tokio::join!(self.answer(), play);
        answered.err().unwrap_or_default()
    }

    /// Checks that an honest client can still measure.
    async fn is_honest_to_others(&self, kind: Kind) {
        let peer = Peer::new(&self.addr().to_string(), Token::of("a token of this test"));
        let plan = Plan {
            kind,
            baseline: None,
            peer: Some(Arc::new(peer.unwrap())),
            device: self.device.clone(),
            mode: Mode::EventDriven,
            size: 64,
            depth: 2,
            threads: 1,
        };
        let measured = thread::spawn(move || {
            let load = Load::start(&plan)?;
            let round = load.round(Duration::from_millis(10))?;
            load.end()?;
            Ok::<_, Failed>(round.latency.len())
        });
        self.answer().await.unwrap();
        assert!(measured.join().unwrap().unwrap() > 1);
    }
}

fn asks(kind: Kind, size: u32, depth: u32) -> Vec<u8> {
    let tcp = false;
    Asked {
        kind,
        tcp,
        size,
        depth,
    }
    .bytes()
}

#[tokio::test]
async fn what_is_no_plan_ends_its_connection_alone() {
    let host = Host::new().await;
    let odd = "it broke the protocol";
    for body in [&b""[..], b"dma", &[0xff; 2048]] {
        let said = host.against(async |mut stream, session| {
            session.say(&mut stream, Step::Plan, body).await.unwrap();
        });
        assert_eq!(said.await, odd);
    }
    let said = host.against(async |mut stream, _| {
        stream.write_all(&[0xff; 4096]).await.unwrap();
    });
    assert_eq!(said.await, odd);
    let said = host.against(async |_, _| {}).await;
    assert_eq!(said, "it ended the connection");
    host.is_honest_to_others(Kind::RdmaSend).await;
}

#[tokio::test]
async fn sizes_beyond_the_limits_take_no_memory() {
    let host = Host::new().await;
    for (kind, size, depth, part) in [
        (Kind::RdmaRead, u32::MAX, 1, "--size is 4294967295 bytes"),
        (Kind::RdmaSend, 64, u32::MAX, "--depth is 4294967295"),
        (Kind::RdmaWrite, 1 << 20, 4096, "1024 MiB at most"),
        (Kind::Stream, u32::MAX, 1, "1024 MiB at most"),
    ] {
        let mut heard = Vec::new();
        let said = host.against(async |mut stream, session| {
            let asks = asks(kind, size, depth);
            session.say(&mut stream, Step::Plan, &asks).await.unwrap();
            heard = session.hear(&mut stream, Step::Answer).await.unwrap();
        });
        let said = said.await;
        assert!(
            said.starts_with("refused: ") && said.contains(part),
            "{said}"
        );
        let why = parse_verdict(&heard).unwrap_err();
        assert!(
            why.starts_with(&part[..8]) || why.contains("in flight"),
            "{why}"
        );
    }
    assert_eq!(host.free.available_permits() as u64, MEMORY >> 10);
    host.is_honest_to_others(Kind::RdmaRead).await;
}

#[tokio::test]
async fn one_that_does_not_connect_gives_its_memory_back() {
    let host = Host::new().await;
    for kind in [Kind::RdmaSend, Kind::RdmaAtomic] {
        let said = host.against(async |mut stream, session| {
            let asks = asks(kind, 8, 8);
            session.say(&mut stream, Step::Plan, &asks).await.unwrap();
            session.hear(&mut stream, Step::Answer).await.unwrap();
            assert!((host.free.available_permits() as u64) < MEMORY >> 10);
            // These bytes are not the beginning of a blob.
            stream.write_all(&[0x7f; 4096]).await.unwrap();
        });
        let said = said.await;
        assert!(said.contains("blob"), "{said}");
    }
    assert_eq!(host.free.available_permits() as u64, MEMORY >> 10);
    host.is_honest_to_others(Kind::RdmaSend).await;
}

#[tokio::test]
async fn strangers_at_the_port_of_tcp_are_not_taken_for_the_peer() {
    let host = Host::new().await;
    let asked = Asked {
        kind: Kind::Stream,
        tcp: true,
        size: 4,
        depth: 1,
    };
    let mut answered = false;
    let said = host.against(async |mut stream, session| {
        let plan = session.say(&mut stream, Step::Plan, &asked.bytes()).await;
        plan.unwrap();
        let answer = session.hear(&mut stream, Step::Answer).await.unwrap();
        let [0, high, low, nonce @ ..] = &answer[..] else {
            panic!("refused: {answer:?}");
        };
        let port = u16::from_be_bytes([*high, *low]);
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(connect().await.unwrap());
        }
        let mut odd = connect().await.unwrap();
        odd.write_all(&[0; 64]).await.unwrap();
        assert_eq!(odd.read(&mut [0]).await.unwrap_or(0), 0, "it is let go of");
        let mut tcp = connect().await.unwrap();
        tcp.write_all(&[nonce, b"abcd"].concat()).await.unwrap();
        let mut bytes = [0; 4];
        tcp.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"abcd");
        answered = true;
        // The client sends nothing on its RDMA stream meanwhile.
        drop((tcp, silent));
    });
    let said = timeout(Duration::from_secs(60), said).await;
    assert!(answered, "{said:?}");
    assert_eq!(host.free.available_permits() as u64, MEMORY >> 10);
    host.is_honest_to_others(Kind::RdmaSend).await;
}
