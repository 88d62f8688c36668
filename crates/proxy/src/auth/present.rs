//! The credentials that a request has. They are taken out of its head before anything else sees it, so the endpoint, mirrors, redirects and
//! the access log do not get them; so is every field in which the endpoint expects the name of the client.
//!
//! What could be read in two ways counts as wrong: two `Authorization` fields, or two different keys in one place.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use model::KeyPlace;
use wire::message::{Field, FieldId, Span, list};

use crate::exchange::Request;
use crate::exchange::conditions::decode;
use crate::policy::headers::is_alike;
use crate::policy::via;

/// Bytes of user and password together in base64. Longer ones are no passwords but work for whoever checks them.
const BASIC_BYTES_MAX: usize = 4096;

/// Padding is optional: some clients leave it out, and it has no meaning here.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a request has of one kind of credentials.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Presented<T> {
    Nothing,
    /// They are there and cannot be right.
    Malformed,
    These(T),
}

/// A user and a password.
#[derive(PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Box<[u8]>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(login)")
    }
}

/// Removes the fields that only this hop may set: those with one of these names, which are in lower case, also if `_` stands for `-`.
pub(crate) fn remove_claims(request: &mut Request, names: &[Box<str>]) {
    let Request { head, bytes, .. } = request;
    let is_claim = |name: &[u8]| names.iter().any(|claim| is_alike(name, claim.as_bytes()));
    head.fields.retain(|field| {
        let name = field.name.get(bytes);
        // An announced trailer with such a name does not arrive either.
        let announces = || field.id == FieldId::Trailer && list(field.value.get(bytes)).any(is_claim);
        (!is_claim(name) || via::stays(name)) && !announces()
    });
}

/// Adds a field that no `Connection` of the client removes.
pub(crate) fn add_identity(request: &mut Request, name: &str, value: impl AsRef<[u8]>) {
    let Request { head, bytes, .. } = request;
    let (name, value) = (append(bytes, name.as_bytes()), append(bytes, value.as_ref()));
    head.fields.push(Field { id: FieldId::Identity, name, value, never_indexed: false });
}

/// Puts bytes behind the head that a request was read from. No span into the head changes.
pub(crate) fn append(bytes: &mut Vec<u8>, text: &[u8]) -> Span {
    let start = bytes.len() as u32;
    bytes.extend_from_slice(text);
    Span { start, end: bytes.len() as u32 }
}

/// The value of `Authorization` with this scheme (RFC 9110 section 11.4).
pub(crate) fn with_scheme<'b>(fields: &[Field], bytes: &'b [u8], scheme: &[u8]) -> Presented<&'b [u8]> {
    let is_it = |field: &&Field| field.name.get(bytes).eq_ignore_ascii_case(b"authorization");
    let mut found = fields.iter().filter(is_it);
    let Some(value) = found.next().map(|field| field.value.get(bytes)) else { return Presented::Nothing };
    if found.next().is_some() {
        return Presented::Malformed;
    }
    match value.split_at_checked(scheme.len()) {
        Some((name, behind))
            if name.eq_ignore_ascii_case(scheme) && behind.first().is_none_or(|byte| *byte == b' ') =>
        {
            Presented::These(behind.trim_ascii())
        }
        // Of another scheme, which means nothing here.
        _ => Presented::Nothing,
    }
}

/// The user and password of a request. Unless `forward`, they are removed.
pub(crate) fn take_login(request: &mut Request, forward: bool) -> Presented<Login> {
    let Request { head, bytes, .. } = request;
    let login = match with_scheme(&head.fields, bytes, b"basic") {
        Presented::Nothing => Presented::Nothing,
        Presented::Malformed => Presented::Malformed,
        Presented::These(token) => login(token).map_or(Presented::Malformed, Presented::These),
    };
    if !forward {
        head.fields.retain(|field| !field.name.get(bytes).eq_ignore_ascii_case(b"authorization"));
    }
    login
}

/// RFC 7617 section 2.
fn login(token: &[u8]) -> Option<Login> {
    if token.len() > BASIC_BYTES_MAX {
        return None;
    }
    let decoded = BASE64.decode(token).ok()?;
    let at = memchr::memchr(b':', &decoded)?;
    let (user, password) = (decoded.get(..at)?, decoded.get(at + 1..)?);
    // Hashes of crypt(3) end at a NUL, so two passwords would be the same.
    if password.contains(&0) {
        return None;
    }
    Some(Login { user: std::str::from_utf8(user).ok()?.to_owned(), password: password.into() })
}

