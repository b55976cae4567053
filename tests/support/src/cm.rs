//! Tests of connections by rdma_cm between two sides of one adapter. They run on the fake adapters
//! and on real ones.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{join, try_join};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::rdma::{CmListener, CmRequest, Mtu, RdmaState, RecvPool, Transport};
use tokio_doca::stream::{
    RdmaConnector, RdmaListener, RdmaStream, StreamAddr, StreamOptions, StreamTransport,
};
use tokio_doca::{BufPool, Device, ErrorKind, Mmap, Mode, Rdma, Result, WorkQ, error::Reason};

use crate::both_sides::{self, Side, all_access};
use crate::device::required_adapter;
use crate::stream::crosses;
use crate::{LIMIT, bytes, in_time};

/// An adapter, and an address at which it can be reached.
pub struct Place {
    pub device: Device,
    pub ip: IpAddr,
}

impl Place {
    /// Returns the adapter under test, with the address that connections use.
    pub fn of_adapter() -> Place {
        let device = required_adapter();
        if is_iwarp(&device) {
            let ip = ip_of_interface(&device);
            return Place { device, ip };
        }
        let (a, _b) = both_sides::pair(&device, Mode::EventDriven);
        let gid = a.rdma.path().expect("an adapter has a network").gid;
        let ip = IpAddr::from(gid).to_canonical();
        Place { device, ip }
    }

    /// Returns the adapter under test with an IPv6 address that is not link-local; `None` if it has
    /// none, or is an iWARP adapter.
    pub fn of_ipv6() -> Option<Place> {
        let device = required_adapter();
        let gids = format!(
            "/sys/class/infiniband/{}/ports/1/gids",
            device.info().name()
        );
        let gids = std::fs::read_dir(gids).unwrap();
        let mut gids = gids.filter_map(|gid| std::fs::read_to_string(gid.ok()?.path()).ok());
        let ip = gids.find_map(|gid| {
            let ip: Ipv6Addr = gid.trim().parse().ok()?;
            let is_local = ip.is_unspecified() || ip.is_unicast_link_local();
            (!is_local && ip.to_ipv4_mapped().is_none()).then_some(ip.into())
        });
        (!is_iwarp(&device)).then_some(Place { device, ip: ip? })
    }

    /// Prepares a side for the next attempt after a failed one. On iWARP, resets the side, since
    /// the kernel keeps the queue pair of the failed attempt.
    pub fn again(&self, side: &Side) {
        match is_iwarp(&self.device) {
            true => side.rdma.reset().unwrap(),
            false => assert_eq!(side.rdma.state(), RdmaState::Init),
        }
    }

    pub fn side(&self) -> Side {
        Side::new(&self.device, Mode::EventDriven)
    }

    pub fn listen(&self) -> CmListener {
        let listener = CmListener::bind(&self.device, SocketAddr::new(self.ip, 0)).unwrap();
        assert_ne!(listener.local_addr().port(), 0);
        listener
    }

    /// Connects two sides. The one that dialed comes first.
    pub async fn connected(&self) -> [Side; 2] {
        let (listener, sides) = (self.listen(), [self.side(), self.side()]);
        let (dialled, accepted) = meet(&listener, &sides[0], &sides[1]).await;
        dialled.unwrap();
        accepted.unwrap();
        sides
    }

    /// Has `side` dial with `said` as private data. Returns the request that the listener gets, and
    /// the task that dials.
    pub async fn asked(&self, said: &[u8], foreign: bool, side: &Side) -> (CmRequest, Dialled) {
        let listener = self.listen();
        let dial = side.rdma.connect_to(listener.local_addr());
        let dial = dial.private_data(said).foreign(foreign).timeout(LIMIT);
        let dialled = tokio::spawn(async { dial.await.map(Vec::from) });
        let request = in_time("a request", listener.accept()).await.unwrap();
        (request, dialled)
    }
}

pub fn is_iwarp(device: &Device) -> bool {
    let caps = device.info().caps();
    caps.rdma.as_ref().is_some_and(|rdma| !rdma.acknowledged)
}

