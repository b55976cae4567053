//! Connections by rdma_cm between two sides of one adapter: stories for the fake adapters and for
//! real ones.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join;
use tokio_doca::rdma::{CmListener, CmRequest, Mtu, RdmaState};
use tokio_doca::{Device, ErrorKind, Mode, Result, error::Reason};

use crate::both_sides::{self, Side, all_access};
use crate::device::required_adapter;
use crate::{LIMIT, in_time};

/// An adapter, and an address of it.
pub struct Place {
    pub device: Device,
    pub ip: IpAddr,
}

impl Place {
    /// The adapter under test, and the address of it that a connection takes.
    pub fn of_adapter() -> Place {
        let device = required_adapter();
        let (a, _b) = both_sides::pair(&device, Mode::EventDriven);
        let gid = a.rdma.path().expect("an adapter has a network").gid;
        let ip = IpAddr::from(gid).to_canonical();
        Place { device, ip }
    }

    pub fn side(&self) -> Side {
        Side::new(&self.device, Mode::EventDriven)
    }

    pub fn listen(&self) -> CmListener {
        let listener = CmListener::bind(&self.device, SocketAddr::new(self.ip, 0)).unwrap();
        assert_ne!(listener.local_addr().port(), 0);
        listener
    }

    /// Two sides that are connected: the one that dialled first.
    pub async fn connected(&self) -> [Side; 2] {
        let (listener, sides) = (self.listen(), [self.side(), self.side()]);
        let (dialled, accepted) = meet(&listener, &sides[0], &sides[1]).await;
        dialled.unwrap();
        accepted.unwrap();
        sides
    }

    /// A request, and the one who asks.
    async fn asked(&self, said: &[u8], foreign: bool, side: &Side) -> (CmRequest, Dialled) {
        let listener = self.listen();
        let dial = side.rdma.connect_to(listener.local_addr());
        let dial = dial.private_data(said).foreign(foreign).timeout(LIMIT);
        let dialled = tokio::spawn(async { dial.await.map(Vec::from) });
        let request = in_time("a request", listener.accept()).await.unwrap();
        (request, dialled)
    }
}

/// One side dials, and the other one accepts: what each hears.
pub async fn meet(
    listener: &CmListener,
    dials: &Side,
    accepts: &Side,
) -> (Result<Vec<u8>>, Result<()>) {
    let dial = dials.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
    let dial = async { dial.await.map(Vec::from) };
    let accept = async {
        let request = listener.accept().await.unwrap();
        request.accept(&accepts.rdma).timeout(LIMIT).await
    };
    in_time("both hear", join(dial, accept)).await
}

type Dialled = tokio::task::JoinHandle<Result<Vec<u8>>>;

async fn ended(dialled: Dialled) -> Result<Vec<u8>> {
    in_time("the one who asks", dialled).await.unwrap()
}

/// Waits until a side has failed, and says why.
pub async fn failed(side: &Side) -> Reason {
    let mut watch = side.rdma.watch();
    let failed = async {
        loop {
            match side.rdma.state() {
                RdmaState::Error(error) => return error.reason(),
                _ => watch.changed().await,
            };
        }
    };
    in_time("it hears", failed).await
}

/// Both say something, know each other, and send messages and one-sided operations.
pub async fn two_sides_meet(place: &Place) {
    // The MTU is the route's, on both sides.
    let build = |mtu| {
        Side::with(&place.device, Mode::EventDriven, |builder| {
            builder.permissions(all_access()).mtu(mtu)
        })
    };
    let (a, b) = (build(Mtu::Bytes256), build(Mtu::Bytes4096));
    let (request, dialled) = place.asked(b"volume 7", false, &a).await;
    assert_eq!(request.private_data(), b"volume 7");
    assert!(!request.is_foreign() && request.peer_addr().ip() == place.ip);
    let dst = b.empty();
    let received = b.rdma.recv(&dst).start().unwrap();
    let accepted = request
        .accept(&b.rdma)
        .private_data(b"welcome")
        .timeout(LIMIT);
    in_time("the accept", accepted).await.unwrap();
    assert_eq!(&ended(dialled).await.unwrap()[..], b"welcome");
    let paths = [&a, &b].map(|side| side.rdma.path().unwrap());
    assert_eq!(
        (paths[0].gid, paths[0].peer_gid),
        (paths[1].peer_gid, paths[1].gid)
    );
    assert_eq!(paths[0].mtu, paths[1].mtu);
    assert!(paths[0].mtu > Mtu::Bytes256, "{paths:?}");
    assert_eq!(
        paths[0].gid.to_ipv4_mapped().map(IpAddr::from),
        Some(place.ip)
    );
    assert_eq!(a.rdma.send(a.filled(b"hello")).await, Ok(5));
    assert_eq!(received.await.unwrap().len, 5);
    assert_eq!(dst.data().unwrap()[..], *b"hello");
    let (_mmap, remote) = both_sides::remote(&b, &a, 8, all_access());
    assert_eq!(a.rdma.write(a.filled(b"12345678"), &remote).await, Ok(8));
    let (to, sent) = (a.empty(), b.filled(b"and back"));
    let (received, sent) = in_time("back", join(a.rdma.recv(&to), b.rdma.send(sent))).await;
    assert_eq!((received.unwrap().len, sent), (8, Ok(8)));
}

