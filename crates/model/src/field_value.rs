//! The value of a header field that a route sets or adds: text, or text with places for what is known about the request.

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// The same for every request.
    Text(String),
    /// Made for each request. If nothing but white space comes out, the field is left out.
    Template(Box<[FieldPart]>),
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldPart {
    /// This text.
    Text(String),
    /// The value of a variable; nothing if it has none.
    Variable(Variable),
}

impl FieldValue {
    /// The variables in it.
    pub fn variables(&self) -> impl Iterator<Item = Variable> {
        let parts: &[FieldPart] = match self {
            Self::Text(_) => &[],
            Self::Template(parts) => parts,
        };
        parts.iter().filter_map(|part| match part {
            FieldPart::Text(_) => None,
            FieldPart::Variable(variable) => Some(*variable),
        })
    }
}

impl From<String> for FieldValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Makes the enum and its tables from one list.
macro_rules! variables {
    ($($variant:ident $name:literal $meaning:literal;)*) => {
        /// Something that is known about a request, or about the connection that it arrived on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Variable {
            $(#[doc = $meaning] $variant,)*
        }

        impl Variable {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name between `${` and `}`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it stands for.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

variables! {
    ClientIp "client_ip" "The client's address, as trusted proxies or a PROXY protocol header report it.";
    ClientPort "client_port" "The client's port; empty if only a trusted proxy's header names the client.";
    RequestId "request_id" "The id of the request; needs `request_id` on the listener.";
    TlsVersion "tls_version" "`TLSv1.2` or `TLSv1.3`; empty without TLS.";
    Sni "sni" "The name that the client asked for in the TLS handshake (SNI), in lower case; empty if it asked for none.";
    ClientCert "client_cert" "The client's certificate in the form of the `Client-Cert` header (RFC 9440); empty if it showed none.";
    ClientCertPem "client_cert_pem" "The client's certificate as PEM, percent-encoded; empty if it showed none.";
    ClientCertSubject "client_cert_subject" "The subject of the client's certificate (RFC 4514); empty if it showed none.";
    ClientCertIssuer "client_cert_issuer" "The issuer of the client's certificate (RFC 4514); empty if it showed none.";
    ClientCertVerify "client_cert_verify" "`SUCCESS` if the client's certificate is one that `client_ca` has signed, `FAILED:` and why if not, `NONE` if it showed none.";
    ShownCertPem "shown_cert_pem" "As `client_cert_pem`, also of a certificate that `client_ca` has not signed, which proves nothing.";
    ShownCertSubject "shown_cert_subject" "As `client_cert_subject`, also of a certificate that `client_ca` has not signed, which proves nothing.";
    ShownCertIssuer "shown_cert_issuer" "As `client_cert_issuer`, also of a certificate that `client_ca` has not signed, which proves nothing.";
    ClientCertSha256 "client_cert_sha256" "The SHA-256 fingerprint of the client's certificate, in lower-case hex; empty if it showed none.";
    Listener "listener" "The name of the listener.";
    Route "route" "The name of the route.";
    Cluster "cluster" "The name of the cluster that serves the request.";
    Endpoint "endpoint" "Address and port of the endpoint that responded; only in the headers of responses.";
    Time "time" "The time when the field is written: UTC, in RFC 3339, with milliseconds.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Variable::ALL.iter().map(|variable| variable.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Variable::ALL.len());
    }
}
