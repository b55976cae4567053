//! The settings of services and clients, and the calls that make them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::channel::Channel;
use super::connection::{At, Connection};
use super::greeting::{self, Answer, Hello};
use super::inbox::Inbox;
use super::listener::Listener;
use super::service::Service;
use super::socket::{self, Socket};
use crate::device::{Device, Representor};
use crate::error::{Error, ErrorKind, Result};

const LISTEN_TCP: &str = "ChannelBuilder::listen_tcp";
const CONNECT_TCP: &str = "ChannelBuilder::connect_tcp";
const LISTEN: &str = "ChannelBuilder::listen";
const CONNECT: &str = "ChannelBuilder::connect";

/// Builds a [`Service`] or connects a [`Channel`].
///
/// ```
/// use std::net::SocketAddr;
/// use tokio_doca::{Device, channel::{Channel, ChannelBuilder}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// // Each side sets its limits; the smaller message size is valid for both.
/// let limits: fn() -> ChannelBuilder = || Channel::builder().max_message_size(256).send_queue_size(8);
/// # let addr: SocketAddr = "127.0.0.1:0".parse().expect("an address");
/// let service = limits().listen_tcp(&device, addr, "answers").await?;
/// let addr = service.local_addr().expect("it listens at a TCP address");
/// let connect = limits().connect_tcp(&device, addr, "answers");
/// let (channel, client) = tokio::try_join!(connect, service.accept())?;
/// assert_eq!(channel.max_message_size(), 256);
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is built before listen or connect"]
pub struct ChannelBuilder {
    pub(super) max_message: usize,
    pub(super) send_queue: usize,
    pub(super) recv_queue: usize,
    pub(super) max_peers: usize,
}

impl ChannelBuilder {
    pub(super) fn new() -> ChannelBuilder {
        ChannelBuilder {
            max_message: Channel::MAX_MESSAGE_SIZE,
            send_queue: 10,
            recv_queue: 10,
            max_peers: 512,
        }
    }

    /// Sets the maximum size of a message in bytes, in either direction: 1 to 4,080. Defaults to
    /// 4,080. A connection uses the smaller value of its two sides.
    #[doc(alias = "doca_comm_channel_ep_set_max_msg_size")]
    #[doc(alias = "doca_comch_client_set_max_msg_size")]
    #[doc(alias = "doca_comch_server_set_max_msg_size")]
    pub fn max_message_size(mut self, bytes: usize) -> ChannelBuilder {
        self.max_message = bytes;
        self
    }

    /// Sets the size of each connection's send queue, in messages: 1 to 8,192. Defaults to 10. The
    /// queue has the messages that the socket has not taken yet.
    #[doc(alias = "doca_comm_channel_ep_set_send_queue_size")]
    #[doc(alias = "doca_comch_client_task_send_set_conf")]
    #[doc(alias = "doca_comch_server_task_send_set_conf")]
    pub fn send_queue_size(mut self, messages: usize) -> ChannelBuilder {
        self.send_queue = messages;
        self
    }

    /// Sets the size of each connection's receive queue, in messages: 1 to 8,192. Defaults to 10.
    /// The queue has the bytes that the crate has read ahead of the application: at most this
    /// number of messages of the maximum size.
    #[doc(alias = "doca_comm_channel_ep_set_recv_queue_size")]
    #[doc(alias = "doca_comch_client_set_recv_queue_size")]
    #[doc(alias = "doca_comch_server_set_recv_queue_size")]
    pub fn recv_queue_size(mut self, messages: usize) -> ChannelBuilder {
        self.recv_queue = messages;
        self
    }

    /// Sets how many peers of a service may be connected at once, at least 1. Defaults to 512. A
    /// further client's `connect` fails with `Full`.
    #[doc(alias = "doca_comm_channel_get_service_max_num_connections")]
    #[doc(alias = "doca_comch_cap_get_max_clients")]
    pub fn max_peers(mut self, peers: usize) -> ChannelBuilder {
        self.max_peers = peers;
        self
    }

    fn check(&self, op: &'static str, service: &str) -> Result<()> {
        let wrong = |text| Err(Error::new(ErrorKind::InvalidValue, op, text));
        for (what, value, max) in [
            (
                "max_message_size",
                self.max_message,
                Channel::MAX_MESSAGE_SIZE,
            ),
            ("send_queue_size", self.send_queue, Channel::MAX_QUEUE_SIZE),
            ("recv_queue_size", self.recv_queue, Channel::MAX_QUEUE_SIZE),
            ("max_peers", self.max_peers, usize::MAX),
        ] {
            if value == 0 || value > max {
                return wrong(format!("{what} is {value}: it is 1 to {max}"));
            }
        }
        if !greeting::is_name(service) {
            let (len, max) = (service.len(), Channel::MAX_SERVICE_NAME_LEN);
            return wrong(format!(
                "the service's name has {len} bytes: 1 to {max}, and none of them 0"
            ));
        }
        Ok(())
    }