/// The key of a request. The first place that has one counts, and all are removed.
pub(crate) fn take_key(request: &mut Request, places: &[KeyPlace]) -> Presented<Vec<u8>> {
    let mut found = Presented::Nothing;
    for place in places {
        let key = match place {
            KeyPlace::Header(name) => take_header(request, name.as_bytes()),
            KeyPlace::Query(name) => take_query(request, name.as_bytes()),
            KeyPlace::Cookie(name) => take_cookie(request, name.as_bytes()),
        };
        if found == Presented::Nothing {
            found = key;
        }
    }
    found
}

/// What one place has: the key, if all that are there are the same.
fn only(keys: Vec<Vec<u8>>) -> Presented<Vec<u8>> {
    let mut keys = keys.into_iter();
    match keys.next() {
        None => Presented::Nothing,
        Some(first) if keys.all(|key| key == first) => Presented::These(first),
        Some(_) => Presented::Malformed,
    }
}

fn take_header(request: &mut Request, name: &[u8]) -> Presented<Vec<u8>> {
    let Request { head, bytes, .. } = request;
    let mut keys = Vec::new();
    head.fields.retain(|field| {
        let found = field.name.get(bytes);
        let is_key = is_alike(found, name);
        if is_key {
            keys.push(field.value.get(bytes).to_vec());
        }
        !is_key || via::stays(found)
    });
    only(keys)
}

fn take_query(request: &mut Request, name: &[u8]) -> Presented<Vec<u8>> {
    let Request { head, bytes, normal_target, .. } = request;
    let target = head.path.get(bytes);
    let (stripped, keys) = without_parameter(target, name);
    let Some(stripped) = stripped else { return only(keys) };
    if let Some(normal) = normal_target
        && let (Some(stripped), _) = without_parameter(normal, name)
    {
        *normal = stripped;
    }
    head.path = append(bytes, &stripped);
    only(keys)
}

/// A path and query without the parameters of this name, and their values; `None` if there are none.
fn without_parameter(target: &[u8], name: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    let (path, query) = wire::path::split_target(target);
    let Some(query) = query.strip_prefix(b"?") else { return (None, Vec::new()) };
    let (mut keys, mut kept) = (Vec::new(), path.to_vec());
    for pair in query.split(|byte| *byte == b'&') {
        let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let (key, value) = (pair.get(..at).unwrap_or_default(), pair.get(at + 1..).unwrap_or_default());
        if *decode(key) == *name {
            keys.push(decode(value).to_vec());
        } else {
            kept.push(if kept.len() == path.len() { b'?' } else { b'&' });
            kept.extend_from_slice(pair);
        }
    }
    if keys.is_empty() { (None, keys) } else { (Some(kept), keys) }
}

fn take_cookie(request: &mut Request, name: &[u8]) -> Presented<Vec<u8>> {
    let Request { head, bytes, .. } = request;
    let mut keys = Vec::new();
    for at in 0..head.fields.len() {
        let Some(field) = head.fields.get(at).filter(|field| field.id == FieldId::Cookie) else { continue };
        let (mut kept, before) = (Vec::new(), keys.len());
        for pair in field.value.get(bytes).split(|byte| *byte == b';').map(<[u8]>::trim_ascii) {
            match cookie_value(pair, name) {
                Some(value) => keys.push(value.to_vec()),
                None => {
                    if !kept.is_empty() {
                        kept.extend_from_slice(b"; ");
                    }
                    kept.extend_from_slice(pair);
                }
            }
        }
        if keys.len() > before {
            let value = append(bytes, &kept);
            if let Some(field) = head.fields.get_mut(at) {
                field.value = value;
            }
        }
    }
    head.fields.retain(|field| field.id != FieldId::Cookie || !field.value.is_empty());
    only(keys)
}

/// The value of a cookie, if the pair is one with this name.
fn cookie_value<'b>(pair: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    let value = pair.strip_prefix(name)?.trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
    let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    Some(quoted.unwrap_or(value))
}

