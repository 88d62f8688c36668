//! Keys that have `off` or an object, and that a route takes from its listener if it says nothing.

use std::sync::Arc;

use crate::diagnostic::{Report, Wrong};
use crate::raw::TextOrObject;
use crate::read::Located;

/// What a route says under `key`, or what it takes from its listener. `off` is for what the listener says.
pub fn or_inherited<R: TextOrObject, T>(
    key: &str,
    raw: &Option<Located<R>>,
    inherited: Option<&Arc<T>>,
    report: &mut Report,
    lower: impl FnOnce(&R::Object, &mut Report) -> Option<T>,
) -> Option<Arc<T>> {
    let Some(Located { location, value }) = raw else { return inherited.cloned() };
    let Some(object) = value.object() else {
        if inherited.is_none() {
            let wrong = Wrong::new(format!("`{key}: off` has no effect: the listener has no `{key}`"));
            report.add(*location, wrong.hint("remove it"));
        }
        return None;
    };
    lower(object, report).map(Arc::new)
}

/// What is said without a listener. `off` is for what is less specific.
pub fn alone<R: TextOrObject, T>(
    raw: &Option<Located<R>>,
    report: &mut Report,
    lower: impl FnOnce(&R::Object, &mut Report) -> Option<T>,
) -> Option<Arc<T>> {
    lower(raw.as_ref()?.value.object()?, report).map(Arc::new)
}
