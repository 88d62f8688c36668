//! Connects once before a load starts, so that the user learns immediately, and in one sentence, what is wrong.
//!
//! Job: find the first address of the host that accepts a connection, and whether the server speaks HTTP/2; explain why no address does. Not
//! its job: failures during the load, which are in its report.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error};

use super::socket::{Manner, Offer, Socket, Tls, Trust};
use super::target::Url;

/// How to connect.
pub(super) struct Attempt<'a> {
    pub trust: Trust<'a>,
    pub offer: Offer,
    pub manner: Manner<'a>,
    /// The address of this host to connect from; if `None`, the kernel chooses.
    pub source: Option<IpAddr>,
    pub timeout: Duration,
}

/// The server that was reached.
pub(super) struct Reached {
    pub address: SocketAddr,
    pub tls: Option<Tls>,
    /// Whether the server chose HTTP/2 in the TLS handshake.
    pub chose_http2: bool,
}

/// Tries the addresses of the host one after the other until one accepts a connection, which is closed again.
///
/// # Errors
/// No address accepts a connection, or TLS fails. The error explains the first failure in one sentence, and says what to do.
pub(super) async fn reach(url: &Url, attempt: &Attempt<'_>) -> io::Result<Reached> {
    let offered =
        url.is_secure.then(|| Tls::new(&url.name, attempt.trust, attempt.offer, attempt.manner)).transpose()?;
    let mut first_error = None;
    for address in url.addresses()? {
        let connecting = Socket::connect(address, attempt.source, offered.as_ref());
        let error = match tokio::time::timeout(attempt.timeout, connecting).await {
            Ok(Ok(socket)) => return settle(url, attempt.offer, address, offered, &socket),
            Ok(Err(error)) => explained(url, attempt.offer, address, &error),
            Err(_) => failed(format!("{} did not answer within {:?}", place(url, address), attempt.timeout)),
        };
        first_error.get_or_insert(error);
    }
    Err(first_error.unwrap_or_else(|| failed(format!("{} has no address", url.name))))
}

/// Makes later connections offer only the protocol that this one chose, so that all connections use the same.
fn settle(url: &Url, offer: Offer, address: SocketAddr, tls: Option<Tls>, socket: &Socket) -> io::Result<Reached> {
    let chose_http2 = socket.chose_http2() == Some(true);
    if tls.is_some() && matches!(offer, Offer::Http2 | Offer::Grpc) && !chose_http2 {
        return Err(failed(no_http2(&place(url, address), offer)));
    }
    let settled = if chose_http2 { Offer::Http2 } else { Offer::Http1 };
    Ok(Reached { address, tls: tls.map(|tls| tls.offering(settled)), chose_http2 })
}

fn no_http2(place: &str, offer: Offer) -> String {
    match offer {
        Offer::Grpc => format!("{place} does not speak HTTP/2 over TLS, which gRPC needs: enable it on the server"),
        _ => format!("{place} does not speak HTTP/2 over TLS: remove --http 2, or enable it on the server"),
    }
}

fn failed(why: String) -> io::Error {
    io::Error::other(why)
}

/// The host and port from the URL, plus the address if the host is a name.
fn place(url: &Url, address: SocketAddr) -> String {
    let Url { name, port, .. } = url;
    if address.ip().to_string() == *name { address.to_string() } else { format!("{name}:{port} ({address})") }
}

fn explained(url: &Url, offer: Offer, address: SocketAddr, error: &io::Error) -> io::Error {
    let place = place(url, address);
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let why = match (tls, error.kind()) {
        (Some(error), _) => of_tls(url, offer, &place, error),
        (None, io::ErrorKind::ConnectionRefused) => {
            format!("cannot connect to {place}: nothing listens there (connection refused)")
        }
        (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) if url.is_secure => {
            format!("{place} closed the connection during the TLS handshake: does it serve https on this port?")
        }
        _ => {
            let text = error.to_string();
            format!("cannot connect to {place}: {}", text.split(" (os error").next().unwrap_or_default())
        }
    };
    failed(why)
}

fn of_tls(url: &Url, offer: Offer, place: &str, error: &Error) -> String {
    let trust = "use --cacert FILE to trust another authority, or --insecure to accept any certificate";
    match error {
        // The latter two occur if a trusted authority has the same name as the issuer but another key.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => {
            format!("the certificate of {place} is not signed by an authority that this host trusts: {trust}")
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            format!("the certificate of {place} has expired: renew it, or use --insecure to accept it")
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            format!(
                "the certificate of {place} is not valid for the name {}: use a name that it contains, or --insecure to accept it",
                url.name
            )
        }
        Error::InvalidCertificate(why) if why.to_string().contains("CaUsedAsEndEntity") => {
            // `openssl req -x509` creates such certificates by default.
            format!(
                "the certificate of {place} belongs to an authority (CA:TRUE), not to a server: use --insecure to accept it"
            )
        }
        Error::InvalidCertificate(why) => {
            format!("the certificate of {place} is not valid ({why}): use --insecure to accept it")
        }
        Error::InvalidMessage(_) => {
            format!("{place} does not answer with TLS: use http:// if it speaks plain HTTP")
        }
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => match offer {
            Offer::Http2 | Offer::Grpc => no_http2(place, offer),
            _ => format!(
                "{place} speaks none of the offered HTTP versions over TLS: remove --http and --close if you use them"
            ),
        },
        _ => format!("the TLS handshake with {place} failed: {error}"),
    }
}
