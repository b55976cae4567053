//! Certificates for tests and demonstrations.

use std::sync::Arc;

use rcgen::CertifiedKey;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Result;

/// Makes a key and a self-signed certificate for `name`. A real service has a certificate of an
/// authority.
pub fn identity(name: &str) -> Result<(TlsAcceptor, CertificateDer<'static>)> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let certificate = cert.der().clone();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der())?;
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

/// Returns a connector that trusts only this certificate.
pub fn trusting(certificate: CertificateDer<'static>) -> Result<TlsConnector> {
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate)?;
    let config = ClientConfig::builder().with_root_certificates(trusted);
    Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
}
