//! TLS by rustls on RDMA streams, and certificates for tests and demonstrations.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rcgen::CertifiedKey;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_doca::stream::StreamAddr;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{Listener, RdmaIo, Result};

/// How many peers agree on keys at once, and for how long at most.
const AGREEING: usize = 64;
const LIMIT: Duration = Duration::from_secs(10);

/// Accepts encrypted streams. Peers agree on keys side by side, so that a slow one holds up no
/// other.
pub struct TlsListener {
    listener: Listener,
    acceptor: TlsAcceptor,
    agreeing: JoinSet<io::Result<(TlsStream<RdmaIo>, StreamAddr)>>,
}

impl TlsListener {
    /// Encrypts the streams of this listener.
    pub fn new(listener: Listener, acceptor: TlsAcceptor) -> TlsListener {
        TlsListener {
            listener,
            acceptor,
            agreeing: JoinSet::new(),
        }
    }
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<RdmaIo>;
    type Addr = StreamAddr;

    async fn accept(&mut self) -> (TlsStream<RdmaIo>, StreamAddr) {
        loop {
            let has_room = self.agreeing.len() < AGREEING;
            tokio::select! {
                (stream, addr) = axum::serve::Listener::accept(&mut self.listener), if has_room => {
                    let stream = timeout(LIMIT, self.acceptor.accept(stream));
                    self.agreeing.spawn(async move { Ok((stream.await??, addr)) });
                }
                Some(agreed) = self.agreeing.join_next() => if let Ok(Ok(agreed)) = agreed {
                    return agreed;
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<StreamAddr> {
        axum::serve::Listener::local_addr(&self.listener)
    }
}

/// Makes a key, and a certificate for this name that it has signed itself. A service has those of
/// an authority.
pub fn identity(name: &str) -> Result<(TlsAcceptor, CertificateDer<'static>)> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let certificate = cert.der().clone();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der())?;
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

/// Trusts this certificate, and no other one.
pub fn trusting(certificate: CertificateDer<'static>) -> Result<TlsConnector> {
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate)?;
    let config = ClientConfig::builder().with_root_certificates(trusted);
    Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
}
