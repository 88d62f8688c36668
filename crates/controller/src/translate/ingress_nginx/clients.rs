//! How clients of the ports of Ingresses are treated, by the ConfigMap.

use model::{ForwardedHeaders, KeepRequestId, RequestId};

use super::super::clients::ClientPolicy;
use crate::ingress_nginx::{Compat, Globals};

/// How clients of both ports are treated, if GatewayParameters do not say so.
pub(super) fn defaults(globals: &Globals, policy: &mut ClientPolicy) {
    policy.x_real_ip = true;
    policy.forwarded = ForwardedHeaders::IngressNginx;
    policy.header_names = globals.header_names();
    policy.request_id = Some(RequestId { keep: KeepRequestId::Always, in_response: false });
    policy.min_tls_version = globals.min_tls_version().unwrap_or(policy.min_tls_version);
    policy.http2 = globals.bool("use-http2", true);
    globals.limit(&mut policy.limits);
}

/// How they are treated besides.
pub(super) fn change(globals: &Globals, compat: Compat, policy: &mut ClientPolicy) {
    policy.accept_proxy_protocol |= globals.bool("use-proxy-protocol", false);
    policy.trusted_proxies.extend(globals.trusted_proxies(compat));
}
