//! What commands have added to the configuration: vips, until the process ends.
//!
//! Job: hold them, and say whether they can stand beside what the source gives. Not its job: using them.

use model::{Snapshot, Vip};

/// Vips that commands have added. In the memory of this process alone: a file is how to keep one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overlay {
    added: Vec<Vip>,
}

impl Overlay {
    /// With one more.
    ///
    /// # Errors
    /// It cannot stand beside the others; in a sentence.
    pub(crate) fn with(&self, vip: Vip, source: &Snapshot) -> Result<Self, String> {
        if let Some(why) = source.vips.iter().chain(&self.added).find_map(|other| conflict(&vip, other)) {
            return Err(why);
        }
        let count = source.vips.len() + self.added.len();
        if count >= config::VIPS_MAX {
            return Err(format!("there are {count} vips; the kernel plane has room for {}", config::VIPS_MAX));
        }
        let mut with = self.clone();
        with.added.push(vip);
        Ok(with)
    }

    /// Without the one of this name.
    ///
    /// # Errors
    /// It was not added; in a sentence.
    pub(crate) fn without(&self, name: &str, source: &Snapshot) -> Result<Self, String> {
        let mut without = self.clone();
        without.added.retain(|vip| vip.name != name);
        if without.added.len() < self.added.len() {
            return Ok(without);
        }
        if source.vips.iter().any(|vip| vip.name == name) {
            return Err(format!("the vip {name} comes from the file: remove it there, then `steelyard reload`"));
        }
        let names: Vec<&str> = self.added.iter().map(|vip| vip.name.as_str()).collect();
        let there =
            if names.is_empty() { "none was added".to_owned() } else { format!("there are {}", names.join(", ")) };
        Err(format!("no vip {name} was added; {there}"))
    }

    /// What can stay beside a new snapshot: where the two contradict each other the source is right. Says what had to go.
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

    /// All vips, those of the source first; each with whether it was added.
    pub(crate) fn over<'v>(&'v self, source: &'v Snapshot) -> impl Iterator<Item = (&'v Vip, bool)> {
        source.vips.iter().map(|vip| (vip, false)).chain(self.added.iter().map(|vip| (vip, true)))
    }
}

/// Why two vips cannot stand beside each other.
fn conflict(new: &Vip, other: &Vip) -> Option<String> {
    if new.name == other.name {
        return Some(format!("there is a vip {} already", other.name));
    }
    let same = new.address == other.address && new.transport == other.transport;
    let overlap = new.ports.first <= other.ports.last && other.ports.first <= new.ports.last;
    (same && overlap).then(|| {
        format!(
            "the vips {} and {} have a port of {} in common: a port belongs to one vip",
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
        check(vip("web", "10.0.0.2:80/tcp"), "there is a vip web already");
        check(vip("api", "10.0.0.2:80/tcp"), "there is a vip api already");
        check(
            vip("x", "10.0.0.1:79-80/tcp"),
            "the vips x and web have a port of 10.0.0.1 in common: a port belongs to one vip",
        );
        assert!(overlay.with(vip("x", "10.0.0.1:80/udp"), &source).is_ok());

        let check = |name: &str, why: &str| assert_eq!(overlay.without(name, &source), Err(why.to_owned()));
        check("web", "the vip web comes from the file: remove it there, then `steelyard reload`");
        check("dns", "no vip dns was added; there are api");
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
        assert_eq!(gone, ["the vips api and web have a port of 10.0.0.1 in common: a port belongs to one vip"]);
    }
}
