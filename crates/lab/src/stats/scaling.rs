//! What more of something costs or gains: slopes over chained hops, and scaling over CPUs.

use serde::{Deserialize, Serialize};

use super::interval::{Estimate, estimate};

/// The slope of a straight line through each round's `(x, y)` (least squares): its median over rounds and the interval.
///
/// For a balancer chained 0, 1, 2, ... times, this is what one hop adds, without the cost of client and origin. None if no round has two
/// different `x`.
pub fn slope(rounds: &[Vec<(f64, f64)>]) -> Option<Estimate> {
    let slopes: Vec<f64> = rounds.iter().filter_map(|points| line_slope(points)).collect();
    estimate(&slopes)
}

fn line_slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    let together: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    (spread > 0.0).then(|| together / spread)
}

/// The Universal Scalability Law, `X(N) = λN / (1 + σ(N-1) + κN(N-1))` (Gunther, "Guerrilla Capacity Planning", 2007).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usl {
    /// Throughput of one unit.
    pub lambda: f64,
    /// Contention: the share of the work that only one unit can do at a time; 0 or more.
    pub sigma: f64,
    /// Crosstalk: what each pair of units costs; 0 or more.
    pub kappa: f64,
}

impl Usl {
    /// Throughput with `units`.
    pub fn throughput(&self, units: f64) -> f64 {
        self.lambda * units / (1.0 + self.sigma * (units - 1.0) + self.kappa * units * (units - 1.0))
    }

    /// The number of units at which throughput stops growing: `N* = sqrt((1-σ)/κ)`. None if it never does.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0 && self.sigma < 1.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt())
    }
}

