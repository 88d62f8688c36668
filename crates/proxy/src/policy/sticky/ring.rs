//! The consistent hash by which ingress-nginx finds the endpoint of a session cookie: that of lua-resty-balancer (`resty.chash`).
//!
//! Each endpoint has 160 points on a ring of 32-bit hashes, and a key belongs to the last point that is not behind its own hash. All is made of
//! CRC-32 (ISO 3309), so anybody can compute a key for an endpoint: nothing here is a secret.

use crc32fast::Hasher;

/// Points of an endpoint, all of which have the same weight.
const POINTS: usize = 160;

/// The endpoints of a cluster on a ring.
pub(super) struct Ring {
    /// A hash, and the index of its endpoint. In the order of the hashes.
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// A ring of endpoints: their indices, and their addresses as text.
    pub(super) fn new(endpoints: impl Iterator<Item = (usize, String)>) -> Self {
        let points = endpoints.flat_map(|(index, address)| points(&address).map(move |hash| (hash, index)));
        let mut points: Vec<_> = points.collect();
        points.sort_unstable();
        Self { points }
    }

    /// The endpoint of a key. `None` if there are no endpoints.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let hash = crc32fast::hash(key);
        let behind = self.points.partition_point(|point| point.0 <= hash);
        // The first point also has what is before it; the ring is not closed.
        self.points.get(behind.saturating_sub(1)).map(|point| point.1)
    }
}

/// Each hash is that of the hash before it, in a state that the address has left behind.
fn points(address: &str) -> impl Iterator<Item = u32> + use<> {
    let base = crc32fast::hash(address.as_bytes());
    let next = move |before: &u32| {
        // `resty.chash` goes on from the finished checksum as if it were the state; the state of this hasher is its complement.
        let mut hasher = Hasher::new_with_initial(!base);
        hasher.update(&before.to_le_bytes());
        Some(hasher.finalize())
    };
    std::iter::successors(next(&0), next).take(POINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `resty.chash` answered under LuaJIT 2.1 for these endpoints, each of weight 1.
    #[test]
    fn every_key_has_the_endpoint_of_the_lua_library() {
        let endpoints = ["10.0.0.1:80", "10.0.0.2:80", "10.244.3.17:8080", "[fd00::5]:8080", "10.0.0.9:9000"];
        let ring = Ring::new(endpoints.iter().map(|address| (*address).to_owned()).enumerate());
        let check = |key: &str, expect: &str| {
            assert_eq!(ring.find(key.as_bytes()).map(|index| endpoints[index]), Some(expect), "{key}");
        };
        for (key, expect) in [
            ("1700000000.123.30.0", "10.0.0.9:9000"),
            ("1700007919.623.31.349780", "10.0.0.2:80"),
            ("1700015839.123.32.699560", "10.0.0.2:80"),
            ("1700023758.623.33.49341", "10.0.0.1:80"),
            ("1700031678.123.34.399121", "10.0.0.1:80"),
            ("1700039597.623.35.748901", "10.0.0.2:80"),
            ("1700047517.123.36.98682", "10.0.0.1:80"),
            ("1700055436.623.37.448462", "10.0.0.1:80"),
            ("1700063356.123.38.798242", "[fd00::5]:8080"),
            ("1700071275.623.39.148023", "10.0.0.1:80"),
            ("1700079195.123.40.497803", "[fd00::5]:8080"),
            ("1700087114.623.41.847583", "10.244.3.17:8080"),
            ("1700095034.123.42.197364", "10.0.0.2:80"),
            ("1700102953.623.43.547144", "10.0.0.1:80"),
            ("1700110873.123.44.896924", "10.0.0.2:80"),
            ("1700118792.623.45.246705", "10.0.0.2:80"),
            ("1700126712.123.46.596485", "10.244.3.17:8080"),
            ("1700134631.623.47.946265", "[fd00::5]:8080"),
            ("1700142551.123.48.296046", "10.0.0.9:9000"),
            ("1700150470.623.49.645826", "10.0.0.9:9000"),
            ("1700158390.123.50.995606", "10.244.3.17:8080"),
            ("1700166309.623.51.345387", "10.0.0.9:9000"),
            ("1700174229.123.52.695167", "10.0.0.2:80"),
            ("1700182148.623.53.44948", "10.244.3.17:8080"),
            ("1700190068.123.54.394728", "10.0.0.2:80"),
            ("1700197987.623.55.744508", "[fd00::5]:8080"),
            ("1700205907.123.56.94289", "10.0.0.2:80"),
            ("1700213826.623.57.444069", "[fd00::5]:8080"),
            ("1700221746.123.58.793849", "10.0.0.1:80"),
            ("1700229665.623.59.143630", "10.244.3.17:8080"),
            ("1700237585.123.60.493410", "10.0.0.1:80"),
            ("1700245504.623.61.843190", "10.0.0.9:9000"),
            ("1700253424.123.62.192971", "10.0.0.1:80"),
            ("1700261343.623.63.542751", "[fd00::5]:8080"),
            ("1700269263.123.64.892531", "10.244.3.17:8080"),
            ("1700277182.623.65.242312", "10.0.0.1:80"),
            ("1700285102.123.66.592092", "10.0.0.2:80"),
            ("1700293021.623.67.941872", "10.0.0.1:80"),
            ("1700300941.123.68.291653", "10.244.3.17:8080"),
            ("1700308860.623.69.641433", "10.0.0.2:80"),
            ("", "10.0.0.9:9000"),
            ("a", "[fd00::5]:8080"),
            ("0", "10.244.3.17:8080"),
        ] {
            check(key, expect);
        }
    }

    #[test]
    fn an_empty_ring_has_no_endpoint() {
        assert_eq!(Ring::new(std::iter::empty()).find(b"a"), None);
    }
}
