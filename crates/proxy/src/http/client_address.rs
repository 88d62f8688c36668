//! The client's address as trusted proxies report it, in `X-Forwarded-For` or `Forwarded` (RFC 7239).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use smallvec::SmallVec;
use wire::message::{FieldId, RequestHead};

use super::headers::Client;

/// The client's address according to the trusted proxies: going back from this hop, the first address that is not one of them.
pub(crate) fn client_ip(head: &RequestHead, buffer: &[u8], client: &Client<'_>) -> IpAddr {
    known_client_ip(head, buffer, client).unwrap_or_else(|nearest| nearest)
}

/// The same, for decisions about who may pass.
///
/// # Errors
/// The client is not known, and the nearest known address may be that of a proxy: a trusted proxy has sent something other than an address,
/// its two fields contradict each other, or its PROXY protocol header has no address.
pub(crate) fn known_client_ip(head: &RequestHead, buffer: &[u8], client: &Client<'_>) -> Result<IpAddr, IpAddr> {
    let direct = client.address.ip();
    if !client.is_known {
        return Err(direct);
    }
    if !client.is_trusted {
        return Ok(direct);
    }
    let values = |id| {
        let fields = head.fields.iter().rev().filter(move |field| field.id == id);
        fields.map(|field| field.value.get(buffer))
    };
    let has = |id| values(id).next().is_some();
    let x_forwarded = || {
        let elements = values(FieldId::XForwardedFor).flat_map(|value| value.rsplit(|byte| *byte == b','));
        going_back(client, elements.map(address))
    };
    let forwarded =
        || going_back(client, values(FieldId::Forwarded).flat_map(|value| elements(value).into_iter().rev()));
    match (has(FieldId::XForwardedFor), has(FieldId::Forwarded)) {
        (_, false) => x_forwarded(),
        (false, true) => forwarded(),
        // A proxy that writes one of them may pass on whatever a client writes into the other.
        (true, true) => match (x_forwarded(), forwarded()) {
            (Ok(one), Ok(other)) if one == other => Ok(one),
            (one, _) => Err(one.unwrap_or_else(|nearest| nearest)),
        },
    }
}

/// `reported` are the addresses that the proxies report, the latest first; `None` stands for anything else.
fn going_back(client: &Client<'_>, reported: impl Iterator<Item = Option<IpAddr>>) -> Result<IpAddr, IpAddr> {
    let mut nearest = client.address.ip();
    for address in reported {
        nearest = address.ok_or(nearest)?;
        if !client.trusted_proxies.iter().any(|net| net.contains(&nearest)) {
            break;
        }
    }
    Ok(nearest)
}

/// An address, which may have a port; IPv6 may be in brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::from);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let ip = text.parse().ok().or_else(with_port).or_else(bracketed)?;
    Some(ip.to_canonical())
}

/// The `for` of each element of a `Forwarded` field. What is not in the form of RFC 7239 counts as an element without an address.
fn elements(mut value: &[u8]) -> SmallVec<[Option<IpAddr>; 4]> {
    let mut found = SmallVec::new();
    loop {
        let (address, behind) = element(value).unwrap_or((None, None));
        found.push(address);
        match behind {
            Some(behind) => value = behind,
            None => return found,
        }
    }
}

/// The `for` of the first element, and what follows its comma if there is one.
fn element(text: &[u8]) -> Option<(Option<IpAddr>, Option<&[u8]>)> {
    let mut found = None;
    let mut rest = text;
    loop {
        let (name, behind) = rest.split_at_checked(memchr::memchr(b'=', rest)?)?;
        let name = name.trim_ascii_start();
        if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return None;
        }
        let (value, behind) = pair_value(behind.get(1..)?)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(address(&value)).is_some() {
            return None;
        }
        match behind.trim_ascii_start().split_first() {
            None => return Some((found.flatten(), None)),
            Some((b',', behind)) => return Some((found.flatten(), Some(behind))),
            Some((b';', behind)) => rest = behind,
            Some(_) => return None,
        }
    }
}

