//! The bodies of responses that Steelyard makes itself.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use model::{ErrorPage, FixedResponse, HttpListener, PageBody, Protocol, Route, RouteAction, Snapshot};
use wire::message::Field;

use crate::http::respond::Content;
use crate::named_files::{self, Fault};

/// The contents of the files of a snapshot's pages.
#[derive(Default)]
pub(crate) struct PageFiles(HashMap<PathBuf, Arc<[u8]>>);

impl PageFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with each of them, with its listener.
    pub(crate) fn load(snapshot: &Snapshot) -> Result<Self, Vec<(String, Fault)>> {
        let mut files = Self::default();
        let mut errors = Vec::new();
        for listener in &snapshot.listeners {
            let Protocol::Http(http) = &listener.protocol else { continue };
            for page in http.pages() {
                let PageBody::File(path) = &page.body else { continue };
                if files.0.contains_key(path) {
                    continue;
                }
                match named_files::read(path, (model::Page::BYTES_MAX / 1024) as u64) {
                    Ok(bytes) => drop(files.0.insert(path.clone(), bytes.into())),
                    Err(fault) => errors.push((format!("listener {}", listener.name), fault)),
                }
            }
        }
        if errors.is_empty() { Ok(files) } else { Err(errors) }
    }

    fn page(&self, page: &model::Page) -> Page {
        let body = match &page.body {
            PageBody::Text(text) => Arc::from(text.as_bytes()),
            // All files of a snapshot have been read before it is compiled.
            PageBody::File(path) => self.0.get(path).cloned().unwrap_or_default(),
        };
        Page { content_type: page.content_type.as_str().into(), body }
    }
}

/// A body with its type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) content_type: Box<str>,
    pub(crate) body: Arc<[u8]>,
}

/// The pages of a listener, ready for use.
#[derive(Default)]
pub(crate) struct Pages {
    /// Those of fixed responses, by the number of the route.
    fixed: HashMap<usize, Page>,
    /// Those of routes, by the number of the route.
    routes: HashMap<usize, Vec<ErrorPages>>,
    listener: Vec<ErrorPages>,
}

/// The pages for some statuses.
struct ErrorPages {
    policy: ErrorPage,
    page: Page,
    /// `None` means a problem document.
    json: Option<Page>,
}

impl Pages {
    pub(crate) fn new(http: &HttpListener, files: &PageFiles) -> Self {
        let fixed = |(number, route): (usize, &Route)| match &route.to {
            RouteAction::Respond(FixedResponse { page: Some(page), .. }) => Some((number, files.page(page))),
            _ => None,
        };
        let routes = http.routes.iter().enumerate();
        let errors = |pages: &[ErrorPage]| pages.iter().map(|page| ErrorPages::new(page, files)).collect();
        let with_errors = routes.clone().filter(|(_, route)| !route.policy.error_pages.is_empty());
        Self {
            fixed: routes.filter_map(fixed).collect(),
            routes: with_errors.map(|(number, route)| (number, errors(&route.policy.error_pages))).collect(),
            listener: errors(&http.error_pages),
        }
    }

    /// The body of the fixed response of the route with this number.
    pub(crate) fn fixed(&self, route: usize) -> Content<'_> {
        self.fixed.get(&route).map_or(Content::Empty, Content::Page)
    }

    /// The body for a request that failed with this status for the reason `word`, on this route if it had found one. `accept` are its
    /// `Accept` fields.
    pub(crate) fn error<'a>(
        &self,
        route: Option<usize>,
        status: u16,
        word: Option<&'static str>,
        accept: impl Iterator<Item = &'a [u8]>,
    ) -> Content<'_> {
        let of_route = route.and_then(|route| self.routes.get(&route)).into_iter().flatten();
        let Some(found) = of_route.chain(&self.listener).find(|pages| pages.policy.is_for(status)) else {
            return Content::Line(word);
        };
        match (prefers_json(accept), &found.json) {
            (false, _) => Content::Negotiated(&found.page),
            (true, Some(json)) => Content::Negotiated(json),
            (true, None) => Content::Problem(word),
        }
    }
}

impl ErrorPages {
    fn new(policy: &ErrorPage, files: &PageFiles) -> Self {
        let json = policy
            .json
            .as_ref()
            .map(|text| Page { content_type: "application/json".into(), body: text.as_bytes().into() });
        Self { page: files.page(&policy.page), json, policy: policy.clone() }
    }
}

