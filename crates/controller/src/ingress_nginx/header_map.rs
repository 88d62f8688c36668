//! ConfigMaps whose data are headers: names and values. Annotations name such ones, and two keys of the ConfigMap of ingress-nginx do.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Headers of one ConfigMap.
const HEADERS_MAX: usize = 128;

/// Their bytes. Heads of messages are not much longer.
const BYTES_MAX: usize = 16 * 1024;

/// The annotations that name such a ConfigMap.
pub const KEYS: [&str; 2] = ["custom-headers", "auth-proxy-set-headers"];

/// The keys of the ConfigMap of ingress-nginx that do.
pub const OPTIONS: [&str; 2] = ["add-headers", "proxy-set-headers"];

/// The data of a ConfigMap that may be headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMap(Arc<BTreeMap<Box<str>, Box<str>>>);

impl HeaderMap {
    /// Reads the data of a ConfigMap.
    ///
    /// # Errors
    /// Returns why it has no headers. Most ConfigMaps have something else.
    pub fn of<'d>(data: impl IntoIterator<Item = (&'d str, &'d str)>) -> Result<Self, String> {
        let mut headers = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in data {
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
                return Err(format!("its key {:?} is no name of a header", super::value::cut(name)));
            }
            if value.bytes().any(|byte| byte.is_ascii_control()) {
                return Err(format!("the value of its key {name} is not one line"));
            }
            bytes += name.len() + value.len();
            if headers.len() == HEADERS_MAX || bytes > BYTES_MAX {
                return Err(format!("it has more than {HEADERS_MAX} headers or {BYTES_MAX} bytes"));
            }
            headers.insert(name.into(), value.into());
        }
        Ok(Self(Arc::new(headers)))
    }

    /// Names, as they are written, and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let Self(headers) = self;
        headers.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Finds the ConfigMap with this namespace and name, or says why it has no headers.
#[derive(Clone, Copy)]
pub struct HeaderMaps<'f>(pub &'f dyn Fn(&str, &str) -> Result<HeaderMap, String>);

impl HeaderMaps<'_> {
    /// There are no ConfigMaps.
    pub const NONE: HeaderMaps<'static> =
        HeaderMaps(&|namespace, name| Err(format!("there is no ConfigMap {namespace}/{name}")));

    /// The headers of a ConfigMap.
    ///
    /// # Errors
    /// Returns why there are none.
    pub fn find(&self, namespace: &str, name: &str) -> Result<HeaderMap, String> {
        let Self(find) = self;
        find(namespace, name)
    }
}

/// The namespace and the name in a reference of an object in this namespace.
pub fn named<'r>(reference: &'r str, namespace: &'r str) -> (&'r str, &'r str) {
    reference.split_once('/').unwrap_or((namespace, reference))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_headers() {
        let check = |data: &[(&str, &str)], expect: &str| {
            let found = HeaderMap::of(data.iter().copied());
            let found = found
                .map_or_else(|why| why, |map| map.iter().map(|(name, value)| format!("{name}={value};")).collect());
            assert_eq!(found, expect);
        };
        check(&[], "");
        check(&[("X-B", "1"), ("X_A", "a; b")], "X-B=1;X_A=a; b;");
        check(&[("nginx.conf", "a")], "its key \"nginx.conf\" is no name of a header");
        check(&[("X-A", "a\nX-B: b")], "the value of its key X-A is not one line");
        check(&[("X-A", &"a".repeat(BYTES_MAX))], "it has more than 128 headers or 16384 bytes");
    }
}