/// The token of a request, in these places or, if there are none, in `Authorization`. Two different ones count as wrong: nobody can say which
/// of them an endpoint takes. `forward`: the endpoint will get what is there, so what is there must be a token.
pub(crate) fn find_token<'r>(request: &'r Request, places: &[KeyPlace], forward: bool) -> Presented<Cow<'r, [u8]>> {
    let Request { head, bytes, .. } = request;
    if places.is_empty() {
        let is_it = |field: &Field| field.name.get(bytes).eq_ignore_ascii_case(b"authorization");
        return match with_scheme(&head.fields, bytes, b"bearer") {
            Presented::These(token) => Presented::These(token.into()),
            Presented::Nothing if forward && head.fields.iter().any(is_it) => Presented::Malformed,
            Presented::Nothing => Presented::Nothing,
            Presented::Malformed => Presented::Malformed,
        };
    }
    let mut found: Option<Cow<'r, [u8]>> = None;
    for place in places {
        let values: Vec<Cow<'r, [u8]>> = match place {
            KeyPlace::Header(name) => {
                let fields = head.fields.iter().filter(|field| is_alike(field.name.get(bytes), name.as_bytes()));
                fields.map(|field| alone(field.value.get(bytes)).into()).collect()
            }
            KeyPlace::Query(name) => {
                let (_, values) = without_parameter(head.path.get(bytes), name.as_bytes());
                values.into_iter().map(Cow::Owned).collect()
            }
            KeyPlace::Cookie(name) => {
                let fields = head.fields.iter().filter(|field| field.id == FieldId::Cookie);
                let pairs = fields.flat_map(|field| field.value.get(bytes).split(|byte| *byte == b';'));
                let values = pairs.filter_map(|pair| cookie_value(pair.trim_ascii(), name.as_bytes()));
                values.map(Into::into).collect()
            }
        };
        for value in values {
            match &found {
                None => found = Some(value),
                Some(first) if **first == *value => {}
                Some(_) => return Presented::Malformed,
            }
        }
    }
    found.map_or(Presented::Nothing, Presented::These)
}

/// The token in a field that has it alone or after `Bearer`.
fn alone(value: &[u8]) -> &[u8] {
    match value.split_at_checked(b"bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => value.trim_ascii(),
    }
}

