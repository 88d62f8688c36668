//! What the fuzz targets need of this crate: they compare what an HTTP/1.1 endpoint gets with other implementations, look for credentials
//! in it, and make up tokens and keys. Nothing else uses it.

use std::net::{Ipv4Addr, SocketAddr};

use model::{ForwardedHeaders, KeyPlace};
use wire::message::{Field, RequestHead};

use crate::auth::present;
use crate::exchange::Request;
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

/// Takes credentials out of a request, and checks that none are left.
///
/// # Panics
/// Some are.
pub fn take_credentials(head: RequestHead, arena: &[u8]) {
    let mut request = Request { head, bytes: arena.to_vec(), ..Request::default() };
    let places = [KeyPlace::Header("x-key".into()), KeyPlace::Query("key".into()), KeyPlace::Cookie("key".into())];
    drop(present::take_login(&mut request, false));
    drop(present::take_key(&mut request, &places));
    present::remove_claims(&mut request, &["x-user".into()]);
    present::add_identity(&mut request, "x-user", "joe");
    assert_eq!(present::take_login(&mut request, false), present::Presented::Nothing, "a password is left");
    assert_eq!(present::take_key(&mut request, &places), present::Presented::Nothing, "a key is left");
    let Request { head, bytes, .. } = &request;
    let users = head.fields.iter().filter(|field| field.name.get(bytes).eq_ignore_ascii_case(b"x-user"));
    let users: Vec<&[u8]> = users.map(|field| field.value.get(bytes)).collect();
    assert_eq!(users, [b"joe"], "the name of the client");
}

/// Looks at a token, and reads what may be its payload.
///
/// # Panics
/// It passes, although nobody has signed it, or a header of it could be misread.
pub fn look_at_token(token: &[u8]) {
    crate::auth::jwt::fuzzing::look_at(token);
}

/// Reads a set of keys.
///
/// # Panics
/// What it says is not the same each time.
pub fn read_keys(text: &[u8]) {
    crate::auth::jwt::fuzzing::read_keys(text);
}