/// Returns the address of the network interface of an iWARP adapter, whose GID begins with the
/// interface's hardware address.
fn ip_of_interface(device: &Device) -> IpAddr {
    let name = device.info().name();
    let gid = format!("/sys/class/infiniband/{name}/ports/1/gids/0");
    let gid = std::fs::read_to_string(gid).unwrap().replace(':', "");
    let is_its = |interface: &str| {
        let address = format!("/sys/class/net/{interface}/address");
        let address = std::fs::read_to_string(address).unwrap_or_default();
        gid.starts_with(&address.trim().replace(':', ""))
    };
    let addrs = nix::ifaddrs::getifaddrs().unwrap();
    let mut own = addrs.filter(|addr| is_its(&addr.interface_name));
    let ip = own.find_map(|addr| Some(addr.address?.as_sockaddr_in()?.ip()));
    IpAddr::V4(ip.expect("the interface has an address"))
}

/// Has `dials` connect to the listener and `accepts` accept. Returns the results of both.
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

pub type Dialled = tokio::task::JoinHandle<Result<Vec<u8>>>;

pub async fn ended(dialled: Dialled) -> Result<Vec<u8>> {
    in_time("the one who asks", dialled).await.unwrap()
}

/// Waits until a side has failed, and returns the reason.
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

/// Tests that both sides exchange private data, know each other's address, and do messages and
/// one-sided operations.
pub async fn two_sides_meet(place: &Place) {
    // Both sides use the MTU of the route, not the one that they ask for.
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
    assert_eq!(IpAddr::from(paths[0].gid).to_canonical(), place.ip);
    assert_eq!(a.rdma.send(a.filled(b"hello")).await, Ok(5));
    assert_eq!(received.await.unwrap().len, 5);
    assert_eq!(dst.data().unwrap()[..], *b"hello");
    let (_mmap, remote) = both_sides::remote(&b, &a, 8, all_access());
    assert_eq!(a.rdma.write(a.filled(b"12345678"), &remote).await, Ok(8));
    let (to, sent) = (a.empty(), b.filled(b"and back"));
    let (received, sent) = in_time("back", join(a.rdma.recv(&to), b.rdma.send(sent))).await;
    assert_eq!((received.unwrap().len, sent), (8, Ok(8)));
    // Operations without bytes work as well.
    let (received, sent) = in_time("back", join(a.rdma.recv(()), b.rdma.send(()))).await;
    assert_eq!((received.unwrap().len, sent), (0, Ok(0)));
    assert_eq!(in_time("the read", a.rdma.read((), ())).await, Ok(0));
}

/// Tests receives from a shared pool, on the side that dials and on the side that accepts. On
/// iWARP, checks that such a pool is refused.
pub async fn a_pool_receives_in_both_roles(place: &Place) {
    for pool_dials in [true, false] {
        let mmap = Mmap::builder().device(&place.device).alloc(1 << 14);
        let mmap = mmap.unwrap();
        let pool = BufPool::builder(&mmap).element_size(256).build();
        let pool = RecvPool::new(&pool.unwrap()).credits(4);
        if is_iwarp(&place.device) {
            let builder = Rdma::builder(&place.device).recv_pool(&pool);
            let refused = builder.attach(&Place::workq()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotSupported);
            return;
        }
        let pooled = Side::with(&place.device, Mode::EventDriven, |builder| {
            builder.permissions(all_access()).recv_pool(&pool)
        });
        let plain = place.side();
        let dst = plain.empty();
        let receive = plain.rdma.recv(&dst).start().unwrap();
        let (dials, accepts) = match pool_dials {
            true => (&pooled, &plain),
            false => (&plain, &pooled),
        };
        let (dialled, accepted) = meet(&place.listen(), dials, accepts).await;
        dialled.unwrap();
        accepted.unwrap();
        let speak = async {
            assert_eq!(pooled.rdma.send(pooled.filled(b"pooled")).await, Ok(6));
            assert_eq!(receive.await.unwrap().len, 6);
        };
        // Send more messages than the pool has credits.
        let hear = async {
            let mut messages = pooled.rdma.messages();
            for number in 0..20 {
                assert_eq!(plain.rdma.send(plain.filled(&[number; 9])).await, Ok(9));
                let message = messages.next().await.unwrap().unwrap();
                assert_eq!(bytes(&message.buf.unwrap()), [number; 9]);
            }
        };
        // Over iWARP the side that dials must send first.
        let each = async {
            match pool_dials {
                true => {
                    speak.await;
                    hear.await;
                }
                false => {
                    hear.await;
                    speak.await;
                }
            }
        };
        in_time("messages", each).await;
        plain.rdma.close().await.unwrap();
        assert_eq!(failed(&pooled).await, Reason::PeerClosed);
    }
}

