//! Detects drift over the rounds.

/// Fewer rounds than this show no trend: with six, one order in three already gives a correlation beyond 0.5.
pub const DRIFT_ROUNDS_MIN: usize = 7;

/// Beyond this, a series counts as drifting.
const CORRELATION_MAX: f64 = 0.5;

/// The rank correlation of `values` with their order: 1 if they only rise, -1 if they only fall (Spearman, "The Proof and Measurement of
/// Association between Two Things", 1904). Ties share their mean rank. None for fewer than three values, or if all are equal.
pub fn spearman(values: &[f64]) -> Option<f64> {
    if values.len() < 3 {
        return None;
    }
    let ranks = ranks(values);
    let middle = (values.len() - 1) as f64 / 2.0;
    let (mut together, mut of_order, mut of_ranks) = (0.0, 0.0, 0.0);
    for (order, rank) in ranks.iter().enumerate() {
        let (order, rank) = (order as f64 - middle, rank - middle);
        together += order * rank;
        of_order += order * order;
        of_ranks += rank * rank;
    }
    (of_ranks > 0.0).then(|| together / (of_order * of_ranks).sqrt())
}

/// Whether the rounds rise or fall so much with time that their median describes no state of the host: `|ρ| > 0.5` over
/// [`DRIFT_ROUNDS_MIN`] rounds or more.
pub fn drifts(values: &[f64]) -> bool {
    values.len() >= DRIFT_ROUNDS_MIN && spearman(values).is_some_and(|rho| rho.abs() > CORRELATION_MAX)
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&left, &right| values[left].total_cmp(&values[right]));
    let mut ranks = vec![0.0; values.len()];
    let mut rank = 0;
    for equal in order.chunk_by(|&left, &right| values[left] == values[right]) {
        let shared = rank as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&place| ranks[place] = shared);
        rank += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], rho: Option<f64>, is_drift: bool) {
        match (spearman(values), rho) {
            (Some(got), Some(expect)) => assert!((got - expect).abs() < 1e-3, "{got}, not {expect}"),
            (got, expect) => assert_eq!(got, expect),
        }
        assert_eq!(drifts(values), is_drift);
    }

    #[test]
    fn correlation_with_time() {
        check(&[1.0, 2.0, 30.0, 31.0, 32.0, 33.0, 90.0], Some(1.0), true);
        check(&[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], Some(-1.0), true);
        // Two neighbours swapped twice: 1 - 6 * (1 + 1 + 1 + 1) / (7 * 48).
        check(&[1.0, 4.0, 2.0, 4.5, 5.0, 8.0, 6.0], Some(0.9286), true);
        check(&[5.0, 1.0, 7.0, 2.0, 6.0, 3.0, 4.0], Some(0.0), false);
        // Ties: ranks 0, 2, 2, 2, 4.
        check(&[1.0, 2.0, 2.0, 2.0, 3.0], Some(0.8944), false);
        check(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], None, false);
        check(&[1.0, 2.0], None, false);
    }

    #[test]
    fn too_few_rounds_do_not_drift() {
        check(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Some(1.0), false);
    }
}
