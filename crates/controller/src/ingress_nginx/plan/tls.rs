//! Certificates: those that clients of a host show, and what is shown to endpoints.

use model::ClientCertMode;

use super::super::path::is_expression;
use super::super::value;
use super::{Reading, Verdict};

/// TLS to endpoints, by proxy-ssl-secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySsl {
    /// The Secret with the certificate, in the namespace of the Ingress. Its CA certificates have signed those of endpoints.
    pub secret: String,
    /// Certificates of endpoints are verified, and have this name.
    pub verify: Option<String>,
    /// Endpoints are asked for this name.
    pub sni: Option<String>,
}

/// What clients of a host show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// The Secret with the CA certificates, in the namespace of the Ingress.
    pub secret: String,
    /// Which clients pass.
    pub mode: model::ClientCertMode,
    /// Endpoints get the certificate.
    pub passes: bool,
    /// An expression that is found in the subject of the certificate.
    pub subject: Option<String>,
    /// The URL of a page for other clients.
    pub error_page: Option<String>,
}

impl ClientTls {
    /// Whether no client passes this that would not pass the other one, of the same namespace.
    pub fn demands_as_much_as(&self, other: &Self) -> bool {
        let strictness = |mode: ClientCertMode| match mode {
            ClientCertMode::Required => 2,
            ClientCertMode::Optional => 1,
            ClientCertMode::Unsigned => 0,
        };
        self.secret == other.secret
            && strictness(self.mode) >= strictness(other.mode)
            && (other.subject.is_none() || other.subject == self.subject)
    }
}

impl Reading<'_> {
    /// Certificates of clients.
    pub(super) fn client_tls(&mut self) -> Option<ClientTls> {
        const OF_IT: [&str; 4] = [
            "auth-tls-verify-client",
            "auth-tls-verify-depth",
            "auth-tls-error-page",
            "auth-tls-pass-certificate-to-upstream",
        ];
        let Some(secret) = self.text("auth-tls-secret").map(str::to_owned) else {
            if self.text("auth-tls-match-cn").is_some() {
                let why = "auth-tls-secret is missing, so ingress-nginx asks for no certificate: write it";
                return self.refused_client_tls("auth-tls-match-cn", why);
            }
            self.idle(&OF_IT, "without auth-tls-secret, it has no effect");
            return None;
        };
        let Some((namespace, name)) = secret.split_once('/') else {
            let why = "write NAMESPACE/NAME; without it, ingress-nginx serves no request of the host";
            return self.refused_client_tls("auth-tls-secret", why);
        };
        if namespace != self.namespace {
            return self.refused_client_tls("auth-tls-secret", "the Secret is in another namespace; copy it");
        }
        let mode = match self.text("auth-tls-verify-client") {
            Some("off") if self.text("auth-tls-match-cn").is_none() => {
                self.tell("auth-tls-secret", Verdict::NoEffect, "auth-tls-verify-client is off");
                return None;
            }
            Some("off") => {
                let why = "auth-tls-verify-client is off, so that no client has a subject";
                return self.refused_client_tls("auth-tls-match-cn", why);
            }
            // ingress-nginx compares the subject of a certificate that anybody can make.
            Some("optional_no_ca") if self.text("auth-tls-match-cn").is_some() => {
                let why = "with optional_no_ca, no certificate is verified, so that a subject proves nothing";
                return self.refused_client_tls("auth-tls-match-cn", why);
            }
            Some("optional") => ClientCertMode::Optional,
            Some("optional_no_ca") => ClientCertMode::Unsigned,
            _ => ClientCertMode::Required,
        };
        let subject = self.text("auth-tls-match-cn").map(str::to_owned);
        if let Some(pattern) = &subject {
            // ingress-nginx ignores an expression without `CN=`, and so lets everybody in.
            if !pattern.contains("CN=") {
                return self.refused_client_tls("auth-tls-match-cn", "write CN= and an expression for the name");
            }
            if !is_expression(pattern) {
                let why = "it is no expression, or one that looks around or refers back: write it otherwise";
                return self.refused_client_tls("auth-tls-match-cn", why);
            }
        }
        let mut error_page = self.text("auth-tls-error-page").map(str::to_owned);
        if error_page.as_ref().is_some_and(|url| url.contains('$') || value::split_url(url).is_none()) {
            error_page = None;
            let why = "write a URL that begins with http:// or https://, without a variable; clients get 400 instead";
            self.tell("auth-tls-error-page", Verdict::Refused, why);
        }
        let passes = self.bool("auth-tls-pass-certificate-to-upstream", false);
        Some(ClientTls { secret: name.to_owned(), mode, passes, subject, error_page })
    }

    /// Closes the hosts of the Ingress, because one of these keys is refused.
    fn refused_client_tls(&mut self, name: &str, why: &str) -> Option<ClientTls> {
        self.close_for("auth-tls-secret", format!("{name} is refused: {why}"));
        self.tell(name, Verdict::Refused, why);
        None
    }

    /// Whether TLS ends at the endpoints.
    pub(super) fn passes_tls(&mut self) -> bool {
        let wanted = self.bool("ssl-passthrough", false);
        if wanted && !self.passes_tls {
            let why = "start the controller with --ingress-nginx-ssl-passthrough; if ingress-nginx runs without --enable-ssl-passthrough, it ignores \
                       the annotation: remove it";
            self.refuse("ssl-passthrough", why);
        }
        wanted && self.passes_tls
    }

    /// The certificate for endpoints.
    pub(super) fn proxy_ssl(&mut self) -> Option<ProxySsl> {
        const OF_IT: [&str; 6] = [
            "proxy-ssl-verify",
            "proxy-ssl-verify-depth",
            "proxy-ssl-name",
            "proxy-ssl-server-name",
            "proxy-ssl-protocols",
            "proxy-ssl-ciphers",
        ];
        let Some(secret) = self.text("proxy-ssl-secret").map(str::to_owned) else {
            self.idle(&OF_IT, "without proxy-ssl-secret, ingress-nginx ignores it");
            return None;
        };
        if !self.protocol().tls {
            self.tell("proxy-ssl-secret", Verdict::NoEffect, "endpoints do not speak TLS: see backend-protocol");
            return None;
        }
        let Some((namespace, name)) = secret.split_once('/') else {
            self.refuse("proxy-ssl-secret", "write NAMESPACE/NAME");
            return None;
        };
        if namespace != self.namespace {
            self.refuse("proxy-ssl-secret", "the Secret is in another namespace; copy it");
            return None;
        }
        let is_on = |this: &Self, key: &str| this.text(key).is_some_and(|word| word.eq_ignore_ascii_case("on"));
        let server_name = self.text("proxy-ssl-name").map(str::to_owned);
        let (verifies, sends) = (is_on(self, "proxy-ssl-verify"), is_on(self, "proxy-ssl-server-name"));
        if verifies && server_name.is_none() {
            self.refuse(
                "proxy-ssl-secret",
                "proxy-ssl-verify needs proxy-ssl-name, the name in the certificates of endpoints",
            );
            return None;
        }
        if server_name.as_ref().is_some_and(|name| name.contains(['$', ' '])) {
            self.refuse("proxy-ssl-secret", "proxy-ssl-name is one name, without a variable of nginx");
            return None;
        }
        Some(ProxySsl {
            secret: name.to_owned(),
            verify: server_name.clone().filter(|_| verifies),
            sni: server_name.filter(|_| sends),
        })
    }
}
