//! When a certificate expires.

use super::subject::Element;

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The explicit tag of the version.
const VERSION: u8 = 0xa0;

/// The end of the validity in a certificate (RFC 5280 section 4.1.2.5), in seconds since 1970. `None` if it is before that, or the certificate
/// is malformed.
pub(super) fn expires_unix_seconds(der: &[u8]) -> Option<u64> {
    let mut rest = der;
    let mut certificate = take(&mut rest, SEQUENCE)?;
    let mut inner = take(&mut certificate, SEQUENCE)?;
    // Certificates of version 1 do not tell their version.
    if inner.first() == Some(&VERSION) {
        take(&mut inner, VERSION)?;
    }
    take(&mut inner, INTEGER)?;
    // The algorithm of the signature, and the issuer.
    take(&mut inner, SEQUENCE)?;
    take(&mut inner, SEQUENCE)?;
    let mut validity = take(&mut inner, SEQUENCE)?;
    Element::take(&mut validity)?;
    let end = Element::take(&mut validity)?;
    let digits = end.content.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, to: usize| std::str::from_utf8(digits.get(from..to)?).ok()?.parse::<u64>().ok();
    let (year, at) = match (end.tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(0, 2)?;
            (if year >= 50 { 1900 + year } else { 2000 + year }, 2)
        }
        (GENERALIZED_TIME, 14) => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |index: usize| number(at + 2 * index, at + 2 * index + 2);
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    let days = days_since_1970(year, month, day)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn take<'d>(rest: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    Element::take(rest).filter(|element| element.tag == tag).map(|element| element.content)
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    const DAYS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum::<u64>();
    let months: u64 = DAYS.iter().take(usize::try_from(month - 1).ok()?).sum();
    Some(before + months + u64::from(month > 2 && is_leap(year)) + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days() {
        let check =
            |year, month, day, expect| assert_eq!(days_since_1970(year, month, day), expect, "{year}-{month}-{day}");
        check(1970, 1, 1, Some(0));
        check(2000, 3, 1, Some(11_017));
        check(2024, 2, 29, Some(19_782));
        check(2026, 11, 26, Some(20_783));
        check(2100, 3, 1, Some(47_541));
        check(1969, 12, 31, None);
        check(2026, 13, 1, None);
    }

    #[test]
    fn the_end_of_a_certificate() {
        let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for (year, expect) in [(2026, Some(1_795_651_200)), (2080, Some(3_499_804_800))] {
            params.not_after = rcgen::date_time_ymd(year, 11, 26);
            let certificate = params.self_signed(&key).unwrap();
            let der = certificate.der();
            assert_eq!(expires_unix_seconds(der), expect, "{year}");
            for end in 0..der.len() {
                // A malformed one has no time, or the right one: never another, and no panic.
                let found = expires_unix_seconds(&der[..end]);
                assert!(found.is_none() || found == expect);
            }
        }
    }
}
