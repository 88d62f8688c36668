//! Routes that an operator has put into maintenance while the process runs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

/// The routes of a listener that are in maintenance, by name. All workers and all snapshots of the listener share them.
#[derive(Default)]
pub(crate) struct Maintenance {
    /// Whether there are any: what a request looks at while there are none.
    is_any: AtomicBool,
    routes: RwLock<BTreeSet<String>>,
}

impl Maintenance {
    pub(crate) fn has(&self, route: &str) -> bool {
        self.is_any.load(Relaxed) && self.routes.read().unwrap_or_else(PoisonError::into_inner).contains(route)
    }

    /// The names of the routes. The listener may no longer have some of them.
    pub(crate) fn routes(&self) -> BTreeSet<String> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether that is a change.
    pub(crate) fn set(&self, route: &str, on: bool) -> bool {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = if on { routes.insert(route.to_owned()) } else { routes.remove(route) };
        self.is_any.store(!routes.is_empty(), Relaxed);
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_in_maintenance_until_it_is_put_back() {
        let maintenance = Maintenance::default();
        assert!(!maintenance.has("shop"));
        assert!(maintenance.set("shop", true));
        assert!(!maintenance.set("shop", true));
        assert!(maintenance.set("cart", true));
        assert_eq!(["shop", "cart", "other"].map(|route| maintenance.has(route)), [true, true, false]);
        assert!(maintenance.set("shop", false));
        assert!(!maintenance.set("shop", false));
        assert_eq!(["shop", "cart"].map(|route| maintenance.has(route)), [false, true]);
    }
}
