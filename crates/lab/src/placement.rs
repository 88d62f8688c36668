//! Assigns CPUs to the components.
//!
//! The balancer gets CPUs of its own, and load and origins get the rest. NUMA is not considered: on a host with several nodes, start the
//! lab under `taskset` with the CPUs of one.

/// CPUs of the three components of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The balancer's.
    pub balancer: Vec<u32>,
    /// The load's.
    pub client: Vec<u32>,
    /// The origins'.
    pub origin: Vec<u32>,
}

impl Placement {
    /// Places a balancer with this many workers on the available CPUs.
    ///
    /// The balancer gets the last CPUs, because interrupts and other processes prefer the first. Load and origins share the rest two to
    /// one, because a load costs about twice as much as the origin; if only one CPU is left, both use it. If none is left, all share all
    /// CPUs.
    #[must_use]
    pub fn new(cpus: &[u32], workers: u32) -> Self {
        let workers = workers as usize;
        if workers >= cpus.len() {
            return Self { balancer: cpus.to_vec(), client: cpus.to_vec(), origin: cpus.to_vec() };
        }
        let (rest, balancer) = cpus.split_at(cpus.len() - workers);
        if rest.len() == 1 {
            return Self { balancer: balancer.to_vec(), client: rest.to_vec(), origin: rest.to_vec() };
        }
        let (client, origin) = rest.split_at((rest.len() * 2).div_ceil(3).min(rest.len() - 1));
        Self { balancer: balancer.to_vec(), client: client.to_vec(), origin: origin.to_vec() }
    }

    /// Whether the balancer shares CPUs with its load. Its figures are then not a capacity.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.balancer.iter().any(|cpu| self.client.contains(cpu) || self.origin.contains(cpu))
    }

    /// The placement in words.
    #[must_use]
    pub fn text(&self) -> String {
        let [balancer, client, origin] = [&self.balancer, &self.client, &self.origin].map(|cpus| list(cpus));
        format!("balancer on CPU {balancer}, load on CPU {client}, origins on CPU {origin}")
    }
}

/// The list in the format of taskset(1).
#[must_use]
pub fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The mask in the format of sysfs's `rps_cpus`: hexadecimal words of 32 bits, the most significant first.
#[must_use]
pub fn mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |most| *most as usize / 32 + 1);
    let mut mask = vec![0_u32; words];
    for cpu in cpus {
        if let Some(word) = mask.get_mut(*cpu as usize / 32) {
            *word |= 1 << (cpu % 32);
        }
    }
    mask.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_place() {
        let check = |count: u32, workers, expect: &str, is_contended| {
            let cpus: Vec<u32> = (0..count).collect();
            let placement = Placement::new(&cpus, workers);
            let Placement { balancer, client, origin } = &placement;
            assert_eq!([balancer, client, origin].map(|cpus| list(cpus)).join(" "), expect, "{count} {workers}");
            assert_eq!(placement.is_contended(), is_contended);
        };
        check(1, 1, "0 0 0", true);
        check(2, 1, "1 0 0", false);
        check(2, 2, "0,1 0,1 0,1", true);
        check(3, 1, "2 0 1", false);
        check(4, 1, "3 0,1 2", false);
        check(8, 4, "4,5,6,7 0,1,2 3", false);
        check(8, 1, "7 0,1,2,3,4 5,6", false);
    }

    #[test]
    fn masks() {
        for (cpus, expect) in
            [(&[][..], "00000000"), (&[0], "00000001"), (&[1, 3], "0000000a"), (&[0, 33], "00000002,00000001")]
        {
            assert_eq!(mask(cpus), expect);
        }
    }
}
