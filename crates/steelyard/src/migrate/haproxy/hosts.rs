//! The order of routes: HAProxy goes through its rules one by one, and Steelyard looks at the routes of the most specific host first.

use std::collections::{BTreeSet, HashMap};

use super::super::draft::Keys;
use super::super::pattern::covers;

/// Names of hosts in all routes of a listener together.
const NAMES_MAX: usize = 200_000;

/// Gives routes the hosts that make Steelyard try them in the order in which they are written: a route that stands before one for a host also
/// gets this host, if it takes its requests. `None` if that becomes too long.
pub(super) fn ordered(routes: Vec<Keys>) -> Option<Vec<Keys>> {
    // For each host, the last route that names it.
    let mut last: HashMap<String, usize> = HashMap::new();
    for (number, route) in routes.iter().enumerate() {
        names(route, "hosts").into_iter().for_each(|name| {
            last.insert(name, number);
        });
    }
    let mut all: Vec<(&String, usize)> = last.iter().map(|(name, number)| (name, *number)).collect();
    all.sort();
    let (mut ordered, mut count) = (Vec::new(), 0);
    for (number, route) in routes.into_iter().enumerate() {
        let own = names(&route, "hosts");
        let is_within = |name: &str| own.is_empty() || own.iter().any(|own| covers(own, name));
        let later = all.iter().filter(|(_, last)| *last > number).map(|(name, _)| *name);
        let hosts: BTreeSet<String> = own.iter().chain(later.filter(|name| is_within(name))).cloned().collect();
        count += hosts.len() + own.len() * all.len() / 100;
        if count > NAMES_MAX {
            return None;
        }
        if !hosts.is_empty() {
            let mut keys = Keys::default().with("hosts", hosts.into_iter().collect::<Vec<_>>());
            route.entries().filter(|(key, _)| *key != "hosts").for_each(|(key, value)| keys.set(key, value.clone()));
            ordered.push(keys);
        }
        if own.is_empty() {
            ordered.push(route);
        }
    }
    Some(ordered)
}

/// The names of a route that no earlier one takes, which is all that is needed if names are the only conditions.
pub(super) fn unclaimed(names: Vec<String>, claimed: &mut Vec<String>) -> Vec<String> {
    let new: Vec<String> = names.into_iter().filter(|name| !claimed.iter().any(|known| covers(known, name))).collect();
    claimed.extend(new.iter().cloned());
    new
}

/// Texts of a list of a route.
pub(super) fn names(route: &Keys, key: &str) -> Vec<String> {
    route
        .get(key)
        .and_then(|all| all.as_array())
        .into_iter()
        .flatten()
        .filter_map(|one| one.as_str())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_file() {
        let route = |hosts: &[&str], to: &str| match hosts {
            [] => Keys::default().with("to", to),
            hosts => Keys::default().with("hosts", hosts.to_vec()).with("to", to),
        };
        let routes = vec![route(&[], "1"), route(&["*.b"], "2"), route(&["a.b"], "3"), route(&[], "4")];
        let told: Vec<String> = ordered(routes)
            .unwrap()
            .iter()
            .map(|one| format!("{}{}", names(one, "hosts").join(","), one.get("to").unwrap()))
            .collect();
        assert_eq!(told, ["*.b,a.b\"1\"", "\"1\"", "*.b,a.b\"2\"", "a.b\"3\"", "\"4\""]);
        let mut claimed = Vec::new();
        assert_eq!(unclaimed(vec!["*.b".to_owned()], &mut claimed), ["*.b"]);
        assert_eq!(unclaimed(vec!["a.b".to_owned(), "b".to_owned()], &mut claimed), ["b"]);
    }
}