/// Whoever goes is missed at once: a reset, a drop, and an orderly end.
pub async fn an_end_is_heard(place: &Place) {
    for end in 0..3 {
        let [a, b] = place.connected().await;
        match end {
            0 => a.rdma.reset().unwrap(),
            1 => drop(a),
            _ => {
                let (dst, sent) = (b.empty(), a.filled(b"last"));
                let receive = b.rdma.recv(&dst).start().unwrap();
                a.rdma.send(sent).await.unwrap();
                a.rdma.close().await.unwrap();
                assert_eq!(receive.await.unwrap().len, 4);
            }
        }
        assert_eq!(failed(&b).await, Reason::PeerClosed, "{end}");
        // It can be connected anew.
        b.rdma.reset().unwrap();
        let c = place.side();
        let (request, dialled) = place.asked(b"", false, &c).await;
        in_time("again", request.accept(&b.rdma).timeout(LIMIT))
            .await
            .unwrap();
        ended(dialled).await.unwrap();
    }
}

/// What the other application says, or that nobody is there.
pub async fn a_refusal_says_why(place: &Place) {
    let a = place.side();
    let (request, dialled) = place.asked(b"", false, &a).await;
    let kind = request.reject(&[b'x'; 149]).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::InvalidValue);
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    for said in [&b"no such volume"[..], &[b'x'; 148], b""] {
        let (request, dialled) = place.asked(b"", false, &a).await;
        request.reject(said).unwrap();
        let error = ended(dialled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        let text = std::str::from_utf8(said).unwrap();
        assert!(error.to_string().contains(text), "{error}");
    }
    let (request, dialled) = place.asked(b"", false, &a).await;
    drop(request);
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    // Nobody listens there any more.
    let addr = place.listen().local_addr();
    let refused = a.rdma.connect_to(addr).timeout(LIMIT);
    let error = in_time("nobody", refused).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    // All this left it as it was.
    assert_eq!(a.rdma.state(), RdmaState::Init);
    let b = place.side();
    let (request, dialled) = place.asked(b"", false, &a).await;
    in_time("accepts", request.accept(&b.rdma).timeout(LIMIT))
        .await
        .unwrap();
    ended(dialled).await.unwrap();
}

/// As much as the transport carries, and no more.
pub async fn private_data_have_limits(place: &Place) {
    for (foreign, most) in [(false, [30, 170]), (true, [56, 196])] {
        let (a, b) = (place.side(), place.side());
        let listener = place.listen();
        let dial = a.rdma.connect_to(listener.local_addr()).foreign(foreign);
        let error = dial.private_data(&vec![1; most[0] + 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        assert!(error.to_string().contains(&most[0].to_string()), "{error}");
        for (len, fits) in [(most[1] + 1, false), (most[1], true)] {
            let said = vec![7; most[0]];
            let (request, dialled) = place.asked(&said, foreign, &a).await;
            assert_eq!(request.private_data(), said);
            assert_eq!(request.is_foreign(), foreign);
            let answer = vec![9; len];
            let accept = request
                .accept(&b.rdma)
                .foreign(foreign)
                .private_data(&answer);
            let accepted = in_time("the accept", accept.timeout(LIMIT)).await;
            let dialled = ended(dialled).await;
            if fits {
                accepted.unwrap();
                assert_eq!(dialled.unwrap(), answer);
                continue;
            }
            assert_eq!(accepted.unwrap_err().kind(), ErrorKind::InvalidValue);
            assert_eq!(dialled.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        }
    }
}

/// A peer is what it was said to be, or is refused.
pub async fn a_foreign_peer_is_said_to_be_one(place: &Place) {
    for dials in [false, true] {
        let (a, b) = (place.side(), place.side());
        let (request, dialled) = place.asked(b"", dials, &a).await;
        let accept = request.accept(&b.rdma).foreign(!dials).timeout(LIMIT);
        let error = in_time("the accept", accept).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        let error = ended(dialled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        assert_eq!(
            (a.rdma.state(), b.rdma.state()),
            (RdmaState::Init, RdmaState::Init)
        );
    }
}

/// A side that stops in the middle tells the other one, and can begin again.
pub async fn an_attempt_can_be_given_up(place: &Place) {
    let (a, b) = (place.side(), place.side());
    // Nobody answers it.
    let (request, dialled) = place.asked(b"", false, &a).await;
    let second = a.rdma.connect_to(place.listen().local_addr());
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::BadState);
    a.rdma.reset().unwrap();
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    drop(request);
    // Its time limit ends.
    let listener = place.listen();
    let dial = a.rdma.connect_to(listener.local_addr());
    let error = dial.timeout(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // It may end as early as it begins.
    for _ in 0..20 {
        let dial = a.rdma.connect_to(listener.local_addr());
        let error = in_time("it ends", dial.timeout(Duration::ZERO)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    // The request of one who has given up: the accept ends, and says so.
    let late = in_time("a request", listener.accept()).await.unwrap();
    let accept = late.accept(&b.rdma).timeout(Duration::from_millis(200));
    let error = in_time("the accept", accept).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    // Dropped while it is asked for: the future has a handle too.
    let (request, dialled) = place.asked(b"", false, &a).await;
    dialled.abort();
    drop((dialled.await, a));
    let accept = request.accept(&b.rdma).timeout(LIMIT);
    let error = in_time("the accept", accept).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    b.rdma.reset().unwrap();
    let c = place.side();
    let (request, dialled) = place.asked(b"", false, &c).await;
    in_time("accepts", request.accept(&b.rdma).timeout(LIMIT))
        .await
        .unwrap();
    ended(dialled).await.unwrap();
}
