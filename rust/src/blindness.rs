//! What the counts cannot show, and what the policy part would be if nothing had changed.
//!
//! Everything here walks the occupied cells once, on request.

use statrs::function::gamma::checked_gamma_ur;

use crate::null_term::{Draw, Logs, NullTerm};

/// Pairs of the previous distribution that an observation needs to show a change of policy.
const SUPPORTED: u64 = 5;
/// Standard deviations of a shift that is found with probability 0.8 at the level of 1 %.
const DETECTABLE: f64 = 3.2;

/// A divergence of this many nats is none.
const ROUNDING: f64 = 1e-12;

/// An occupied cell: the number of its observation, and its counts.
pub(crate) type Counted = (u32, u64, u64);

/// An observation over all its actions: counts, and occupied cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stratum {
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) cells: u64,
}

/// What two distributions can show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blindness {
    /// Good and Turing's estimate of the probability that a further pair falls in a known cell.
    pub coverage: f64,
    /// Share of the current pairs whose observation has at least five pairs of the previous ones.
    pub support: f64,
    /// The policy part, in nats, that would be if the actions of each observation were exchangeable.
    pub policy_floor: f64,
    /// The policy part minus its floor; may be negative.
    pub policy_excess: f64,
    /// The excess in standard deviations; 0.0 where nothing could vary.
    pub policy_z: f64,
    /// P(a policy part at least this large) in a Gamma distribution of that mean and deviation.
    pub policy_pvalue: f64,
    /// The policy part, in nats, that is found with probability 0.8 at the level of 1 %; at most the
    /// largest one that the counts can show, which then says that none is found.
    pub detectable: f64,
}

impl Default for Blindness {
    /// What is known of nothing.
    fn default() -> Self {
        Self {
            coverage: 0.0,
            support: 0.0,
            policy_floor: 0.0,
            policy_excess: 0.0,
            policy_z: 0.0,
            policy_pvalue: 1.0,
            detectable: 0.0,
        }
    }
}

/// log(a / b), with all its digits where the two are close.
fn log_quotient(a: f64, b: f64) -> f64 {
    let change = (a - b) / b;
    if change.abs() < 0.5 {
        libm::log1p(change)
    } else {
        libm::log(a / b)
    }
}

/// Good and Turing's coverage.
pub(crate) fn coverage(cells: impl Iterator<Item = Counted>, pairs: u64) -> f64 {
    let single = cells.filter(|&(_, c, d)| c.saturating_add(d) == 1).count();
    if pairs == 0 {
        0.0
    } else {
        1.0 - single as f64 / pairs as f64
    }
}

/// The share of the current pairs in observations that the previous distribution knows well.
pub(crate) fn support(strata: impl Iterator<Item = Stratum>, current: u64) -> f64 {
    let supported: u64 = strata
        .filter(|stratum| stratum.previous >= SUPPORTED)
        .map(|stratum| stratum.current)
        .sum();
    if current == 0 {
        0.0
    } else {
        supported as f64 / current as f64
    }
}

/// Everything that is said of the policy part, beside coverage and support.
///
/// Given the pairs of each observation in both distributions, the actions are divided at random:
/// with f of [`crate::null_term`] an observation contributes
/// `sum over a of f(t) - (c + alpha k) (log(c + alpha k) - log(d + alpha k))` on average. One that is
/// missing in a distribution, or has one cell, cannot vary.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn policy(
    cells: impl Iterator<Item = Counted>,
    stratum: impl Fn(u32) -> Stratum,
    (current, previous, union): (u64, u64, u64),
    alpha: f64,
    value: f64,
    known: Blindness,
) -> Blindness {
    let mut logs = Logs::new(alpha);
    // In an order that does not depend on how the cells are numbered, because floats are added up:
    // the cells of an observation by their counts, the observations by their terms.
    let mut cells: Vec<Counted> = cells.collect();
    cells.sort_unstable();
    let mut terms: Vec<[f64; 3]> = Vec::new();
    for cells in cells.chunk_by(|a, b| a.0 == b.0) {
        let one = stratum(cells[0].0);
        if one.current == 0 || one.previous == 0 || one.cells < 2 {
            continue;
        }
        let (n, m) = (one.current as f64, one.previous as f64);
        let mass = alpha * one.cells as f64;
        // What the marginal of the observation takes off.
        let marginal = (n + mass) * log_quotient(n + mass, m + mass);
        let term = NullTerm::without_offset(Draw::Finite {
            current: one.current,
            previous: one.previous,
        });
        let (mut mean, mut found) = (-marginal, -marginal);
        for &(_, c, d) in cells {
            mean += term.evaluate(c.saturating_add(d), &mut logs);
            found += (c as f64 + alpha) * logs.quotient(c, d);
        }
        terms.push([mean, found, 2.0 * mean * mean / (one.cells - 1) as f64]);
    }
    terms.sort_unstable_by(|a, b| {
        let [first, second, _] = [0, 1, 2].map(|i| a[i].total_cmp(&b[i]));
        first.then(second)
    });
    let sum = |i: usize| terms.iter().map(|term| term[i]).sum::<f64>();
    let total = current as f64 + alpha * union as f64;
    let (expected, observed) = (sum(0) / total, sum(1) / total);
    let variance = sum(2) / (total * total);
    let deviation = variance.sqrt();
    let excess = observed - expected;
    let largest = libm::log(previous as f64 + alpha * union as f64) - libm::log(alpha);
    let support = known.support;
    Blindness {
        policy_floor: (value - excess).max(0.0),
        policy_excess: excess,
        policy_z: if deviation > 0.0 {
            excess / deviation
        } else {
            0.0
        },
        policy_pvalue: gamma_tail(observed, expected, variance),
        detectable: if support > 0.0 {
            (DETECTABLE * deviation / support).min(largest)
        } else {
            largest
        },
        ..known
    }
}