/// The values of the `Accept` fields.
pub(crate) fn accept<'f>(fields: &'f [Field], buffer: &'f [u8]) -> impl Iterator<Item = &'f [u8]> {
    let is_accept = |field: &&Field| field.name.get(buffer).eq_ignore_ascii_case(b"accept");
    fields.iter().filter(is_accept).map(|field| field.value.get(buffer))
}

/// Whether a client would rather have JSON than HTML (RFC 9110 section 12.5.1). A client that names no type of JSON, as browsers and `curl`
/// do, does not.
fn prefers_json<'a>(accept: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut json, mut html) = (0, 0);
    for range in accept.flat_map(|value| value.split(|byte| *byte == b',')) {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.filter_map(quality).next().unwrap_or(1000);
        match media.as_slice() {
            b"application/json" | b"text/json" => json = json.max(quality),
            media if media.starts_with(b"application/") && media.ends_with(b"+json") => json = json.max(quality),
            b"text/html" | b"application/xhtml+xml" => html = html.max(quality),
            _ => {}
        }
    }
    json > html
}

/// The weight of a media range in thousandths; `None` if this parameter is another one. A weight that cannot be read counts as 0.
fn quality(parameter: &[u8]) -> Option<u32> {
    let (name, value) = parameter.split_at(memchr::memchr(b'=', parameter)?);
    if !name.trim_ascii().eq_ignore_ascii_case(b"q") {
        return None;
    }
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let is_number = value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let weight = std::str::from_utf8(value).ok().filter(|_| is_number).and_then(|text| text.parse::<f64>().ok());
    Some((weight.unwrap_or(0.0).clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_prefers_json() {
        let check = |accept: &[&str], expect| {
            assert_eq!(prefers_json(accept.iter().map(|value| value.as_bytes())), expect, "{accept:?}");
        };
        check(&[], false);
        check(&["*/*"], false);
        check(&["application/*"], false);
        check(&["application/json"], true);
        check(&["Application/Problem+JSON"], true);
        check(&["application/json, text/plain, */*"], true);
        check(&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], false);
        check(&["text/html, application/json"], false);
        check(&["text/html;q=0.5, application/json;q=0.9"], true);
        check(&["text/html; level=1; q=0.5", "application/json;q=0.4"], false);
        check(&["application/json;q=0"], false);
        check(&["application/json;q=x", "text/html;q=0.1"], false);
        check(&["application/json;q=nan"], false);
        check(&["application/json;q=inf"], false);
        check(&["text/html;q=0.3, application/json; Q = 0.2"], false);
        check(&["application/vnd.shop.v2+json"], true);
        check(&[",;,;;q=1,"], false);
    }

    #[test]
    fn the_first_page_for_a_status_counts_and_the_route_comes_first() {
        let error = |first, last, text: &str, json: Option<&str>| ErrorPage {
            statuses: vec![(404, 404), (first, last)],
            page: model::Page { content_type: "text/html".into(), body: PageBody::Text(text.into()) },
            json: json.map(str::to_owned),
        };
        let files = PageFiles::default();
        let of = |pages: &[ErrorPage]| pages.iter().map(|page| ErrorPages::new(page, &files)).collect();
        let pages = Pages {
            fixed: HashMap::new(),
            routes: HashMap::from([(1, of(&[error(503, 503, "route", Some("{}"))]))]),
            listener: of(&[error(502, 504, "first", None), error(500, 599, "second", None)]),
        };
        let check = |route, status, accept: &str, expect: &str| {
            let text = match pages.error(route, status, Some("why"), std::iter::once(accept.as_bytes())) {
                Content::Negotiated(page) => String::from_utf8(page.body.to_vec()).unwrap(),
                Content::Problem(Some("why")) => "problem".to_owned(),
                Content::Line(Some("why")) => "line".to_owned(),
                _ => panic!("{route:?} {status} {accept}"),
            };
            assert_eq!(text, expect, "{route:?} {status} {accept}");
        };
        check(None, 503, "", "first");
        check(Some(0), 500, "", "second");
        check(Some(1), 503, "", "route");
        check(Some(1), 504, "", "first");
        check(Some(1), 404, "application/json", "{}");
        check(Some(0), 404, "application/json", "problem");
        check(Some(1), 400, "", "line");
        check(None, 400, "application/json", "line");
    }
}