/// Fits `(units, throughput)`, with every round as a point. None with fewer than two different numbers of units.
///
/// The law is linear in its reciprocal, `N/X = a + b(N-1) + cN(N-1)` with `λ = 1/a, σ = b/a, κ = c/a`, so least squares on relative errors
/// solve it directly. Negative σ and κ have no meaning: superlinear points mean that something else changed between them, and give 0 here.
/// With two numbers of units only σ can be determined.
pub fn fit_usl(points: &[(f64, f64)]) -> Option<Usl> {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|(n, x)| *n > 0.0 && *x > 0.0).collect();
    let mut numbers: Vec<f64> = points.iter().map(|(n, _)| *n).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let terms: &[&[Term]] = match numbers.len() {
        0 | 1 => return None,
        2 => &[&[Term::Sigma], &[]],
        _ => &[&[Term::Sigma, Term::Kappa], &[Term::Sigma], &[Term::Kappa], &[]],
    };
    // The best of the fits with meaningful parameters. There are at most two terms, so trying all combinations is exact.
    let fits = terms.iter().filter_map(|terms| least_squares(&points, terms)).filter(|usl| {
        let floor = -1e-9;
        usl.lambda.is_finite() && usl.lambda > 0.0 && usl.sigma >= floor && usl.kappa >= floor
    });
    fits.min_by(|left, right| misfit(&points, left).total_cmp(&misfit(&points, right))).map(|usl| Usl {
        sigma: usl.sigma.max(0.0),
        kappa: usl.kappa.max(0.0),
        ..usl
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Term {
    Sigma,
    Kappa,
}

fn misfit(points: &[(f64, f64)], usl: &Usl) -> f64 {
    // The error of the reciprocal, as in `least_squares`: a different measure could prefer a fit that is not the best of its kind.
    points.iter().map(|(n, x)| (x / usl.throughput(*n) - 1.0).powi(2)).sum()
}

/// Solves the normal equations for `1 = (x/n) * (a + b(n-1) + cn(n-1))`, with `b` and `c` only if requested.
fn least_squares(points: &[(f64, f64)], terms: &[Term]) -> Option<Usl> {
    let row = |n: f64, x: f64| {
        let sigma = if terms.contains(&Term::Sigma) { n - 1.0 } else { 0.0 };
        let kappa = if terms.contains(&Term::Kappa) { n * (n - 1.0) } else { 0.0 };
        [1.0, sigma, kappa].map(|term| term * x / n)
    };
    let mut matrix = [[0.0; 4]; 3];
    for &(n, x) in points {
        let row = row(n, x);
        for (line, left) in matrix.iter_mut().zip(row) {
            line.iter_mut().zip(row.into_iter().chain([1.0])).for_each(|(sum, right)| *sum += left * right);
        }
    }
    // The row of a term that was not requested is all zeros: set its factor to 0.
    for (place, term) in [(1, Term::Sigma), (2, Term::Kappa)] {
        if !terms.contains(&term) {
            matrix[place][place] = 1.0;
        }
    }
    let [a, b, c] = solve(matrix)?;
    Some(Usl { lambda: 1.0 / a, sigma: b / a, kappa: c / a })
}

/// Gauss-Jordan elimination with pivots on three equations. None if they do not determine the unknowns.
fn solve(mut lines: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for column in 0..3 {
        let pivot =
            (column..3).max_by(|&left, &right| lines[left][column].abs().total_cmp(&lines[right][column].abs()))?;
        lines.swap(column, pivot);
        let chosen = lines[column];
        if chosen[column].abs() < 1e-12 {
            return None;
        }
        for (_, line) in lines.iter_mut().enumerate().filter(|(place, _)| *place != column) {
            let factor = line[column] / chosen[column];
            line.iter_mut().zip(chosen).for_each(|(value, from)| *value -= factor * from);
        }
    }
    Some([0, 1, 2].map(|place| lines[place][3] / lines[place][place]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(points: &[(f64, f64)], expect: Option<(f64, f64, f64)>) {
        let got = fit_usl(points).map(|usl| (usl.lambda, usl.sigma, usl.kappa));
        let near = |got: f64, expect: f64| (got - expect).abs() <= 0.002 * expect.abs().max(1.0);
        match (got, expect) {
            (Some(got), Some(expect)) => {
                assert!(near(got.0, expect.0) && near(got.1, expect.1) && near(got.2, expect.2), "{got:?}");
            }
            (got, expect) => assert_eq!(got, expect),
        }
    }

    #[test]
    fn fits_find_what_made_the_points() {
        let made = |usl: Usl| [1.0, 2.0, 4.0, 8.0, 16.0].map(|n| (n, usl.throughput(n)));
        check(&made(Usl { lambda: 1000.0, sigma: 0.05, kappa: 0.002 }), Some((1000.0, 0.05, 0.002)));
        check(&made(Usl { lambda: 1000.0, sigma: 0.0, kappa: 0.0 }), Some((1000.0, 0.0, 0.0)));
        check(&made(Usl { lambda: 20.0, sigma: 0.0, kappa: 0.01 }), Some((20.0, 0.0, 0.01)));
        check(&[(1.0, 100.0), (2.0, 160.0)], Some((100.0, 0.25, 0.0)));
        check(&[(1.0, 100.0), (1.0, 160.0)], None);
        check(&[], None);
    }

    #[test]
    fn superlinear_points_give_no_negative_contention() {
        let usl = fit_usl(&[(1.0, 100.0), (2.0, 250.0)]).unwrap();
        assert_eq!((usl.sigma, usl.kappa), (0.0, 0.0));
        // Between the two, and closer to neither than relative errors imply.
        assert!(usl.lambda > 100.0 && usl.lambda < 125.0, "{usl:?}");
    }

    #[test]
    fn a_published_series_is_not_linear() {
        // 1, 2, 4 and 8 virtual CPUs of a public ingress report.
        let usl = fit_usl(&[(1.0, 3022.68), (2.0, 5556.20), (4.0, 8616.95), (8.0, 11006.89)]).unwrap();
        assert!(usl.sigma > 0.05 && usl.sigma < 0.2, "{usl:?}");
        let efficiency = usl.throughput(8.0) / (8.0 * usl.throughput(1.0));
        assert!((efficiency - 0.46).abs() < 0.03, "{efficiency}");
    }

    #[test]
    fn peaks() {
        assert_eq!(Usl { lambda: 1.0, sigma: 0.0, kappa: 0.01 }.peak(), Some(10.0));
        assert_eq!(Usl { lambda: 1.0, sigma: 0.1, kappa: 0.0 }.peak(), None);
    }

    #[test]
    fn slopes_are_per_round() {
        let hops = |base: f64, each: f64| [0.0, 1.0, 2.0, 4.0].map(|hops| (hops, base + each * hops)).to_vec();
        // The base varies by half between rounds; what a hop adds does not.
        let got = slope(&[hops(100.0, 15.0), hops(150.0, 15.2), hops(80.0, 14.8)]).unwrap();
        assert!((got.median - 15.0).abs() < 1e-9 && (got.low - 14.8).abs() < 1e-9, "{got:?}");
        assert_eq!(slope(&[vec![(1.0, 2.0), (1.0, 3.0)]]), None);
    }
}
