//! Certificates: those that clients of a host show, and what is shown to endpoints.

use super::{ClientTls, ProxySsl, Reading, Verdict};

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
        if self.text("auth-tls-match-cn").is_some() {
            let why = "subjects of certificates are not compared; let the application compare `ssl-client-subject-dn`, \
                or issue these certificates by a CA of their own";
            return self.refused_client_tls("auth-tls-match-cn", why);
        }
        let verify = match self.text("auth-tls-verify-client") {
            Some("off") => {
                self.tell("auth-tls-secret", Verdict::NoEffect, "auth-tls-verify-client is off");
                return None;
            }
            Some("optional") => {
                let why = "a client shows a good certificate (on) or anything (optional_no_ca)";
                return self.refused_client_tls("auth-tls-verify-client", why);
            }
            Some("optional_no_ca") => false,
            _ => true,
        };
        self.tell("auth-tls-error-page", Verdict::Refused, "the handshake fails, so there is no page to go to");
        Some(ClientTls {
            secret: name.to_owned(),
            verify,
            passes: self.bool("auth-tls-pass-certificate-to-upstream", false),
        })
    }

    /// Closes the hosts of the Ingress, because one of these keys is refused.
    fn refused_client_tls(&mut self, name: &str, why: &str) -> Option<ClientTls> {
        self.close_for("auth-tls-secret", format!("{name} is refused: {why}"));
        self.tell(name, Verdict::Refused, why);
        None
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
