//! The configurations of the contenders, by mode. There is one file for HTTP/1.1. The other modes are this file with
//! only the necessary lines replaced, so that nothing else can differ.

use std::borrow::Cow;

use super::contender::Mode;

/// A configuration for each mode.
pub type Templates = Vec<(Mode, Cow<'static, str>)>;

pub fn steelyard() -> Templates {
    let http = include_str!("rivals/steelyard-http.yaml");
    vec![(Mode::Http, http.into()), (Mode::H2c, changed(http, &[("  origin:\n", "  origin:\n    protocol: h2c\n")]))]
}

pub fn nginx() -> Templates {
    let http = include_str!("rivals/nginx-http.conf");
    let h2 = ("@LISTEN@ backlog=4096;", "@LISTEN@ http2 backlog=4096;\n        http2_max_concurrent_streams 1024;");
    let to_origin = "proxy_pass http://origin;
            # The defaults, HTTP/1.0 and `Connection: close`, would connect to the origin for each request.
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";";
    vec![(Mode::Http, http.into()), (Mode::H2c, changed(http, &[h2, (to_origin, "grpc_pass grpc://origin;")]))]
}

pub fn haproxy() -> Templates {
    let http = include_str!("rivals/haproxy-http.cfg");
    let h2 = ("127.0.0.1:@LISTEN@", "127.0.0.1:@LISTEN@ proto h2");
    let h2_origin = ("127.0.0.1:@ORIGIN@", "127.0.0.1:@ORIGIN@ proto h2");
    vec![(Mode::Http, http.into()), (Mode::H2c, changed(http, &[h2, h2_origin]))]
}

pub fn envoy() -> Templates {
    let http = include_str!("rivals/envoy-http.yaml");
    let h2 = ("codec_type: HTTP1", "codec_type: HTTP2");
    let h2_origin = (
        "      load_assignment:",
        "      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment:",
    );
    vec![(Mode::Http, http.into()), (Mode::H2c, changed(http, &[h2, h2_origin]))]
}

/// The template with these pieces replaced, each of which must occur in it exactly once: a bench that does not compare
/// what it claims is worse than none.
fn changed(template: &str, changes: &[(&str, &str)]) -> Cow<'static, str> {
    let mut text = template.to_owned();
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in a template");
        text = text.replace(from, to);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_finds_its_line() {
        // That is asserted while the templates are made. This checks that a mode differs from the mode that it was made
        // from.
        let check = |templates: Templates, modes: &[Mode]| {
            let modes_there: Vec<Mode> = templates.iter().map(|(mode, _)| *mode).collect();
            assert_eq!(modes_there, modes);
            assert_ne!(templates[0].1, templates[1].1);
        };
        let all = [Mode::Http, Mode::H2c];
        check(steelyard(), &all);
        check(nginx(), &all);
        check(haproxy(), &all);
        check(envoy(), &all);
    }
}