    /// Offers a service on a representor. Only clients of the represented function can reach the
    /// service. The call needs a Tokio runtime. The service listens until it is dropped.
    ///
    /// # Errors
    ///
    /// `AlreadyExist` if a process of this user has a service of that name on the representor;
    /// `NotFound` if the represented function has gone; `NotSupported` if the representor's device
    /// connects host and DPU by TCP only ([`listen_tcp`](ChannelBuilder::listen_tcp));
    /// `InvalidValue` for a name that is empty, is longer than 32 bytes or contains a zero byte,
    /// and for sizes that are out of their ranges; `NotPermitted` if this user has no id in the
    /// process's user namespace; `BadState` without a runtime.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    #[doc(alias = "doca_comm_channel_ep_listen")]
    #[doc(alias = "doca_comm_channel_ep_set_device_rep")]
    pub fn listen(self, representor: &Representor, service: &str) -> Result<Service> {
        self.check(LISTEN, service)?;
        representor
            .check()
            .map_err(|error| error.with_call(LISTEN))?;
        let (device, info) = (representor.device(), representor.info());
        let domain = device.adapter().channel_domain(Some(info));
        let domain = domain.map_err(|error| error.with_call(LISTEN))?;
        let at = At::here(LISTEN, device)?;
        let listener = Listener::unix(LISTEN, &socket::name(LISTEN, &domain, service)?)?;
        Ok(Service::new(self, service, listener, at))
    }

    /// Offers a service at a TCP address of this machine. With port 0 the system chooses a free
    /// port ([`Service::local_addr`]). `device` may be any device: it is the one that
    /// [`Service::device`] and [`Channel::device`] return. Every client that can reach the address
    /// can reach the service.
    ///
    /// # Errors
    ///
    /// `AlreadyExist` if the address is in use; `InvalidValue` and `BadState` as
    /// [`listen`](ChannelBuilder::listen); otherwise the system's error about the address.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    pub async fn listen_tcp(
        self,
        device: &Device,
        addr: SocketAddr,
        service: &str,
    ) -> Result<Service> {
        self.check(LISTEN_TCP, service)?;
        let at = At::here(LISTEN_TCP, device)?;
        let listener = Listener::tcp(LISTEN_TCP, addr).await?;
        Ok(Service::new(self, service, listener, at))
    }

    /// Connects from `device`, a function of the host, to the service of that name on the
    /// function's representor. Waits until the service accepts the connection.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if no such service listens; `Full` if the service has its maximum number
    /// of peers; `TimedOut` if the service's backlog was full for 5 s, since the service does not
    /// accept or too many clients connect; `ConnectionReset` if the service ends meanwhile;
    /// `NotPermitted` if another user has taken the service's name, or if this user has no id in
    /// the process's user namespace; `NotSupported` on a port of the DPU, and on devices that
    /// connect host and DPU by TCP only ([`connect_tcp`](ChannelBuilder::connect_tcp));
    /// `UnsupportedVersion` if the service has another version of the protocol; `InvalidValue` and
    /// `BadState` as [`listen`](ChannelBuilder::listen).
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the connection ends. If the service has already
    /// accepted it, the service's Channel ends as well.
    #[doc(alias = "doca_comm_channel_ep_connect")]
    #[doc(alias = "doca_comm_channel_ep_set_device")]
    pub async fn connect(self, device: &Device, service: &str) -> Result<Channel> {
        self.check(CONNECT, service)?;
        let domain = device.adapter().channel_domain(None);
        let domain = domain.map_err(|error| error.with_call(CONNECT))?;
        let at = At::here(CONNECT, device)?;
        let socket = socket::connect(CONNECT, &socket::name(CONNECT, &domain, service)?).await?;
        let greeted = self.greet(socket, service, at).await;
        greeted.map_err(|error| error.with_call(CONNECT))
    }

    /// Connects to the service of that name at a TCP address. `device` may be any device: it is the
    /// one that [`Channel::device`] returns. Waits until the service accepts the connection.
    ///
    /// # Errors
    ///
    /// As [`connect`](ChannelBuilder::connect); `ConnectionReset` also if another kind of server
    /// listens there; otherwise the system's error about the address.
    ///
    /// # Panics
    ///
    /// Panics in a Tokio runtime whose I/O or time driver is not enabled.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](ChannelBuilder::connect).
    pub async fn connect_tcp(
        self,
        device: &Device,
        addr: SocketAddr,
        service: &str,
    ) -> Result<Channel> {
        self.check(CONNECT_TCP, service)?;
        let at = At::here(CONNECT_TCP, device)?;
        let socket = Socket::connect_tcp(CONNECT_TCP, addr).await?;
        let greeted = self.greet(socket, service, at).await;
        greeted.map_err(|error| error.with_call(CONNECT_TCP))
    }

    /// Greets the service, as its client.
    async fn greet(self, socket: Socket, service: &str, at: At) -> Result<Channel> {
        let hello = Hello {
            max_message: self.max_message as u16,
            service,
        };
        let mut inbox = Inbox::new(greeting::LEN_MAX, 1);
        let reset = |text| Error::new(ErrorKind::ConnectionReset, None, text);
        let gone = |_| reset("the service has ended before it answered");
        socket.write_frame(&hello.bytes()).await.map_err(gone)?;
        let answer = socket.read_frame(&mut inbox).await.map_err(gone)?;
        let Some((answer, theirs)) = Answer::parse(&answer) else {
            return Err(reset("what listens there is no service"));
        };
        if let Some((kind, text)) = answer.refusal() {
            return Err(Error::new(kind, None, text));
        }
        let connection = self.connection(socket, inbox, theirs, at);
        connection.log("connected", None);
        Ok(Channel(Arc::new(connection)))
    }

    /// Returns a connection between a side with these settings and a peer that takes messages of at
    /// most `theirs` bytes.
    pub(super) fn connection(
        &self,
        socket: Socket,
        mut inbox: Inbox,
        theirs: u16,
        at: At,
    ) -> Connection {
        let max_message = self.max_message.min(theirs.into());
        inbox.agree(max_message, self.recv_queue);
        Connection::new(socket, inbox, max_message, self.send_queue, at)
    }
}
