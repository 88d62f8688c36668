//! How clients of the ports of Ingresses are treated, by the ConfigMap.

use model::{ForwardedHeaders, HeaderNames, KeepRequestId, RequestId};

use super::super::clients::ClientPolicy;
use crate::ingress_nginx::{Compat, Globals};

/// How clients of both ports are treated, if GatewayParameters do not say so.
pub(super) fn defaults(globals: &Globals, policy: &mut ClientPolicy) {
    policy.x_real_ip = true;
    policy.forwarded = ForwardedHeaders::IngressNginx;
    if globals.bool("ignore-invalid-headers", true) {
        let underscores = globals.bool("enable-underscores-in-headers", false);
        policy.header_names = if underscores { HeaderNames::Underscores } else { HeaderNames::Strict };
    }
    policy.request_id = Some(RequestId { keep: KeepRequestId::Always, in_response: false });
    policy.min_tls_version = globals.min_tls_version().unwrap_or(policy.min_tls_version);
    policy.http2 = globals.bool("use-http2", true);
    globals.limit(&mut policy.limits);
}

/// How they are treated besides.
pub(super) fn change(globals: &Globals, compat: Compat, policy: &mut ClientPolicy) {
    policy.accept_proxy_protocol |= globals.bool("use-proxy-protocol", false);
    if globals.bool("use-forwarded-headers", false) || globals.bool("enable-real-ip", false) {
        let mut trusted = globals.networks("proxy-real-ip-cidr");
        match compat {
            Compat::Exact if trusted.is_empty() => trusted.extend("0.0.0.0/0".parse::<ipnet::IpNet>()),
            Compat::Exact => {}
            // Everybody could name any address, and pass an allowlist.
            Compat::Safe => trusted.retain(|network| network.prefix_len() > 0),
        }
        policy.trusted_proxies.extend(trusted);
    }
}
