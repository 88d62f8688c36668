//! Responses that Steelyard makes itself.

use std::path::Path;

use model::{ErrorPage, FixedResponse, Page, PageBody};

use super::files::file;
use super::policy::pairs;
use super::route::listed;
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawErrorPage, RawRespond};
use crate::read::{Located, Many, OneOrMany};
use crate::text::{BodyText, FileName, HeaderValue, StatusRange};

/// Lowers a fixed response.
pub fn fixed(raw: &RawRespond, base: &Path, report: &mut Report) -> FixedResponse {
    let status = raw.status.as_ref().and_then(|status| u16::try_from(status.value.0).ok());
    let status = status.unwrap_or(defaults::FIXED_STATUS);
    if let (Some(_), Some(file)) = (&raw.body, &raw.file) {
        report.add(file.location, Wrong::new("a fixed response has both `file` and `body`").hint("keep one of them"));
    }
    let page = page(&raw.body, &raw.file, &raw.content_type, defaults::FIXED_CONTENT_TYPE, base);
    // RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5.
    if let (true, Some(written)) = (page.is_some() && matches!(status, 204 | 205 | 304), &raw.status) {
        let wrong = Wrong::new(format!("a response with the status {status} has no body"));
        report.add(written.location, wrong.hint("remove `body` and `file`, or write another status"));
    }
    if let (None, Some(written)) = (&page, &raw.content_type) {
        let wrong = Wrong::new("`content_type` has no effect without `body` or `file`");
        report.add(written.location, wrong.hint("remove it, or add a body"));
    }
    let headers = pairs(&raw.headers);
    for written in raw.headers.iter().filter(|_| headers.iter().any(|(_, value)| value.contains("${"))) {
        let wrong = Wrong::new("`headers` has a variable, and those of a fixed response are text");
        report.add(written.location, wrong.hint("remove `${...}`"));
    }
    for (name, hint) in
        [("content-type", "use the key `content_type`"), ("date", "remove it: every response has its own")]
    {
        for written in raw.headers.iter().filter(|_| headers.iter().any(|(known, _)| known == name)) {
            report.add(written.location, Wrong::new(format!("`headers` sets `{name}`")).hint(hint));
        }
    }
    FixedResponse { status, headers, page }
}

/// Refuses statuses that are no errors, by saying `what` is wrong.
pub fn refuse_successes(raw: &Option<Located<OneOrMany<StatusRange>>>, what: &str, report: &mut Report) {
    for status in raw.iter().flat_map(|statuses| &statuses.value.0) {
        if !(400..=599).contains(&status.value.0) || status.value.1 > 599 {
            report
                .add(status.location, Wrong::new(what).hint("write a status such as 503, or a range such as 500-599"));
        }
    }
}

/// Lowers error pages. Those without a body are left out; the report says so.
pub fn error_pages(raw: &Option<Located<Many<RawErrorPage>>>, base: &Path, report: &mut Report) -> Vec<ErrorPage> {
    let mut pages = Vec::new();
    for Located { value: raw, .. } in raw.iter().flat_map(|pages| &pages.value.0) {
        refuse_successes(&raw.status, "an error page is for statuses from 400 to 599", report);
        let Some(page) = page(&raw.body, &raw.file, &raw.content_type, defaults::ERROR_CONTENT_TYPE, base) else {
            continue;
        };
        let statuses = listed(&raw.status, |status| (status.0, status.1));
        pages.push(ErrorPage { statuses, page, json: raw.json.as_ref().map(|json| json.value.0.clone()) });
    }
    pages
}

fn page(
    body: &Option<Located<BodyText>>,
    file: &Option<Located<FileName>>,
    content_type: &Option<Located<HeaderValue>>,
    default_type: &str,
    base: &Path,
) -> Option<Page> {
    let body = match body {
        Some(body) => PageBody::Text(body.value.0.clone()),
        None => PageBody::File(self::file(file, base)?),
    };
    let content_type = content_type.as_ref().map_or(default_type, |content_type| &content_type.value.0).to_owned();
    Some(Page { content_type, body })
}