/// Tests that an idle connection stays open: both sides answer the probes.
pub async fn an_idle_connection_stays(place: &Place) {
    let mut transport = Transport::default();
    transport.probe_interval = Some(Duration::from_millis(10));
    match is_iwarp(&place.device) {
        // On iWARP these settings limit a probe to about half a second.
        true => {
            (transport.ack_timeout, transport.retry_count) = (Some(Duration::from_millis(250)), 0)
        }
        // Elsewhere, keep the limit of the transport itself out of the way.
        false => transport.ack_timeout = Some(Duration::from_secs(4)),
    }
    let side = || {
        Side::with(&place.device, Mode::EventDriven, |builder| {
            builder.transport(transport)
        })
    };
    let (a, b) = (side(), side());
    let (dialled, accepted) = meet(&place.listen(), &a, &b).await;
    dialled.unwrap();
    accepted.unwrap();
    for (from, to) in [(&a, &b), (&b, &a)] {
        let dst = to.empty();
        let receive = to.rdma.recv(&dst).start().unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(from.rdma.send(from.filled(b"still")).await, Ok(5));
        assert_eq!(in_time("the message", receive).await.unwrap().len, 5);
    }
}

/// Tests that a side notices at once when its peer is reset, is dropped or closes.
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
        // The side can be connected again.
        b.rdma.reset().unwrap();
        let c = place.side();
        let (request, dialled) = place.asked(b"", false, &c).await;
        in_time("again", request.accept(&b.rdma).timeout(LIMIT))
            .await
            .unwrap();
        ended(dialled).await.unwrap();
    }
}

/// Tests that a refused side gets the reason that the other application gives, or learns that
/// nothing listens.
pub async fn a_refusal_says_why(place: &Place) {
    let a = place.side();
    let (request, dialled) = place.asked(b"", false, &a).await;
    let kind = request.reject(&[b'x'; 149]).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::InvalidValue);
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    place.again(&a);
    for said in [&b"no such volume"[..], &[b'x'; 148], b""] {
        let (request, dialled) = place.asked(b"", false, &a).await;
        request.reject(said).unwrap();
        let error = ended(dialled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        let text = std::str::from_utf8(said).unwrap();
        assert!(error.to_string().contains(text), "{error}");
        place.again(&a);
    }
    let (request, dialled) = place.asked(b"", false, &a).await;
    drop(request);
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    place.again(&a);
    // The listener is dropped before the side dials.
    let addr = place.listen().local_addr();
    let refused = a.rdma.connect_to(addr).timeout(LIMIT);
    let error = in_time("nobody", refused).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    // The refusals left the side unconnected and usable.
    assert_eq!(a.rdma.state(), RdmaState::Init);
    let b = place.side();
    let (request, dialled) = place.asked(b"", false, &a).await;
    in_time("accepts", request.accept(&b.rdma).timeout(LIMIT))
        .await
        .unwrap();
    ended(dialled).await.unwrap();
}

/// Tests that private data can be as long as the transport carries, and no longer.
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
            place.again(&a);
        }
    }
}

