//! Whether a request may come from a web page of another origin, and whether the host that it names is this one. See `server`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::Request;
use hyper::header::{HOST, ORIGIN};

/// Whether every host that the request names is one of `hosts`, `localhost`, or an address, which must be one of the loopback if only this
/// host can connect. A request that names none (HTTP/1.0) does not come from a browser.
pub(super) fn host_is_ours<B>(request: &Request<B>, is_local: bool, hosts: &[String]) -> bool {
    let is_ours = |host: &str| is_ours(host, is_local, hosts);
    let target = request.uri().authority().is_none_or(|authority| is_ours(authority.as_str()));
    target && request.headers().get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_ours))
}

pub(super) fn is_ours(host: &str, is_local: bool, hosts: &[String]) -> bool {
    let fits = |address: IpAddr| !is_local || address.to_canonical().is_loopback();
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    // What follows must be a port and nothing else: `127.0.0.1:80@evil.example` is a name of somebody else.
    let is_port = |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number);
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else { return false };
        return is_port(rest) && address.parse::<Ipv6Addr>().is_ok_and(|address| fits(address.into()));
    }
    let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
    let is_known = || {
        name.parse::<Ipv4Addr>().is_ok_and(|address| fits(address.into()))
            || name.eq_ignore_ascii_case("localhost")
            || hosts.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    is_port(rest) && is_known()
}

/// The value of a header; `Ok(None)` if it is missing.
///
/// # Errors
/// It is there more than once, or is no text.
pub(super) fn only<'r, B>(request: &'r Request<B>, name: &str) -> Result<Option<&'r str>, ()> {
    let mut all = request.headers().get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(drop),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Whether a request does not come from a web page of another origin, as far as browsers say so. Programs say nothing.
pub(super) fn is_of_this_origin<B>(request: &Request<B>) -> bool {
    let (Ok(site), Ok(origin), Ok(host)) =
        (only(request, "sec-fetch-site"), only(request, ORIGIN.as_str()), only(request, HOST.as_str()))
    else {
        return false;
    };
    let is_here = |origin: &str| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|rest| host.is_some_and(|host| !host.is_empty() && rest.eq_ignore_ascii_case(host)))
    };
    site.is_none_or(|site| matches!(site, "same-origin" | "none")) && origin.is_none_or(is_here)
}

/// Whether the browser shows the response in a window of its own because a user follows a link of another page, which cannot read it (Fetch
/// Metadata, <https://www.w3.org/TR/fetch-metadata/>). It is no frame, no image and no script of that page.
pub(super) fn follows_a_link<B>(request: &Request<B>) -> bool {
    let is = |name, expect| only(request, name) == Ok(Some(expect));
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document") && !request.headers().contains_key(ORIGIN)
}
