//! Texts of annotations that become a part of a message's head: none of them may begin another line there.
//!
//! The kinds of this program check their own texts. Annotations are texts of anybody who may write an Ingress, and each is checked where it is
//! read (`Form`), so that this finds nothing. It checks all of them again where a route leaves for the snapshot.

use model::{
    Changes, FieldPart, FieldValue, HeaderChanges, PageBody, PathRewrite, Redirect, Rewrite, Route, RouteAction,
    RoutePolicy, TemplatePart,
};

/// The first text of a route that has a character which no head may have.
pub(super) fn broken(route: &Route) -> Option<&str> {
    let RoutePolicy { changes, own_headers, mirrors, intercept_errors, fallback, .. } = &*route.policy;
    let of_clusters = route.to.shares().iter().filter_map(|share| share.changes.as_deref());
    let requests = intercept_errors.iter().map(|errors| &errors.request_headers);
    let requests = requests.chain(fallback.iter().map(|fallback| &fallback.request_headers));
    let hosts = mirrors.iter().filter_map(|mirror| mirror.host.as_deref());
    let of_changes = std::iter::once(changes).chain(of_clusters).flat_map(of_changes);
    let of_headers = std::iter::once(own_headers).chain(requests).flat_map(of_headers);
    of_changes.chain(of_headers).chain(hosts).chain(of_action(&route.to)).find(|text| has_control(text))
}

/// RFC 9110 section 5.5: a tab is the only control character in the value of a field.
fn has_control(text: &str) -> bool {
    text.bytes().any(|byte| byte != b'\t' && byte.is_ascii_control())
}

fn of_changes(changes: &Changes) -> impl Iterator<Item = &str> {
    let Changes { request_headers, response_headers, rewrite: Rewrite { host, path } } = changes;
    let headers = of_headers(request_headers).chain(of_headers(response_headers));
    headers.chain(host.as_deref()).chain(path.iter().flat_map(of_path))
}

fn of_headers(HeaderChanges { set, add, remove }: &HeaderChanges) -> impl Iterator<Item = &str> {
    let changed = set.iter().chain(add);
    let texts = changed.flat_map(|(name, value)| std::iter::once(name.as_str()).chain(of_value(value)));
    texts.chain(remove.iter().map(String::as_str))
}

fn of_value(value: &FieldValue) -> Vec<&str> {
    match value {
        FieldValue::Text(text) => vec![text],
        FieldValue::Template(parts) => parts
            .iter()
            .filter_map(|part| match part {
                FieldPart::Text(text) => Some(text.as_str()),
                FieldPart::Variable(_) => None,
            })
            .collect(),
    }
}

fn of_path(path: &PathRewrite) -> Vec<&str> {
    match path {
        PathRewrite::Full(text) | PathRewrite::Prefix(text) => vec![text],
        PathRewrite::Template(template) => template
            .0
            .iter()
            .filter_map(|part| match part {
                TemplatePart::Text(text) => Some(text.as_str()),
                TemplatePart::Group(_) => None,
            })
            .collect(),
    }
}

fn of_action(action: &RouteAction) -> Vec<&str> {
    match action {
        RouteAction::Clusters(_) => Vec::new(),
        RouteAction::Redirect(Redirect { host, path, .. }) => {
            host.as_deref().into_iter().chain(path.iter().flat_map(of_path)).collect()
        }
        RouteAction::Respond(response) => {
            let headers = response.headers.iter().flat_map(|(name, value)| [name.as_str(), value]);
            let page = response.page.as_ref().and_then(|page| match &page.body {
                PageBody::Text(_) => Some(page.content_type.as_str()),
                PageBody::File(_) => None,
            });
            headers.chain(page).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ClusterId, PathMatcher};

    use super::*;

    #[test]
    fn every_text_of_a_head_is_looked_at() {
        let check = |change: &dyn Fn(&mut Route), expect: Option<&str>| {
            let mut route = Route::to_all("a", ClusterId(0).into());
            route.path = PathMatcher::Exact("/a\n".to_owned());
            change(&mut route);
            assert_eq!(broken(&route), expect);
        };
        let text = |text: &str| FieldValue::Text(text.to_owned());
        check(&|_| {}, None);
        check(&|route| route.policy.changes.request_headers.set.push(("a".to_owned(), text("b\tc"))), None);
        check(&|route| route.policy.changes.request_headers.set.push(("a".to_owned(), text("b\nc"))), Some("b\nc"));
        check(&|route| route.policy.changes.response_headers.remove.push("a\r".to_owned()), Some("a\r"));
        check(&|route| route.policy.own_headers.add.push(("a".to_owned(), text("\0"))), Some("\0"));
        check(&|route| route.policy.changes.rewrite.path = Some(PathRewrite::Full("/\n".to_owned())), Some("/\n"));
        check(&|route| route.policy.changes.rewrite.host = Some("h\u{7f}".to_owned()), Some("h\u{7f}"));
        let answer = model::FixedResponse { status: 302, headers: vec![("location".into(), "/\n".into())], page: None };
        check(&|route| route.to = RouteAction::Respond(answer.clone()), Some("/\n"));
    }
}
