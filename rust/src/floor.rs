//! The noise floor: what the joint divergence would be on average if nothing had changed.
//!
//! Given the pooled count t of every cell, the mean divergence of exchangeable pairs is
//!
//! ```text
//! sum over U of f(t) / (N + alpha K) + log(1 + alpha K / M) - log(1 + alpha K / N)
//! ```
//!
//! with the f of [`crate::null_term`]. The sum is kept as integers of round(f 2^44), so a change of a
//! pooled count replaces one term and a pair that moves from one distribution to the other none;
//! nothing drifts, and the order of the pairs does not matter.
//!
//! N and M are constant once the windows are full, and f is exact then. While they grow, f(t) is
//!
//! ```text
//! g(t) + (b(t) - g(t)) (T - t) / (T - 1)        T = N + M
//! ```
//!
//! with the binomial b and its value g without any spread: the last factor is what the
//! hypergeometric variance lacks of the binomial one. T stands outside two integer sums. Two halves
//! that grow together have one b. Against a reference the ratio of N to M changes with every
//! pair, and the sums are interpolated between four values of N, a factor of sqrt(2) apart.

use crate::log_table::{SCALE, nearest_float};
use crate::null_term::{Draw, Logs, NullTerm};

/// Which f the sums are of. It follows from the numbers of pairs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Regime {
    /// There is no floor: the distributions share pairs, or nothing is reported yet.
    Off,
    /// N and M are these from now on.
    Full { current: u64, previous: u64 },
    /// Both grow, and differ by one pair at most.
    Halves,
    /// N grows from 2^(step/2) to the next power of sqrt(2); M does not.
    Growing { step: i32, previous: u64 },
}

impl Regime {
    /// The regime of a current distribution that grows against a constant one.
    pub(crate) fn growing(current: u64, previous: u64) -> Self {
        let square = u128::from(current) * u128::from(current);
        Self::Growing {
            step: square.max(1).ilog2().cast_signed(),
            previous,
        }
    }
}

/// Cells with more pairs are looked up in the slow path.
const TABULATED: u64 = 4096;
const UNKNOWN: i64 = i64::MIN;

/// Values by the pooled count of a cell. One that does not fit 64 bits is not kept.
#[derive(Debug, Clone, Default)]
struct Table(Vec<i64>);

