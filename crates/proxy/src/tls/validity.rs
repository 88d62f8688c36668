//! When a certificate of ours is valid. Others judge that, so nothing here refuses it: an expired one is reported.

use rustls::sign::CertifiedKey;

use super::subject::Element;

/// A certificate that this process shows, and when others accept it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// The file or the Secret.
    pub file: String,
    /// The DNS names in it.
    pub names: Vec<String>,
    /// In seconds since 1970.
    pub valid_from_s: u64,
    /// In seconds since 1970; it is valid then, and no longer after that.
    pub valid_until_s: u64,
}

impl OwnCertificate {
    /// `None` if the certificate says it in no way that we know; rustls would not have taken it.
    pub(super) fn of(file: &model::Pem, certified: &CertifiedKey) -> Option<Self> {
        let leaf = certified.cert.first()?;
        let (valid_from_s, valid_until_s) = validity(leaf)?;
        let names = webpki::EndEntityCert::try_from(leaf);
        let names = names.map(|leaf| leaf.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default();
        Some(Self { file: file.to_string(), names, valid_from_s, valid_until_s })
    }

    /// Why nobody accepts it at this time; `None` if it is valid.
    pub fn fault(&self, now_s: u64) -> Option<&'static str> {
        match now_s {
            now_s if now_s < self.valid_from_s => Some("is not valid yet"),
            now_s if now_s > self.valid_until_s => Some("has expired"),
            _ => None,
        }
    }
}

/// `notBefore` and `notAfter` (RFC 5280 section 4.1).
fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let inner = |rest: &mut &'_ [u8]| Element::take(rest).filter(|element| element.tag == SEQUENCE).is_some();
    let mut rest = certificate;
    let mut rest = Element::take(&mut rest).filter(|element| element.tag == SEQUENCE)?.content;
    let mut rest = Element::take(&mut rest).filter(|element| element.tag == SEQUENCE)?.content;
    if rest.first() == Some(&VERSION) {
        Element::take(&mut rest)?;
    }
    // The serial number, the algorithm, and the issuer.
    Element::take(&mut rest)?;
    if !inner(&mut rest) || !inner(&mut rest) {
        return None;
    }
    let mut times = Element::take(&mut rest).filter(|element| element.tag == SEQUENCE)?.content;
    Some((time(&Element::take(&mut times)?)?, time(&Element::take(&mut times)?)?))
}

/// Seconds since 1970. Both forms end in `Z` and have seconds.
pub(super) fn time(element: &Element<'_>) -> Option<u64> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let text = std::str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    let year_digits = match element.tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    if text.len() != year_digits + 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = text.split_at_checked(year_digits)?;
    let part = |at: usize| rest.get(2 * at..2 * at + 2)?.parse::<u64>().ok();
    let year: u64 = year.parse().ok()?;
    let year = match year_digits {
        2 if year < 50 => 2000 + year,
        2 => 1900 + year,
        _ => year,
    };
    let (month, day) = (part(0)?, part(1)?);
    let seconds = part(2)? * 3600 + part(3)? * 60 + part(4)?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the day of a leap year is the last one.
    let (year, month) = if month <= 2 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // 1970-01-01. What is earlier counts as that.
    Some(days.saturating_sub(719_468) * 86_400 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let check = |tag: u8, text: &str, expect: Option<u64>| {
            let element = [&[tag, text.len() as u8], text.as_bytes()].concat();
            assert_eq!(time(&Element::take(&mut &element[..]).unwrap()), expect, "{text}");
        };
        check(0x17, "700101000000Z", Some(0));
        check(0x17, "491231235959Z", Some(2_524_607_999));
        check(0x17, "500101000000Z", Some(0));
        check(0x17, "000229120000Z", Some(951_825_600));
        check(0x18, "20240229000001Z", Some(1_709_164_801));
        check(0x18, "99991231235959Z", Some(253_402_300_799));
        check(0x18, "20241301000000Z", None);
        check(0x18, "202401010000Z", None);
        check(0x17, "240101000000+0100", None);
        check(0x0c, "240101000000Z", None);
    }

    #[test]
    fn when_a_certificate_is_valid() {
        let one = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
        // rcgen's default is from 1975 to 4096.
        assert_eq!(validity(one.cert.der()), Some((157_766_400, 67_090_118_400)));
        for end in 0..one.cert.der().len().min(200) {
            validity(&one.cert.der()[..end]);
        }
        let own = OwnCertificate { file: "a.pem".into(), names: Vec::new(), valid_from_s: 10, valid_until_s: 20 };
        assert_eq!([9, 10, 20, 21].map(|now| own.fault(now).is_some()), [true, false, false, true]);
    }

    #[test]
    fn the_end_of_a_certificate() {
        let expires = |der: &[u8]| validity(der).map(|(_, until)| until);
        let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for (year, expect) in [(2026, Some(1_795_651_200)), (2080, Some(3_499_804_800))] {
            params.not_after = rcgen::date_time_ymd(year, 11, 26);
            let certificate = params.self_signed(&key).unwrap();
            let der = certificate.der();
            assert_eq!(expires(der), expect, "{year}");
            for end in 0..der.len() {
                // A malformed one has no time, or the right one: never another, and no panic.
                let found = expires(&der[..end]);
                assert!(found.is_none() || found == expect);
            }
        }
    }
}
