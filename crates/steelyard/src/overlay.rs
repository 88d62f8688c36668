//! Vips that commands have added to the configuration. They last until the process ends.
//!
//! Job: hold them, and detect conflicts with the vips of the configuration source. Not its job: serving them.

use model::{Snapshot, Vip};

/// Vips that commands have added. Only the memory of this process has them; a vip in the file survives a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overlay {
    added: Vec<Vip>,
}

impl Overlay {
    /// Returns the overlay with one more vip.
    ///
    /// # Errors
    /// Says in a sentence why the vip conflicts with the others.
    pub(crate) fn with(&self, vip: Vip, source: &Snapshot) -> Result<Self, String> {
        if let Some(why) = source.vips.iter().chain(&self.added).find_map(|other| conflict(&vip, other)) {
            return Err(why);
        }
        let count = source.vips.len() + self.added.len();
        if count >= config::VIPS_MAX {
            return Err(format!(
                "there are {count} vips already, and the kernel plane serves at most {}",
                config::VIPS_MAX
            ));
        }
        let mut with = self.clone();
        with.added.push(vip);
        Ok(with)
    }

    /// Returns the overlay without the vip of this name.
    ///
    /// # Errors
    /// Says in a sentence that no command added such a vip.
    pub(crate) fn without(&self, name: &str, source: &Snapshot) -> Result<Self, String> {
        let mut without = self.clone();
        without.added.retain(|vip| vip.name != name);
        if without.added.len() < self.added.len() {
            return Ok(without);
        }
        if source.vips.iter().any(|vip| vip.name == name) {
            return Err(format!("the vip {name} comes from the file: remove it there, then run `steelyard reload`"));
        }
        let names: Vec<&str> = self.added.iter().map(|vip| vip.name.as_str()).collect();
        let there = if names.is_empty() {
            "none was added".to_owned()
        } else {
            format!("these were added: {}", names.join(", "))
        };
        Err(format!("no vip {name} was added by a command; {there}"))
    }

    /// Returns the vips that do not conflict with a new snapshot, and why the others were removed: in a conflict, the
    /// source wins.
    pub(crate) fn beside(&self, source: &Snapshot) -> (Self, Vec<String>) {
        let mut gone = Vec::new();
        let mut stays = Self::default();
        for vip in &self.added {
            match stays.with(vip.clone(), source) {
                Ok(with) => stays = with,
                Err(why) => gone.push(why),
            }
        }
        (stays, gone)
    }

    /// Returns all vips, those of the source first, each with whether a command added it.
    pub(crate) fn over<'v>(&'v self, source: &'v Snapshot) -> impl Iterator<Item = (&'v Vip, bool)> {
        source.vips.iter().map(|vip| (vip, false)).chain(self.added.iter().map(|vip| (vip, true)))
    }
}

/// Why two vips conflict, if they do.
fn conflict(new: &Vip, other: &Vip) -> Option<String> {
    if new.name == other.name {
        return Some(format!("there is already a vip {}", other.name));
    }
    let same = new.address == other.address && new.transport == other.transport;
    let overlap = new.ports.first <= other.ports.last && other.ports.first <= new.ports.last;
    (same && overlap).then(|| {
        format!(
            "the vips {} and {} share a port of {}: a port can belong to only one vip",
            new.name, other.name, new.address
        )
    })
}

#[cfg(test)]
mod tests {
    use model::Generation;

    use super::*;

    fn source(vips: &str) -> Snapshot {
        config::parse("f", &format!("vips: {{{vips}}}"), Generation(1)).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn vip(name: &str, address: &str) -> Vip {
        source(&format!("{name}: {{address: '{address}', interfaces: eth0, mode: local}}")).vips.remove(0)
    }

    fn names(overlay: &Overlay, source: &Snapshot) -> Vec<(String, bool)> {
        overlay.over(source).map(|(vip, added)| (vip.name.clone(), added)).collect()
    }

    #[test]
    fn added_and_removed() {
        let source = source("web: {address: 10.0.0.1:80/tcp, interfaces: eth0, mode: local}");
        let overlay = Overlay::default().with(vip("api", "10.0.0.1:81/tcp"), &source).unwrap();
        assert_eq!(names(&overlay, &source), [("web".to_owned(), false), ("api".to_owned(), true)]);
        let check = |new: Vip, why: &str| assert_eq!(overlay.with(new, &source), Err(why.to_owned()));
        check(vip("web", "10.0.0.2:80/tcp"), "there is already a vip web");
        check(vip("api", "10.0.0.2:80/tcp"), "there is already a vip api");
        check(
            vip("x", "10.0.0.1:79-80/tcp"),
            "the vips x and web share a port of 10.0.0.1: a port can belong to only one vip",
        );
        assert!(overlay.with(vip("x", "10.0.0.1:80/udp"), &source).is_ok());

        let check = |name: &str, why: &str| assert_eq!(overlay.without(name, &source), Err(why.to_owned()));
        check("web", "the vip web comes from the file: remove it there, then run `steelyard reload`");
        check("dns", "no vip dns was added by a command; these were added: api");
        assert_eq!(overlay.without("api", &source), Ok(Overlay::default()));
    }

    #[test]
    fn the_source_is_right() {
        let before = source("");
        let overlay = Overlay::default().with(vip("api", "10.0.0.1:81/tcp"), &before).unwrap();
        let overlay = overlay.with(vip("dns", "10.0.0.1:53/udp"), &before).unwrap();
        let after = source("web: {address: 10.0.0.1:81/tcp, interfaces: eth0, mode: local}");
        let (stays, gone) = overlay.beside(&after);
        assert_eq!(names(&stays, &after), [("web".to_owned(), false), ("dns".to_owned(), true)]);
        assert_eq!(gone, ["the vips api and web share a port of 10.0.0.1: a port can belong to only one vip"]);
    }
}