/// The value of a pair, a token or a quoted string, and what follows it.
fn pair_value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| matches!(byte, b',' | b';')).unwrap_or(text.len());
        let (value, behind) = text.split_at_checked(end)?;
        return Some((Cow::Borrowed(value), behind));
    };
    let mut value = Vec::new();
    let mut rest = quoted;
    loop {
        rest = match rest {
            [b'"', behind @ ..] => return Some((Cow::Owned(value), behind)),
            [b'\\', byte, behind @ ..] | [byte, behind @ ..] => {
                value.push(*byte);
                behind
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::testing::{client, request};
    use super::*;
    use model::ForwardedHeaders;

    #[track_caller]
    fn check(fields: &str, is_known: bool, expect: Result<&str, &str>) {
        let nets = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let client = Client { is_known, ..client(true, ForwardedHeaders::XForwarded, &nets) };
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let found = known_client_ip(&request(&text), text.as_bytes(), &client);
        assert_eq!(found, expect.map(parse).map_err(parse), "{fields}");
    }

    #[test]
    fn the_client_is_the_nearest_that_is_not_trusted() {
        let nets = ["10.0.0.0/8".parse().unwrap()];
        let check = |is_trusted, lines: &str, expect: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let client = client(is_trusted, ForwardedHeaders::XForwarded, &nets);
            assert_eq!(client_ip(&request(&text), text.as_bytes(), &client).to_string(), expect, "{lines}");
        };
        check(false, "X-Forwarded-For: 1.1.1.1\r\n", "10.0.0.9");
        check(true, "X-Forwarded-For: 6.6.6.6, 1.1.1.1, 10.1.1.1\r\n", "1.1.1.1");
        check(true, "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 10.1.1.1\r\n", "6.6.6.6");
        check(true, "X-Forwarded-For: 10.2.2.2, 10.1.1.1\r\n", "10.2.2.2");
        check(true, "X-Forwarded-For: nonsense, 10.1.1.1\r\n", "10.1.1.1");
        check(true, "", "10.0.0.9");
    }

    #[test]
    fn the_first_address_that_is_no_trusted_proxy() {
        let check = |fields: &str, expect| check(fields, true, expect);
        check("", Ok("10.0.0.9"));
        check("X-Forwarded-For: 6.6.6.6, 1.2.3.4, 10.1.1.1\r\n", Ok("1.2.3.4"));
        check("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 10.1.1.1\r\n", Ok("1.2.3.4"));
        check("X-Forwarded-For: 10.1.1.1\r\n", Ok("10.1.1.1"));
        check("X-Forwarded-For: 1.2.3.4:80\r\n", Ok("1.2.3.4"));
        check("X-Forwarded-For: [2001:db8::1]:80\r\n", Ok("2001:db8::1"));
        check("X-Forwarded-For: ::ffff:1.2.3.4\r\n", Ok("1.2.3.4"));
        check("X-Forwarded-For: 1.2.3.4, unknown\r\n", Err("10.0.0.9"));
        check("X-Forwarded-For: unknown, 10.1.1.1\r\n", Err("10.1.1.1"));
        check("X-Forwarded-For: 1.2.3.4:port\r\n", Err("10.0.0.9"));
        check("X-Forwarded-For: 1.2.3.4,\r\n", Err("10.0.0.9"));
    }

    #[test]
    fn forwarded_counts_like_the_other() {
        let check = |fields: &str, expect| check(fields, true, expect);
        check("Forwarded: for=1.2.3.4;proto=http;host=\"a:80\"\r\n", Ok("1.2.3.4"));
        check("Forwarded: for=6.6.6.6, proto=http; For=\"1.2.3.4:99\" ,for=10.1.1.1\r\n", Ok("1.2.3.4"));
        check("Forwarded: for=1.2.3.4\r\nForwarded: for=\"[fd00::1]:1\"\r\n", Ok("1.2.3.4"));
        check("Forwarded: for=\"[2001:db8::1]\"\r\n", Ok("2001:db8::1"));
        check("Forwarded: host=\"a, for=6.6.6.6\";for=1.2.3.4\r\n", Ok("1.2.3.4"));
        check("Forwarded: for=\"1.2.3.\\4\"\r\n", Ok("1.2.3.4"));
        for unknown in [
            "for=unknown",
            "for=_hidden",
            "proto=http",
            "for=1.2.3.4;for=1.2.3.4",
            "for=\"1.2.3.4",
            "for=1.2.3.4;",
            "for=1.2.3.4, ",
            "for=1.2.3.4 x=y",
            "\"for\"=1.2.3.4",
            "1.2.3.4",
            "",
        ] {
            check(&format!("Forwarded: {unknown}\r\n"), Err("10.0.0.9"));
        }
    }

    #[test]
    fn fields_that_contradict_each_other_say_nothing() {
        let check = |fields: &str, expect| check(fields, true, expect);
        check("X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n", Ok("1.2.3.4"));
        check("X-Forwarded-For: 1.2.3.4\r\nForwarded: for=6.6.6.6\r\n", Err("1.2.3.4"));
        check("X-Forwarded-For: 1.2.3.4\r\nForwarded: for=unknown\r\n", Err("1.2.3.4"));
    }

    #[test]
    fn nothing_is_known_behind_a_header_without_an_address() {
        check("X-Forwarded-For: 1.2.3.4\r\n", false, Err("10.0.0.9"));
    }
}