impl Table {
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn get(&self, t: u64) -> Option<i128> {
        match self.0.get(t as usize) {
            Some(&value) if t < TABULATED && value != UNKNOWN => Some(value.into()),
            _ => None,
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn put(&mut self, t: u64, value: i128) {
        if let Ok(value) = i64::try_from(value)
            && t < TABULATED
        {
            let place = t as usize;
            if self.0.len() <= place {
                self.0.resize((place + 1).next_power_of_two(), UNKNOWN);
            }
            self.0[place] = value;
        }
    }
}

/// Terms of one draw, and their sums over the cells.
#[derive(Debug, Clone)]
struct Sums {
    /// Which node of N; 0 where there is one.
    node: i32,
    exact: bool,
    term: NullTerm,
    /// b(t), or the exact f(t), times 2^44, and the sum over the cells.
    means: Table,
    mean: i128,
    /// (b(t) - g(t)) (t - 1), likewise; empty where f is exact.
    excesses: Table,
    excess: i128,
}

impl Sums {
    fn new(node: i32, draw: Draw) -> Self {
        Self {
            node,
            exact: matches!(draw, Draw::Finite { .. }),
            term: NullTerm::new(draw),
            means: Table::default(),
            mean: 0,
            excesses: Table::default(),
            excess: 0,
        }
    }

    #[inline]
    fn mean_of(&mut self, t: u64, logs: &mut Logs) -> i128 {
        match self.means.get(t) {
            Some(value) => value,
            None => self.compute(t, logs).0,
        }
    }

    #[inline]
    fn excess_of(&mut self, t: u64, logs: &mut Logs) -> i128 {
        match self.excesses.get(t) {
            Some(value) => value,
            None => self.compute(t, logs).1,
        }
    }

    #[cold]
    #[inline(never)]
    fn compute(&mut self, t: u64, logs: &mut Logs) -> (i128, i128) {
        let (mut mean, mut excess) = (0.0, 0.0);
        // A cell without pairs is in neither distribution.
        if t > 0 {
            mean = self.term.get(t, logs);
            if !self.exact {
                excess = (mean - self.term.without_spread(t, logs.alpha())) * (t - 1) as f64;
            }
        }
        let (mean, excess) = (wide_fixed(mean), wide_fixed(excess));
        self.means.put(t, mean);
        if !self.exact {
            self.excesses.put(t, excess);
        }
        (mean, excess)
    }

    #[inline]
    fn replace(&mut self, old: u64, new: u64, logs: &mut Logs) {
        self.mean += self.mean_of(new, logs) - self.mean_of(old, logs);
        if !self.exact {
            self.excess += self.excess_of(new, logs) - self.excess_of(old, logs);
        }
    }

    /// The sum of the terms of `total` pairs.
    fn value(&self, total: f64) -> f64 {
        let mean = nearest_float(self.mean);
        if self.exact {
            mean / SCALE
        } else {
            (mean - nearest_float(self.excess) / (total - 1.0).max(1.0)) / SCALE
        }
    }
}

/// round(x 2^44). A term is below 2^64 * 2^7, so that 2^32 of them fit.
#[allow(clippy::cast_possible_truncation)]
fn wide_fixed(x: f64) -> i128 {
    libm::round(x * SCALE) as i128
}

/// The sums behind the floor.
#[derive(Debug, Clone)]
pub(crate) struct NoiseFloor {
    alpha: f64,
    logs: Logs,
    regime: Regime,
    sums: Vec<Sums>,
}

impl NoiseFloor {
    pub(crate) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            logs: Logs::new(alpha),
            regime: Regime::Off,
            sums: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn regime(&self) -> Regime {
        self.regime
    }

    /// A cell that held `old` pairs in all holds `new` ones.
    #[inline]
    pub(crate) fn replace(&mut self, old: u64, new: u64) {
        for sums in &mut self.sums {
            sums.replace(old, new, &mut self.logs);
        }
    }

    /// Changes the regime; `pooled` are the counts of every cell. It changes as often as N doubles,
    /// so the cells are walked as rarely as those of a growing hash table.
    #[cold]
    pub(crate) fn enter<I: Iterator<Item = u64>>(
        &mut self,
        regime: Regime,
        pooled: impl Fn() -> I,
    ) {
        let mut known = std::mem::take(&mut self.sums);
        let draws: Vec<(i32, Draw)> = match regime {
            Regime::Off => Vec::new(),
            Regime::Full { current, previous } => vec![(0, Draw::Finite { current, previous })],
            Regime::Halves => vec![(
                0,
                Draw::Independent {
                    current: 1.0,
                    previous: 1.0,
                },
            )],
            Regime::Growing { step, previous } => (step - 1..step + 3)
                .map(|node| {
                    let current = libm::exp2(f64::from(node) / 2.0);
                    let previous = previous as f64;
                    (node, Draw::Independent { current, previous })
                })
                .collect(),
        };
        let shifted = matches!(
            (self.regime, regime),
            (Regime::Growing { .. }, Regime::Growing { .. })
        );
        for (node, draw) in draws {
            let place = known.iter().position(|sums| shifted && sums.node == node);
            let sums = if let Some(place) = place {
                known.swap_remove(place)
            } else {
                let mut sums = Sums::new(node, draw);
                for t in pooled() {
                    sums.replace(0, t, &mut self.logs);
                }
                sums
            };
            self.sums.push(sums);
        }
        self.regime = regime;
    }

    /// The floor in nats of N current and M previous pairs in `cells` cells; 0.0 where there is none.
    pub(crate) fn value(&self, current: u64, previous: u64, cells: u64) -> f64 {
        let (n, m) = (current as f64, previous as f64);
        let mass = self.alpha * cells as f64;
        let floor = match (self.regime, self.sums.as_slice()) {
            (Regime::Full { .. }, [sums]) => {
                sums.value(n + m) / (n + mass) + offset(current, previous, mass)
            }
            (Regime::Halves, [sums]) => sums.value(n + m) / (f64::midpoint(n, m) + mass),
            (Regime::Growing { step, .. }, sums) => {
                let x = 2.0 * libm::log2(n) - f64::from(step);
                // Lagrange's weights of the nodes -1, 0, 1 and 2.
                let weights = [
                    -x * (x - 1.0) * (x - 2.0) / 6.0,
                    (x + 1.0) * (x - 1.0) * (x - 2.0) / 2.0,
                    -(x + 1.0) * x * (x - 2.0) / 2.0,
                    (x + 1.0) * x * (x - 1.0) / 6.0,
                ];
                let sum: f64 = weights
                    .iter()
                    .zip(sums)
                    .map(|(weight, sums)| weight * sums.value(n + m))
                    .sum();
                sum / (n + mass) + offset(current, previous, mass)
            }
            _ => 0.0,
        };
        floor.max(0.0)
    }
}

/// log((1 + alpha K / M) / (1 + alpha K / N)).
fn offset(current: u64, previous: u64, mass: f64) -> f64 {
    if current == previous {
        0.0
    } else {
        libm::log1p(mass / previous as f64) - libm::log1p(mass / current as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(alpha: f64, regime: Regime, pooled: &[u64]) -> NoiseFloor {
        let mut floor = NoiseFloor::new(alpha);
        floor.enter(regime, || pooled.iter().copied());
        floor
    }

    const FULL: Regime = Regime::Full {
        current: 6,
        previous: 4,
    };

    #[test]
    fn the_floor_is_the_mean_over_all_ways_to_divide_the_pairs() {
        // Ten pairs in cells of 5, 3, 1 and 1; every choice of six as the current ones.
        let cell_of = [0, 0, 0, 0, 0, 1, 1, 1, 2, 3];
        let alpha = 0.5;
        let (mut sum, mut ways) = (0.0, 0.0);
        for chosen in 0u32..1024 {
            if chosen.count_ones() != 6 {
                continue;
            }
            let (mut c, mut d) = ([0.0; 4], [0.0; 4]);
            for (pair, &cell) in cell_of.iter().enumerate() {
                if chosen >> pair & 1 == 1 {
                    c[cell] += 1.0;
                } else {
                    d[cell] += 1.0;
                }
            }
            for (c, d) in c.iter().zip(d) {
                let (p, q) = ((c + alpha) / 8.0, (d + alpha) / 6.0);
                sum += p * f64::ln(p / q);
            }
            ways += 1.0;
        }
        let value = floor(alpha, FULL, &[5, 3, 1, 1]).value(6, 4, 4);
        assert!((value - sum / ways).abs() < 1e-13, "{value} {}", sum / ways);
    }

    #[test]
    fn replacing_counts_is_entering_them() {
        for regime in [FULL, Regime::Halves, Regime::growing(6, 4)] {
            let mut moved = floor(0.5, regime, &[1, 2, 4, 3]);
            moved.replace(4, 0);
            moved.replace(0, 1);
            moved.replace(2, 5);
            let fresh = floor(0.5, regime, &[1, 5, 1, 3]);
            assert_eq!(moved.value(6, 4, 4), fresh.value(6, 4, 4));
        }
    }

    #[test]
    fn growing_on_is_starting_there() {
        let pooled = [40, 3, 1, 900, 17];
        let mut grown = floor(0.5, Regime::growing(100, 400), &pooled);
        for current in [101, 140, 180, 300, 561] {
            let regime = Regime::growing(current, 400);
            grown.enter(regime, || pooled.iter().copied());
            let fresh = floor(0.5, regime, &pooled);
            assert_eq!(grown.value(current, 400, 5), fresh.value(current, 400, 5));
        }
    }

    #[test]
    fn off_is_nothing() {
        assert_eq!(floor(0.5, Regime::Off, &[3, 3]).value(3, 3, 2), 0.0);
    }

    #[test]
    fn the_largest_counts_stay_finite() {
        for alpha in [1e-300, 1e6] {
            for (n, m) in [(1, u64::MAX), (u64::MAX, 1), (1 << 40, u64::MAX)] {
                let regimes = [
                    Regime::growing(n, m),
                    Regime::Full {
                        current: n,
                        previous: m,
                    },
                ];
                for regime in regimes {
                    let value = floor(alpha, regime, &[m, 1]).value(n, m, 2);
                    assert!(value.is_finite() && value >= 0.0, "{regime:?}: {value}");
                }
            }
        }
    }
}
