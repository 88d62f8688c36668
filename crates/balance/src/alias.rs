//! Draws by weight in constant time: Vose's alias method, in integers.

use crate::rng::Rng;

/// A table of `n` columns, each equally likely, and each shared by at most two results.
#[derive(Debug, Default)]
pub(crate) struct AliasTable {
    columns: Vec<Column>,
}

#[derive(Clone, Copy, Debug)]
struct Column {
    /// Out of 2^32: below it the result is the column itself. 2^32 means always.
    own: u64,
    /// The result otherwise.
    other: u32,
}

const FULL: u64 = 1 << 32;

impl AliasTable {
    /// Builds the table for these weights, in linear time.
    pub(crate) fn rebuild(&mut self, weights: impl Iterator<Item = u64>) {
        self.columns.clear();
        // Weights scaled by n, so that the average column is `total`: no rounding until the last step.
        let mut scaled: Vec<u128> = weights.map(u128::from).collect();
        let total: u128 = scaled.iter().sum();
        let count = scaled.len() as u128;
        scaled.iter_mut().for_each(|weight| *weight *= count);
        self.columns.extend((0..scaled.len()).map(|column| Column { own: FULL, other: column as u32 }));

        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..scaled.len()).partition(|&column| scaled.get(column).is_some_and(|weight| *weight < total));
        while let (Some(&giver), Some(taker)) = (large.last(), small.pop()) {
            let has = scaled.get(taker).copied().unwrap_or(total);
            if let Some(column) = self.columns.get_mut(taker) {
                *column = Column { own: (has * u128::from(FULL) / total.max(1)) as u64, other: giver as u32 };
            }
            if let Some(left) = scaled.get_mut(giver) {
                *left = (*left + has).saturating_sub(total);
                if *left < total {
                    large.pop();
                    small.push(giver);
                }
            }
        }
    }

    /// Draws an index into the weights that the table was built from; `None` if there were none.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<usize> {
        let bits = rng.next_u64();
        // The high half selects the column, the low half the side of it.
        let column = ((bits >> 32) * self.columns.len() as u64) >> 32;
        let chosen = self.columns.get(column as usize)?;
        Some(if (bits & (FULL - 1)) < chosen.own { column as usize } else { chosen.other as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact probability of each, out of `n * 2^32`, must equal its weight's within the rounding of one column.
    fn check(weights: &[u64]) {
        let mut table = AliasTable::default();
        table.rebuild(weights.iter().copied());
        let mut chance = vec![0u128; weights.len()];
        for (position, column) in table.columns.iter().enumerate() {
            chance[position] += u128::from(column.own);
            chance[column.other as usize] += u128::from(FULL - column.own);
        }
        let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
        let all = weights.len() as u128 * u128::from(FULL);
        for (position, weight) in weights.iter().enumerate() {
            let expect = u128::from(*weight) * all / total;
            let off = chance[position].abs_diff(expect);
            assert!(off <= weights.len() as u128, "{weights:?}[{position}]: {} for {expect}", chance[position]);
        }
    }

    #[test]
    fn chances_are_the_weights() {
        check(&[1]);
        check(&[1, 1, 1]);
        check(&[5, 1, 1]);
        check(&[1, 2, 3, 4, 5, 6, 7]);
        check(&[65_535_000, 100, 1, 65_535_000, 7]);
    }

    #[test]
    fn empty_draws_nothing() {
        assert_eq!(AliasTable::default().draw(&mut Rng::new(1)), None);
    }

    #[test]
    fn draws_follow_the_chances() {
        let mut table = AliasTable::default();
        table.rebuild([3, 1].into_iter());
        let mut rng = Rng::new(11);
        let mut counts = [0u32; 2];
        for _ in 0..40_000 {
            counts[table.draw(&mut rng).unwrap()] += 1;
        }
        assert!((29_000..31_000).contains(&counts[0]), "{counts:?}");
    }
}