/// Tests that a peer is refused if the two sides disagree on whether it is foreign (not of this
/// library).
pub async fn a_foreign_peer_is_said_to_be_one(place: &Place) {
    for dials in [false, true] {
        let (a, b) = (place.side(), place.side());
        let (request, dialled) = place.asked(b"", dials, &a).await;
        let accept = request.accept(&b.rdma).foreign(!dials).timeout(LIMIT);
        let error = in_time("the accept", accept).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        let error = ended(dialled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        assert_eq!(b.rdma.state(), RdmaState::Init);
        place.again(&a);
    }
}

/// Tests that a side which gives an attempt up notifies the other side, and can connect again.
pub async fn an_attempt_can_be_given_up(place: &Place) {
    let (a, b) = (place.side(), place.side());
    // A reset ends an attempt that was not answered.
    let (request, dialled) = place.asked(b"", false, &a).await;
    let second = a.rdma.connect_to(place.listen().local_addr());
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::BadState);
    a.rdma.reset().unwrap();
    let error = ended(dialled).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    // Rejecting the stale request succeeds, so that a server's loop can continue.
    request.reject(b"too late").unwrap();
    // A time limit ends an attempt.
    let listener = place.listen();
    let dial = a.rdma.connect_to(listener.local_addr());
    let error = dial.timeout(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    place.again(&a);
    // An attempt may time out as soon as it begins.
    for _ in 0..20 {
        let dial = a.rdma.connect_to(listener.local_addr());
        let error = in_time("it ends", dial.timeout(Duration::ZERO)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        place.again(&a);
    }
    // Accepting a request whose sender has given up fails.
    let late = in_time("a request", listener.accept()).await.unwrap();
    let accept = late.accept(&b.rdma).timeout(Duration::from_millis(200));
    accepted_in_vain(place, in_time("the accept", accept).await, &b).await;
    // The context and its dialing future, which has a handle too, are dropped during the attempt.
    let (request, dialled) = place.asked(b"", false, &a).await;
    dialled.abort();
    drop((dialled.await, a));
    let accept = request.accept(&b.rdma).timeout(LIMIT);
    accepted_in_vain(place, in_time("the accept", accept).await, &b).await;
    let c = place.side();
    let (request, dialled) = place.asked(b"", false, &c).await;
    in_time("accepts", request.accept(&b.rdma).timeout(LIMIT))
        .await
        .unwrap();
    ended(dialled).await.unwrap();
}

/// Checks an accept whose peer has given up. Over iWARP an accept does not wait for the peer, so
/// that it succeeds and the end of the peer is noticed afterwards.
async fn accepted_in_vain(place: &Place, accepted: Result<()>, by: &Side) {
    match accepted {
        Ok(()) if is_iwarp(&place.device) => assert_eq!(failed(by).await, Reason::PeerClosed),
        accepted => {
            let error = accepted.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        }
    }
    by.rdma.reset().unwrap();
}

impl Place {
    pub fn options() -> StreamOptions {
        StreamOptions::new()
            .connections(2)
            .frame_size(8 << 10)
            .timeout(LIMIT)
    }

    fn workq() -> WorkQ {
        WorkQ::builder().build().unwrap()
    }

    async fn streams(&self, options: StreamOptions) -> (RdmaListener, RdmaConnector) {
        let addr = StreamAddr::Cm(SocketAddr::new(self.ip, 0));
        let listener = options.bind(&self.device, &Self::workq(), addr).await;
        let connector = options.connector(&self.device, &Self::workq());
        (listener.unwrap(), connector.unwrap())
    }
}

fn addr_of(listener: &RdmaListener) -> SocketAddr {
    match listener.local_addr() {
        StreamAddr::Cm(addr) => *addr,
        other => panic!("{other}"),
    }
}

/// Tests that both sides of a stream get each other's private data, that bytes cross both ways, and
/// that an end is noticed.
pub async fn streams_meet(place: &Place) {
    let (listener, connector) = place.streams(Place::options()).await;
    let at = addr_of(&listener);
    assert!(at.port() != 0 && listener.tcp_addr().is_none());
    let accept = async {
        let incoming = listener.accept().await.unwrap();
        assert_eq!(incoming.data(), [7; 24]);
        assert_eq!(incoming.transport(), StreamTransport::Rdma);
        assert_eq!(
            incoming.peer().tcp_addr().map(|addr| addr.ip()),
            Some(place.ip)
        );
        incoming.accept(&[9; 164]).await.unwrap()
    };
    let connect = connector.connect_with(StreamAddr::Cm(at), &[7; 24]);
    let met = in_time("both meet", join(connect, accept)).await;
    let ((mut a, said), mut b) = (met.0.unwrap(), met.1);
    assert_eq!((&said[..], a.peer_addr()), (&[9; 164][..], Some(at)));
    assert_eq!([a.transport(), b.transport()], [StreamTransport::Rdma; 2]);
    for _ in 0..2 {
        in_time("bytes", crosses(&mut a, &mut b)).await;
        in_time("bytes", crosses(&mut b, &mut a)).await;
    }
    assert_eq!((listener.stats().accepted, listener.stats().open), (1, 1));
    let mut rest = Vec::new();
    // Over iWARP a shutdown waits until the peer has taken the end.
    let ends = join(a.shutdown(), b.read_to_end(&mut rest));
    let (ended, read) = in_time("the end", ends).await;
    ended.unwrap();
    assert_eq!(read.unwrap(), 0);
    // The drop ends the stream for the other side.
    drop(b);
    in_time("the end", a.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

/// Connects a stream by rdma_cm.
pub async fn stream(place: &Place, options: StreamOptions) -> (RdmaListener, [RdmaStream; 2]) {
    let (listener, connector) = place.streams(options).await;
    let connect = connector.connect(listener.local_addr().clone());
    let accept = async { listener.accept().await?.accept(b"").await };
    let (a, b) = in_time("a stream", try_join(connect, accept))
        .await
        .unwrap();
    (listener, [a, b])
}

/// Tests that a dropped stream sends what was written, that both sides can end at once, and that
/// a stream's end keeps nothing.
pub async fn streams_end(place: &Place) {
    let (listener, [mut a, mut b]) = stream(place, Place::options()).await;
    let sent: Vec<u8> = (0..100_000).map(|at: u32| at as u8).collect();
    let mut read = Vec::new();
    let write = async {
        a.write_all(&sent).await.unwrap();
        drop(a);
    };
    in_time("all bytes", join(write, b.read_to_end(&mut read)))
        .await
        .1
        .unwrap();
    assert!(read == sent);
    drop(b);
    assert_eq!(in_time("the end", listener.drain(LIMIT)).await, 0);

    let (listener, [mut a, mut b]) = stream(place, Place::options()).await;
    a.write_all(b"ping").await.unwrap();
    b.write_all(b"pong").await.unwrap();
    let (a_ended, b_ended) = in_time("both end", join(a.shutdown(), b.shutdown())).await;
    a_ended.unwrap();
    b_ended.unwrap();
    for (stream, text) in [(&mut a, "pong"), (&mut b, "ping")] {
        let mut read = String::new();
        in_time("what came", stream.read_to_string(&mut read))
            .await
            .unwrap();
        assert_eq!(read, text);
    }
    drop((a, b));
    assert_eq!(in_time("the end", listener.drain(LIMIT)).await, 0);

    // A side that was dropped after its end still confirms the end of the other one.
    let (listener, [mut a, mut b]) = stream(place, Place::options()).await;
    let mut b_read = Vec::new();
    b.write_all(b"question").await.unwrap();
    a.write_all(b"answer").await.unwrap();
    let ends = join(a.shutdown(), b.read_to_end(&mut b_read));
    let (ended, read) = in_time("the answer", ends).await;
    ended.unwrap();
    assert_eq!(read.unwrap(), 6);
    drop(a);
    in_time("the end", b.shutdown()).await.unwrap();
    drop(b);
    assert_eq!(in_time("the end", listener.drain(LIMIT)).await, 0);

    let (listener, both) = stream(place, Place::options()).await;
    drop(both);
    assert_eq!(in_time("the end", listener.drain(LIMIT)).await, 0);
}

/// Tests which connections a listener of streams refuses, and the reasons that it gives.
pub async fn streams_are_refused(place: &Place) {
    let (listener, connector) = place.streams(Place::options().connections(1)).await;
    let at = addr_of(&listener);
    let connect = |data: &'static [u8]| {
        let connector = connector.clone();
        tokio::spawn(async move { connector.connect_with(StreamAddr::Cm(at), data).await })
    };
    let error = connect(&[0; 25]).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
    assert!(error.to_string().contains("24"), "{error}");

    let connecting = connect(b"");
    let incoming = in_time("a peer", listener.accept()).await.unwrap();
    incoming.refuse("no such volume").await.unwrap();
    let error = in_time("why", connecting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert!(error.to_string().contains("no such volume"), "{error}");

    let connecting = connect(b"");
    let incoming = in_time("a peer", listener.accept()).await.unwrap();
    let error = incoming.accept(&[0; 165]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
    let error = in_time("why", connecting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");

    // Two strangers: a program of this library that sends no stream hello, and a foreign program.
    let strangers = [false, true].map(|foreign| {
        let side = place.side();
        let dial = side.rdma.connect_to(at).foreign(foreign).timeout(LIMIT);
        tokio::spawn(async move { (dial.private_data(b"S").await.unwrap_err(), side) })
    });
    let connecting = connect(b"");
    let incoming = in_time("a peer", listener.accept()).await.unwrap();
    let accepted = in_time("a stream", incoming.accept(b"")).await.unwrap();
    let connected = in_time("a stream", connecting).await.unwrap().unwrap();
    // The strangers' requests may come only after the stream.
    let accept = tokio::spawn(async move {
        let incoming = listener.accept().await.unwrap();
        let error = incoming.accept(b"").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        listener
    });
    for stranger in strangers {
        let (error, _side) = in_time("a refusal", stranger).await.unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    }
    // All streams of the listener are in use: it refuses another one with that reason.
    let other = Place::options()
        .connector(&place.device, &Place::workq())
        .unwrap();
    let error = in_time("full", other.connect(StreamAddr::Cm(at)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let listener = in_time("full", accept).await.unwrap();
    let stats = listener.stats();
    assert_eq!(
        (stats.strangers, stats.refused, stats.full, stats.accepted),
        (2, 2, 1, 1)
    );
    drop((accepted, connected, listener));
    let nobody = in_time("nobody", other.connect(StreamAddr::Cm(at))).await;
    let error = nobody.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
}

/// Tests that with `or_tcp` a listener also listens by TCP at the same port number, and a connector
/// falls back to TCP there.
pub async fn streams_go_on_by_tcp(place: &Place) {
    // Allow 8 connections: the memory of a failed attempt is freed only with its queue pair.
    let options = Place::options().connections(8).or_tcp(true);
    let (listener, connector) = place.streams(options).await;
    let at = addr_of(&listener);
    assert_eq!(listener.tcp_addr(), Some(at));
    let workq = Place::workq();
    let plain = options.bind(&place.device, &workq, StreamAddr::Tcp(at));
    assert_eq!(plain.await.unwrap_err().kind(), ErrorKind::AlreadyExist);
    // Connect to both kinds of address at once.
    let connect = async {
        let by_cm = connector.connect(StreamAddr::Cm(at)).await.unwrap();
        (by_cm, connector.connect(at).await.unwrap())
    };
    let accept = async {
        let mut each = Vec::new();
        for _ in 0..2 {
            each.push(listener.accept().await.unwrap().accept(b"").await.unwrap());
        }
        each
    };
    let (mut dialled, mut accepted) = in_time("both", join(connect, accept)).await;
    in_time("bytes", crosses(&mut dialled.0, &mut accepted[0])).await;
    in_time("bytes", crosses(&mut dialled.1, &mut accepted[1])).await;
    drop((dialled, accepted));
    // After a refusal by the listener, the connector does not try TCP.
    let refuse = async {
        listener.accept().await.unwrap().refuse("no").await.unwrap();
        drop(listener.accept().await.unwrap());
        drop(listener.accept().await.unwrap().accept(b""));
        let longer = listener.accept().await.unwrap().accept(&[0; 165]).await;
        assert_eq!(longer.unwrap_err().kind(), ErrorKind::InvalidValue);
    };
    let refused = async {
        let mut kinds = Vec::new();
        for _ in 0..4 {
            kinds.push(
                connector
                    .connect(StreamAddr::Cm(at))
                    .await
                    .unwrap_err()
                    .kind(),
            );
        }
        kinds
    };
    let ((), kinds) = in_time("refusals", join(refuse, refused)).await;
    let without = ErrorKind::ConnectionAborted;
    assert_eq!(kinds, [ErrorKind::NotPermitted, without, without, without]);
    assert_eq!(listener.stats().refused, 4);
    drop(listener);
    // The listener listens by TCP only.
    let addr = SocketAddr::new(place.ip, 0);
    let listener = options
        .bind(&place.device, &Place::workq(), addr)
        .await
        .unwrap();
    let at = listener.tcp_addr().unwrap();
    let accept = async { listener.accept().await.unwrap().accept(b"").await };
    let met = join(connector.connect(StreamAddr::Cm(at)), accept);
    let (connected, accepted) = in_time("by TCP", met).await;
    in_time(
        "bytes",
        crosses(&mut connected.unwrap(), &mut accepted.unwrap()),
    )
    .await;
}
