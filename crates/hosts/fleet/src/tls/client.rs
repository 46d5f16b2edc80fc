//! The controller's side of the handshake.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    sync::Arc,
};

use fathom_model::units::Nanos;
use fathom_sys::{clock, socket::socket_options};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, Stream,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

use super::{
    handshake::{BUSY, DeadlineStream, UNACKNOWLEDGED_MAX, WELCOME, provider},
    key::Key,
    pump::pump,
};
use crate::{Error, threads};

/// The time limit for a server to accept a connection, and again for the handshake: seconds suffice even across the world.
const HANDSHAKE_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Accepts only the certificate whose fingerprint is in the key, if the server also proves that it has the private key.
#[derive(Debug)]
struct PinnedCertVerifier {
    key: Key,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.key.matches_certificate(certificate) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Connects to a server, checks its certificate, and sends the token; returns the plain stream to the agent that it starts.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::NotAFathomServer`], [`Error::WrongFingerprint`], [`Error::WrongToken`], [`Error::Busy`] and
/// [`Error::TooManyConnections`].
pub fn connect(address: &str, key: &Key) -> Result<UnixStream, Error> {
    let unreachable = |cause| Error::Unreachable { address: address.to_owned(), cause };
    let tcp = connect_tcp(address).map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    socket_options::set_unacknowledged_max(&tcp, UNACKNOWLEDGED_MAX).map_err(|error| unreachable(error.source))?;
    let mut tls = session(key)?;
    let mut io = DeadlineStream { tcp: &tcp, deadline: clock::now() + HANDSHAKE_TIMEOUT };
    tls.complete_io(&mut io).map_err(|cause| handshake_error(address, cause))?;
    let mut stream = Stream::new(&mut tls, &mut io);
    let mut answer = [0];
    let shown =
        stream.write_all(&key.token.0).and_then(|()| stream.flush()).and_then(|()| stream.read_exact(&mut answer));
    let address = || address.to_owned();
    match (shown, answer) {
        (Ok(()), [WELCOME]) => {}
        (Ok(()), [BUSY]) => return Err(Error::Busy { address: address() }),
        (Ok(()), _) => {
            return Err(Error::NotAFathomServer { address: address(), cause: io::ErrorKind::InvalidData.into() });
        }
        (Err(cause), _) if cause.kind() == io::ErrorKind::TimedOut => {
            return Err(Error::NotAFathomServer { address: address(), cause });
        }
        // A server sends no reply to a wrong token.
        (Err(_), _) => return Err(Error::WrongToken { address: address() }),
    }
    let system = |cause| Error::System { what: "make a pair of sockets".to_owned(), cause };
    let (near, far) = UnixStream::pair().map_err(system)?;
    // The result of the pump is visible at both of its ends.
    let pumping = threads::start("tls", move || drop(pump(tls.into(), &tcp, &far)));
    let no_thread = |cause| Error::System { what: "carry the connection".to_owned(), cause };
    pumping.map(|_| near).map_err(no_thread)
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, HANDSHAKE_TIMEOUT.as_duration()) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn session(key: &Key) -> Result<ClientConnection, Error> {
    let wrong = |cause: rustls::Error| Error::Certificate { what: "set TLS up", cause: cause.into() };
    let verifier = PinnedCertVerifier { key: key.clone(), provider: provider() };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(wrong)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // The certificate is identified by its fingerprint, so no server name is sent.
    config.enable_sni = false;
    let name = ServerName::try_from("fathom").expect("a plain word is a name");
    ClientConnection::new(Arc::new(config), name).map_err(wrong)
}

/// Converts a failed handshake into the error that it implies about the server.
fn handshake_error(address: &str, cause: io::Error) -> Error {
    let address = address.to_owned();
    let tls = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            Error::WrongFingerprint { address }
        }
        Some(rustls::Error::AlertReceived(AlertDescription::UserCanceled)) => Error::TooManyConnections { address },
        _ => Error::NotAFathomServer { address, cause },
    }
}
