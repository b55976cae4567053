//! A service and its clients, in one process or two, and a client that can write arbitrary bytes.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Device,
    channel::{Channel, ChannelBuilder, Service},
    device::Representor,
};

/// Returns a name that no other test on this machine uses.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{what} {} {number}", std::process::id())
}

/// Opens a function of the host by its name.
pub fn function(name: &str) -> Device {
    Soft::builder().build().open(name).unwrap()
}

/// Opens a representor of the DPU by its name, at the port that belongs to it.
pub fn representor(name: &str) -> Representor {
    let port = ["p0", "p1"][usize::from(name.contains("pf1"))];
    let dpu = Soft::builder().view(View::Dpu).build();
    Representor::open(&dpu.open(port).unwrap(), name).unwrap()
}

/// Starts a service for clients of pf0.
pub fn service(builder: ChannelBuilder, name: &str) -> Service {
    builder.listen(&representor("hpf0"), name).unwrap()
}

/// Connects a client to a new service. Returns both ends.
pub async fn pair() -> (Channel, Channel) {
    pair_of(Channel::builder(), Channel::builder()).await
}

/// As [`pair`], with settings of the client and of the service.
pub async fn pair_of(client: ChannelBuilder, server: ChannelBuilder) -> (Channel, Channel) {
    let name = unique("pair");
    let service = service(server, &name);
    let pf0 = function("pf0");
    let (client, server) = tokio::join!(client.connect(&pf0, &name), service.accept());
    (client.unwrap(), server.unwrap())
}

/// A client that follows no protocol: a plain blocking socket.
pub struct Raw(pub UnixStream);

impl Raw {
    /// Connects to the socket of a service, as a client on the function with this `vuid` would.
    pub fn connect(vuid: &str, service: &str) -> std::io::Result<Raw> {
        let user = nix::unistd::geteuid();
        Raw::at(&format!("tokio-doca/{user}/{vuid}/{service}"))
    }

    /// Connects to the abstract Unix socket with this name.
    pub fn at(name: &str) -> std::io::Result<Raw> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        stream.set_read_timeout(Some(super::LIMIT))?;
        Ok(Raw(stream))
    }

    /// Connects as the client of pf0 would.
    pub fn of_pf0(service: &str) -> Raw {
        Raw::connect(representor("hpf0").info().vuid(), service).unwrap()
    }

    /// Sends a valid greeting, for messages of at most `max_message` bytes.
    pub fn greet(&mut self, service: &str, max_message: u16) {
        self.0.write_all(&hello(service, max_message)).unwrap();
    }

    /// Reads the answer to the greeting, and returns its status.
    pub fn answer(&mut self) -> u8 {
        let mut answer = [0; 12];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], *b"\0\0\0\x08TDCH");
        answer[9]
    }

    /// Waits, and returns true if the other side has hung up.
    pub fn is_over(&mut self) -> bool {
        match self.0.read(&mut [0; 64]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Listens at the abstract Unix socket with this name.
pub fn listen_at(name: &str) -> UnixListener {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

pub fn hello(service: &str, max_message: u16) -> Vec<u8> {
    let mut message = b"TDCH\x01".to_vec();
    message.extend_from_slice(&max_message.to_be_bytes());
    message.extend_from_slice(service.as_bytes());
    frame(&message)
}

pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}
