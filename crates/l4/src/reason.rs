//! The reasons why a packet is not forwarded. `bpf/drop.h` is the only list: the enum there, the names in metrics and status, and
//! `docs/drops.md` are made from it.

use std::fmt::Write;

/// A row of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropReason {
    /// A number is never reused, not even after its reason is gone.
    pub number: u8,
    /// The name in metrics and status.
    pub name: &'static str,
    /// What it means, and what to do about it.
    pub text: &'static str,
}

impl DropReason {
    /// All reasons, by number.
    pub const ALL: &'static [Self] = include!(concat!(env!("OUT_DIR"), "/reasons.rs"));

    /// The reason with this number.
    pub fn of(number: u8) -> Option<&'static Self> {
        Self::ALL.iter().find(|reason| reason.number == number)
    }

    /// The text of `docs/drops.md`.
    pub fn page() -> String {
        let mut page = String::from(
            "# Drops\n\n\
             Why the kernel plane does not forward a packet. These names are in `steelyard status`, in `steelyard trace`, and in the label `reason` of\n\
             `steelyard_vip_drops_total`. Written by `cargo run -p l4 --example drops` from `crates/l4/bpf/drop.h`.\n\n\
             | reason | what it means, and what to do |\n|---|---|\n",
        );
        for reason in Self::ALL {
            // Writing to a String does not fail.
            let _ = writeln!(page, "| `{}` | {} |", reason.name, reason.text);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_in_order() {
        assert!(DropReason::ALL.is_sorted_by_key(|reason| reason.number));
        let names: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.name).collect();
        let numbers: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.number).collect();
        assert_eq!((names.len(), numbers.len()), (DropReason::ALL.len(), DropReason::ALL.len()));
        assert!(numbers.iter().all(|number| (1..64).contains(number)));
    }

    #[test]
    fn what_others_rest_on_keeps_its_number() {
        let check = |number: u8, name: &str| assert_eq!(DropReason::of(number).map(|reason| reason.name), Some(name));
        check(1, "malformed");
        check(6, "no_endpoint");
        check(9, "flow_table_full");
        assert_eq!(DropReason::of(0), None);
        assert_eq!(DropReason::of(63), None);
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/drops.md");
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, DropReason::page(), "run `cargo run -p l4 --example drops > docs/drops.md`");
    }
}
