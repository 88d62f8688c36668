//! What all verifiers of certificates have in common.

/// The methods of a rustls verifier that check a handshake signature, by which the other side proves that it holds the key of its
/// certificate. Verifiers of servers and of clients have the same ones. `$provider` is the path from `self` to the `CryptoProvider`.
macro_rules! verifies_signatures {
    ($($provider:tt)+) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$($provider)+.signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$($provider)+.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$($provider)+.signature_verification_algorithms.supported_schemes()
        }
    };
}
