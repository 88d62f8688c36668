//! Writes what an HTTP/1.1 endpoint gets, for the fuzz targets, which compare it with other implementations. Nothing else uses it.

use std::net::{Ipv4Addr, SocketAddr};

use model::ForwardedHeaders;
use wire::message::{Field, RequestHead};

use crate::exchange::transfer::Head;
use crate::http::headers::{self, Client};
use crate::policy::headers::RequestEdits;

/// Appends the head for the endpoint, of an untrusted client at 192.0.2.1.
pub fn write_request(out: &mut Vec<u8>, head: &RequestHead, arena: &[u8]) {
    let client = Client {
        address: SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 4711)),
        ip_text: b"192.0.2.1",
        local: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
        scheme: "http",
        forwarded: ForwardedHeaders::XForwarded,
        is_known: true,
        is_trusted: false,
        trusted_proxies: &[],
        secured: None,
        request_id: None,
        x_real_ip: false,
        call: None,
    };
    headers::write_request(Head::H1(out), head, arena, &client, "http", &RequestEdits::NONE);
}

/// Appends the fields of a trailer section, without the empty line that ends it.
pub fn write_trailers(out: &mut Vec<u8>, fields: &[Field], arena: &[u8]) {
    headers::write_trailers(out, fields, arena);
}
