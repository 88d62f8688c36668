//! A small seeded generator, for the order of rounds and for resampling.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Not for secrets.
///
/// It is our own implementation because a run records its seed, and the same order and intervals must result with any later version of a
/// library.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number of at least 0 and less than 1.
    pub fn unit(&mut self) -> f64 {
        // The 53 bits that a double holds.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles `items` so that each one is equally likely at each place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_those_of_the_reference() {
        // The reference implementation's output for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_shuffle_keeps_all_and_reaches_every_order() {
        let mut rng = Rng::new(1);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            rng.shuffle(&mut items);
            orders.insert(items);
        }
        assert_eq!(orders.len(), 6, "{orders:?}");
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(7);
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| rng.below(5) < 5));
        assert!((0..1000).map(|_| rng.unit()).all(|unit| (0.0..1.0).contains(&unit)));
    }
}
