//! How responses are compressed, which the ConfigMap says for all Ingresses.

use serde_json::json;

use super::super::value;
use super::Reading;

/// What ingress-nginx compresses if `gzip-types` does not say so.
const TYPES: &str = "application/atom+xml application/javascript application/x-javascript application/json application/rss+xml \
    application/vnd.ms-fontobject application/x-font-ttf application/x-web-app-manifest+json application/xhtml+xml application/xml \
    font/opentype image/svg+xml image/x-icon text/css text/javascript text/plain text/x-component";

/// nginx compresses these in any case.
const HTML: &str = "text/html";

/// Types in one list. Each response is compared with all of them.
const TYPES_MAX: usize = 64;

impl Reading<'_> {
    pub(super) fn compression(&mut self) {
        let encodings = [("enable-brotli", "br"), ("use-gzip", "gzip")];
        let encodings: Vec<&str> =
            encodings.iter().filter(|(key, _)| self.globals.bool(key, false)).map(|(_, encoding)| *encoding).collect();
        if encodings.is_empty() {
            return;
        }
        let listed = self.globals.text("gzip-types").unwrap_or(TYPES);
        let types = value::words(listed).filter(|kind| *kind != HTML && is_media_type(kind));
        let types: Vec<&str> = std::iter::once(HTML).chain(types).take(TYPES_MAX).collect();
        self.route.insert(
            "compress".to_owned(),
            json!({
                "encodings": encodings,
                "level": self.globals.int("gzip-level", 1).clamp(1, 9),
                "minSize": format!("{}B", self.globals.int("gzip-min-length", 256).min(1 << 30)),
                "types": types,
            }),
        );
    }
}

fn is_media_type(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    text.split_once('/').is_some_and(|(kind, subtype)| is_part(kind) && is_part(subtype))
}
