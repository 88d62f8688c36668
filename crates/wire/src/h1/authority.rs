//! The syntax of an authority: the value of `Host`, the authority of a target, `:authority`.

/// `host [":" port]` (RFC 3986 section 3.2.2), without user information, which HTTP does not allow (RFC 9110 section 4.2.4).
pub(crate) fn is_authority(text: &[u8]) -> bool {
    if let [b'[', rest @ ..] = text {
        let Some((address, port)) =
            rest.iter().position(|byte| *byte == b']').and_then(|end| rest.split_at_checked(end))
        else {
            return false;
        };
        let address = std::str::from_utf8(address).ok().and_then(|text| text.parse::<std::net::Ipv6Addr>().ok());
        return address.is_some() && is_port(port.get(1..).unwrap_or_default());
    }
    let end = text.iter().position(|byte| HOST_BYTES.get(usize::from(*byte)) != Some(&true)).unwrap_or(text.len());
    end > 0 && is_port(text.get(end..).unwrap_or_default())
}

/// Empty, or `":" port`.
fn is_port(text: &[u8]) -> bool {
    let digits = match text {
        [] => return true,
        [b':', digits @ ..] if !digits.is_empty() => digits,
        _ => return false,
    };
    let mut port = 0_u32;
    digits.iter().all(|byte| {
        port = port * 10 + u32::from(byte.wrapping_sub(b'0'));
        byte.is_ascii_digit() && port <= u32::from(u16::MAX)
    })
}

/// The bytes of a host name or an IPv4 address.
static HOST_BYTES: [bool; 256] = host_bytes();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn host_bytes() -> [bool; 256] {
    let mut allowed = [false; 256];
    let others = b"-._~%!$&'()*+;=";
    let mut byte = 0;
    while byte < 256 {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        allowed[others[at] as usize] = true;
        at += 1;
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let check = |texts: &str, expect: bool| {
            texts.split('|').for_each(|text| assert_eq!(is_authority(text.as_bytes()), expect, "{text:?}"));
        };
        check("a|a.example|A-b_c~1%20|!$&'()*+;=|127.0.0.1:8080|a:0|a:65535|a:00080|[::1]|[::1]:1", true);
        check("|:80|a:|a:65536|a:99999999999999999999|a:+1|a: 1|a:8/|a:1:1|a b|a@b|a/|a,b|\u{e9}|a\0|a\x7f", false);
        check("[|[]|]|[::1|[::1]:|[::1]80|[::1]:x|[1::2::3]|[a]|[\u{e9}]|a[::1]", false);
    }
}
