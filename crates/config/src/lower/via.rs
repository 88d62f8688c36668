//! `Via`.

use std::sync::Arc;

use model::Via;

use crate::diagnostic::{Report, Wrong};
use crate::raw::RawVia;
use crate::read::{Flag, Located};

/// What the requests of a listener or a route say of their way. A route that says nothing takes that of its listener.
pub fn via(raw: &Option<Located<RawVia>>, inherited: Option<&Arc<Via>>, report: &mut Report) -> Option<Arc<Via>> {
    let Some(Located { location, value }) = raw else { return inherited.cloned() };
    if let (RawVia::Text(_), None) = (value, inherited) {
        let wrong = Wrong::new("`via: off` has no effect: the listener has no `via`");
        report.add(*location, wrong.hint("remove it"));
    }
    alone(raw)
}

/// The same without a listener.
pub fn alone(raw: &Option<Located<RawVia>>) -> Option<Arc<Via>> {
    let RawVia::Object(object) = &raw.as_ref()?.value else { return None };
    let is_set = |flag: &Option<Located<Flag>>, default| flag.as_ref().map_or(default, |flag| flag.value.0);
    Some(Arc::new(Via {
        // If it is missing, the report says so.
        name: object.name.as_ref()?.value.0.clone(),
        in_response: is_set(&object.in_response, false),
        refuses_loops: is_set(&object.refuse_loops, true),
        cdn_loop: is_set(&object.cdn_loop, false),
    }))
}
