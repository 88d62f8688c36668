//! What happens to the bodies of requests.

use model::{Decompression, RequestBody, RequestBuffer};

use super::{compression, count};
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong};
use crate::raw::RawRoute;

/// How the bodies of a route's requests are prepared; `None` if not at all.
pub fn request_body(route: &RawRoute, report: &mut Report) -> Option<RequestBody> {
    let buffer = route.buffer.as_ref().map(|written| {
        refuse_without_endpoint("buffer", written.location, route, report);
        let bytes_max = written.value.max_size.as_ref().map_or(defaults::BUFFERED_BYTES_MAX, |size| size.value.0);
        RequestBuffer { bytes_max: count(bytes_max) }
    });
    let decompression = route.decompress.as_ref().map(|written| {
        refuse_without_endpoint("decompress", written.location, route, report);
        let raw = &written.value;
        let encodings = match &raw.encodings {
            Some(encodings) => compression::encodings(encodings, report),
            None => defaults::ENCODINGS.into(),
        };
        Decompression {
            encodings,
            bytes_max: raw.max_size.as_ref().map_or(defaults::DECOMPRESSED_BYTES_MAX, |size| size.value.0),
            ratio_max: raw.max_ratio.as_ref().map_or(defaults::DECOMPRESSED_RATIO_MAX, |ratio| ratio.value.0),
        }
    });
    (buffer.is_some() || decompression.is_some()).then_some(RequestBody { buffer, decompression })
}

/// The largest body of a request of a route; `None` means that the listener decides it.
pub fn body_bytes_max(route: &RawRoute, report: &mut Report) -> Option<u64> {
    let written = route.max_body.as_ref()?;
    refuse_without_endpoint("max_body", written.location, route, report);
    Some(written.value.0)
}

fn refuse_without_endpoint(key: &str, location: Location, route: &RawRoute, report: &mut Report) {
    if route.redirect.is_some() || route.respond.is_some() {
        let wrong = Wrong::new(format!("`{key}` has no effect: no endpoint gets the bodies of this route's requests"));
        report.add(location, wrong.hint("remove it"));
    }
}
