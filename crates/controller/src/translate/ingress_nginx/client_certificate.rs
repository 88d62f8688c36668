//! What endpoints learn of the certificates of clients.

use model::{FieldPart, FieldValue, Route, Variable};

use crate::ingress_nginx::ClientTls;

/// What endpoints learn of the certificate of a client. A template replaces what a client says of itself, in any spelling, also if nothing comes
/// out of it.
pub(super) fn put(route: &mut Route, client_tls: &ClientTls) {
    let variable = |variable: Variable| vec![FieldPart::Variable(variable)];
    let certificate = client_tls.passes.then(|| variable(Variable::ShownCertPem));
    let fields = [
        ("ssl-client-verify", variable(Variable::ClientCertVerify)),
        ("ssl-client-subject-dn", variable(Variable::ShownCertSubject)),
        ("ssl-client-issuer-dn", variable(Variable::ShownCertIssuer)),
        ("ssl-client-cert", certificate.unwrap_or_default()),
    ];
    let set = &mut route.policy.changes.request_headers.set;
    for (name, parts) in fields {
        set.retain(|(known, _)| known != name);
        set.push((name.to_owned(), FieldValue::Template(parts.into())));
    }
}
