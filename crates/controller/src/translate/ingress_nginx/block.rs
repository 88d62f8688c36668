//! `block-user-agents` and `block-referers` of the ConfigMap: ingress-nginx asks them first of all, on every host.

use model::{HostMatcher, Route, ValueMatcher};

use super::snippets::{Before, Rest, everything};
use super::{Ingress, Making, respond};
use crate::ingress_nginx::{Step, Test};

impl<'t> Making<'t, '_, '_> {
    /// Adds the routes of a host that refuse such requests. The answers that are returned come behind all of its other routes.
    ///
    /// # Errors
    /// An expression cannot be compiled.
    pub(super) fn block(
        &mut self,
        (name, by): (&str, Ingress<'t>),
        hosts: &[HostMatcher],
    ) -> Result<Vec<Rest>, String> {
        let plans = self.with.plans;
        let label = label(name);
        let before = Before { ingress: by, label: &label, hosts, path: &everything(), place: None };
        let refused = |why| format!("block-user-agents or block-referers of the ConfigMap: {why}");
        self.steps(before, &plans.globals.blocks).map_err(refused)
    }

    /// Adds the answers that [`Making::block`] has returned.
    pub(super) fn behind_block(&mut self, (name, by): (&str, Ingress<'t>), hosts: &[HostMatcher], rests: Vec<Rest>) {
        let label = label(name);
        self.rests(Before { ingress: by, label: &label, hosts, path: &everything(), place: None }, rests);
    }

    /// The routes for the hosts that no Ingress has: those that refuse requests, and then the one for the others.
    ///
    /// # Errors
    /// As [`Making::block`].
    pub(super) fn blocked_rest(&mut self, mut others: Route) -> Result<Vec<Route>, String> {
        let plans = self.with.plans;
        let (mut before, mut behind) = (Vec::new(), None);
        for (number, step) in plans.globals.blocks.iter().enumerate() {
            let Step::If { test: Test::Header(name, like), is_not, .. } = step else { continue };
            let matcher: ValueMatcher = self.value(name, like)?;
            let refused = respond(format!("{}.if{number}", label("*")), 403, None);
            match is_not {
                false => before.push(Route { headers: vec![matcher], ..refused }),
                true => {
                    others.headers.push(matcher);
                    behind = Some(refused);
                }
            }
        }
        before.push(others);
        before.extend(behind);
        Ok(before)
    }
}

fn label(host: &str) -> String {
    format!("ingress/block@{host}")
}