/// P(X > x) of a Gamma distribution with this mean and variance; 1.0 where there is none, and of a
/// divergence that is 0 but for rounding, near which the tail is steep.
fn gamma_tail(x: f64, mean: f64, variance: f64) -> f64 {
    if !(x > ROUNDING && mean > 0.0 && variance > 0.0) {
        return 1.0;
    }
    let tail = checked_gamma_ur(mean * mean / variance, x * mean / variance);
    tail.map_or(1.0, |p| {
        if p.is_finite() {
            p.clamp(0.0, 1.0)
        } else {
            1.0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gamma_tail_is_that_of_scipy() {
        // scipy.stats.gamma.sf(x, mean ** 2 / variance, scale=variance / mean)
        for (x, mean, variance, expected) in [
            (0.1, 0.08, 1e-4, 0.029_048_874_802_733_26),
            (2.0, 1.0, 0.5, 0.091_578_194_443_670_9),
            (0.5, 1.0, 0.5, 0.735_758_882_342_884_7),
        ] {
            let got = gamma_tail(x, mean, variance);
            assert!((got - expected).abs() < 1e-10, "{got} is not {expected}");
        }
        assert_eq!(gamma_tail(1.0, 0.0, 0.0), 1.0);
        assert_eq!(gamma_tail(0.0, 1.0, 1.0), 1.0);
    }

    #[test]
    fn singles_and_thin_observations_are_counted() {
        let cells = [(0, 1, 0), (0, 0, 1), (1, 3, 1)];
        assert_eq!(coverage(cells.into_iter(), 6), 1.0 - 2.0 / 6.0);
        assert_eq!(coverage(std::iter::empty(), 0), 0.0);
        let stratum = |current, previous| Stratum {
            current,
            previous,
            cells: 1,
        };
        let strata = [stratum(6, 5), stratum(2, 4)];
        assert_eq!(support(strata.into_iter(), 8), 0.75);
    }

    #[test]
    fn the_floor_of_one_observation_is_the_mean_over_all_divisions() {
        // Four pairs of one action and three of another, four of the seven current ones.
        let actions = [0, 0, 0, 0, 1, 1, 1];
        let alpha = 0.5;
        let value = |c: [u64; 2], d: [u64; 2]| -> f64 {
            let term = |a: usize| {
                let (p, q) = ((c[a] as f64 + alpha) / 5.0, (d[a] as f64 + alpha) / 4.0);
                p * (p / q).ln()
            };
            term(0) + term(1)
        };
        let (mut sum, mut ways) = (0.0, 0.0);
        for chosen in 0u32..128 {
            if chosen.count_ones() == 4 {
                let (mut c, mut d) = ([0; 2], [0; 2]);
                for (pair, &action) in actions.iter().enumerate() {
                    let side = if chosen >> pair & 1 == 1 {
                        &mut c
                    } else {
                        &mut d
                    };
                    side[action] += 1;
                }
                sum += value(c, d);
                ways += 1.0;
            }
        }
        let stratum = Stratum {
            current: 4,
            previous: 3,
            cells: 2,
        };
        let found = value([3, 1], [1, 2]);
        let got = policy(
            [(0, 3, 1), (0, 1, 2)].into_iter(),
            |_| stratum,
            (4, 3, 2),
            alpha,
            found,
            Blindness {
                support: 1.0,
                ..Blindness::default()
            },
        );
        assert!((got.policy_floor - sum / ways).abs() < 1e-12);
        assert!((got.policy_excess - (found - sum / ways)).abs() < 1e-12);
        // One degree of freedom: the deviation is sqrt(2) times the mean.
        let deviation = 2f64.sqrt() * sum / ways;
        assert!((got.policy_z - got.policy_excess / deviation).abs() < 1e-10);
    }

    #[test]
    fn a_large_pseudocount_keeps_the_digits() {
        let stratum = Stratum {
            current: 2,
            previous: 1,
            cells: 2,
        };
        let cells = [(0, 1, 1), (0, 1, 0)].into_iter();
        let got = policy(
            cells,
            |_| stratum,
            (2, 1, 2),
            1e5,
            0.0,
            Blindness::default(),
        );
        // Worked out with 50 digits.
        let exact = -3.333_275_000_833_322e-11;
        assert!(
            (got.policy_excess / exact - 1.0).abs() < 1e-9,
            "{}",
            got.policy_excess
        );
    }

    #[test]
    fn nothing_that_varies_is_no_surprise() {
        let one = |_| Stratum {
            current: 5,
            previous: 5,
            cells: 1,
        };
        let got = policy(
            [(0, 5, 5)].into_iter(),
            one,
            (5, 5, 1),
            0.5,
            0.0,
            Blindness::default(),
        );
        assert_eq!((got.policy_z, got.policy_pvalue), (0.0, 1.0));
        assert!((got.detectable - 11f64.ln()).abs() < 1e-12);
    }
}