/// Removes what [`find_token`] may have found, and any other `Authorization` if that is where it looked: an endpoint might read it in another
/// way.
pub(crate) fn remove_token(request: &mut Request, places: &[KeyPlace]) {
    if places.is_empty() {
        let Request { head, bytes, .. } = request;
        head.fields.retain(|field| !field.name.get(bytes).eq_ignore_ascii_case(b"authorization"));
    }
    drop(take_key(request, places));
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_request;

    use super::*;

    fn request(line: &str, fields: &str) -> Request {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut request = Request::default();
        parse_request(text.as_bytes(), 100, &mut request.head).unwrap();
        request.bytes = text.into_bytes();
        request
    }

    /// The target and the fields besides `Host`.
    fn left(request: &Request) -> String {
        let text = |span: Span| String::from_utf8_lossy(span.get(&request.bytes)).into_owned();
        let fields = request.head.fields.iter().skip(1);
        let fields: Vec<String> = fields.map(|field| format!("{}: {}", text(field.name), text(field.value))).collect();
        format!("{} {}", text(request.head.path), fields.join(", ")).trim().to_owned()
    }

    #[test]
    fn nothing_takes_a_name_out_of_the_way_of_a_request() {
        let mut request = request("GET /", "CDN-Loop: b\r\nA: c\r\n");
        assert_eq!(take_header(&mut request, b"cdn-loop"), Presented::These(b"b".to_vec()));
        remove_claims(&mut request, &["cdn-loop".into(), "a".into()]);
        assert_eq!(left(&request), "/ CDN-Loop: b");
    }

    #[test]
    fn logins() {
        let check = |fields: &str, expect: Presented<(&str, &str)>, rest: &str| {
            let mut request = request("GET /", fields);
            let expect = match expect {
                Presented::Nothing => Presented::Nothing,
                Presented::Malformed => Presented::Malformed,
                Presented::These((user, password)) => {
                    Presented::These(Login { user: user.to_owned(), password: password.as_bytes().into() })
                }
            };
            assert_eq!(take_login(&mut request, false), expect, "{fields}");
            assert_eq!(left(&request), rest, "{fields}");
        };
        let aladdin = || Presented::These(("Aladdin", "open sesame"));
        check("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n", aladdin(), "/");
        check("authorization: bAsIc   QWxhZGRpbjpvcGVuIHNlc2FtZQ\r\nA: b\r\n", aladdin(), "/ A: b");
        check("", Presented::Nothing, "/");
        check("Authorization: Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n", Presented::Nothing, "/");
        check("Authorization: BasicQWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n", Presented::Nothing, "/");
        check("Authorization: Basic\r\n", Presented::Malformed, "/");
        check("Authorization: Basic !\r\n", Presented::Malformed, "/");
        // Without a colon; with a NUL; not UTF-8.
        check("Authorization: Basic QWxhZGRpbg==\r\n", Presented::Malformed, "/");
        check("Authorization: Basic YTpiAGM=\r\n", Presented::Malformed, "/");
        check("Authorization: Basic /zpi\r\n", Presented::Malformed, "/");
        check("Authorization: Basic YTpi\r\nAuthorization: Basic YTpi\r\n", Presented::Malformed, "/");
        check("Authorization: Basic OmI=\r\n", Presented::These(("", "b")), "/");
        check("Authorization: Basic YTpiOmM=\r\n", Presented::These(("a", "b:c")), "/");
        let long = "QUFB".repeat(BASIC_BYTES_MAX);
        check(&format!("Authorization: Basic {long}\r\n"), Presented::Malformed, "/");
        let mut kept = request("GET /", "Authorization: Basic YTpi\r\n");
        take_login(&mut kept, true);
        assert_eq!(left(&kept), "/ Authorization: Basic YTpi");
    }

    #[test]
    fn keys_are_taken_out_wherever_they_are() {
        let places = [KeyPlace::Header("x-key".into()), KeyPlace::Query("k y".into()), KeyPlace::Cookie("key".into())];
        let check = |target: &str, fields: &str, expect: Presented<&str>, rest: &str| {
            let mut request = request(&format!("GET {target}"), fields);
            let found = take_key(&mut request, &places);
            let expect = match expect {
                Presented::Nothing => Presented::Nothing,
                Presented::Malformed => Presented::Malformed,
                Presented::These(key) => Presented::These(key.as_bytes().to_vec()),
            };
            assert_eq!((found, left(&request).as_str()), (expect, rest), "{target} {fields}");
        };
        check("/", "", Presented::Nothing, "/");
        check("/", "X-KEY: a\r\nX: y\r\n", Presented::These("a"), "/ X: y");
        check("/", "X_Key: a\r\n", Presented::These("a"), "/");
        check("/", "X-Key: a\r\nX-Key: a\r\n", Presented::These("a"), "/");
        check("/", "X-Key: a\r\nX-Key: b\r\n", Presented::Malformed, "/");
        check("/x?k+y=a%2Fb", "", Presented::These("a/b"), "/x");
        check("/x?a=1&%6B%20y=a&b=2", "", Presented::These("a"), "/x?a=1&b=2");
        check("/x?k%20y=a&b=2&k+y=c", "", Presented::Malformed, "/x?b=2");
        check("/x?&&k+y=a&", "", Presented::These("a"), "/x?&&");
        check("/x?k+y", "", Presented::These(""), "/x");
        check("/x?a=1", "", Presented::Nothing, "/x?a=1");
        check("/", "Cookie: a=b; key=c; d=e\r\n", Presented::These("c"), "/ Cookie: a=b; d=e");
        check("/", "Cookie: key=\"c\"\r\n", Presented::These("c"), "/");
        check("/", "Cookie: a=b;key=c\r\nCookie: key=d\r\n", Presented::Malformed, "/ Cookie: a=b");
        check("/", "Cookie: monkey=c; keys=d; KEY=e\r\n", Presented::Nothing, "/ Cookie: monkey=c; keys=d; KEY=e");
        // The first place counts, and nothing of the others remains.
        check("/?k+y=b", "X-Key: a\r\nCookie: key=c\r\n", Presented::These("a"), "/");
        check("/?k+y=b", "X-Key: a\r\nX-Key: c\r\n", Presented::Malformed, "/");
    }

    #[test]
    fn tokens_are_found_where_they_are_and_removed() {
        let in_places =
            [KeyPlace::Header("x-jwt".into()), KeyPlace::Query("jwt".into()), KeyPlace::Cookie("jwt".into())];
        let check = |places: &[KeyPlace], target: &str, fields: &str, expect: Presented<&str>, rest: &str| {
            let mut request = request(&format!("GET {target}"), fields);
            let before = left(&request);
            let found = match find_token(&request, places, false) {
                Presented::Nothing => Presented::Nothing,
                Presented::Malformed => Presented::Malformed,
                Presented::These(token) => Presented::These(String::from_utf8_lossy(&token).into_owned()),
            };
            let expect = match expect {
                Presented::Nothing => Presented::Nothing,
                Presented::Malformed => Presented::Malformed,
                Presented::These(token) => Presented::These(token.to_owned()),
            };
            assert_eq!((found, left(&request)), (expect, before), "{target} {fields}");
            remove_token(&mut request, places);
            assert_eq!(left(&request), rest, "{target} {fields}");
        };
        check(&[], "/", "Authorization: Bearer a.b.c\r\n", Presented::These("a.b.c"), "/");
        check(&[], "/", "aUTHORIZATION: bEARER    a.b.c  \r\nX: y\r\n", Presented::These("a.b.c"), "/ X: y");
        check(&[], "/", "Authorization: Bearer   \r\n", Presented::These(""), "/");
        check(&[], "/", "Authorization: Basic YTpi\r\n", Presented::Nothing, "/");
        check(&[], "/", "Authorization: Bearer\ta.b.c\r\n", Presented::Nothing, "/");
        check(&[], "/", "Authorization: Bearer a\r\nAuthorization: Bearer a\r\n", Presented::Malformed, "/");
        check(&[], "/?jwt=a", "X-Jwt: a\r\n", Presented::Nothing, "/?jwt=a X-Jwt: a");
        check(&in_places, "/", "Authorization: Bearer a\r\n", Presented::Nothing, "/ Authorization: Bearer a");
        check(&in_places, "/", "X_jwt: a\r\n", Presented::These("a"), "/");
        check(&in_places, "/", "X-Jwt: bearer  a\r\nX: y\r\n", Presented::These("a"), "/ X: y");
        check(&in_places, "/?a=b&j%77t=c.d.e", "", Presented::These("c.d.e"), "/?a=b");
        check(&in_places, "/", "Cookie: a=b; jwt=\"c\"; d=e\r\n", Presented::These("c"), "/ Cookie: a=b; d=e");
        check(&in_places, "/?jwt=c", "X-Jwt: c\r\nCookie: jwt=c\r\n", Presented::These("c"), "/");
        check(&in_places, "/?jwt=c", "X-Jwt: d\r\n", Presented::Malformed, "/");
        check(&in_places, "/", "X-Jwt: c\r\nx_jwt: d\r\n", Presented::Malformed, "/");
        check(&in_places, "/?jwt=", "", Presented::These(""), "/");
        // What is passed on is a token, or the request is refused.
        let basic = request("GET /", "Authorization: Basic YTpi\r\n");
        assert_eq!(find_token(&basic, &[], true), Presented::Malformed);
        assert_eq!(find_token(&request("GET /", ""), &[], true), Presented::Nothing);
    }

    #[test]
    fn a_normal_target_loses_the_key_too() {
        let mut request = request("GET /%61?key=b&c=d", "");
        request.normal_target = Some(b"/a?key=b&c=d".to_vec());
        take_key(&mut request, &[KeyPlace::Query("key".into())]);
        assert_eq!(request.target(), b"/a?c=d");
        assert_eq!(left(&request), "/%61?c=d");
    }

    #[test]
    fn only_this_hop_says_who_the_client_is() {
        let mut request = request("GET /", "X-User: root\r\nx_USER: root\r\nTrailer: X-Sum, x-user\r\nX-Use: a\r\n");
        remove_claims(&mut request, &["x-user".into()]);
        assert_eq!(left(&request), "/ X-Use: a");
        add_identity(&mut request, "x-user", "joe");
        assert_eq!(left(&request), "/ X-Use: a, x-user: joe");
    }
}
