//! What one cell contributes to a divergence, on average, where nothing has changed.
//!
//! If the pairs of both distributions are exchangeable then, given that a cell holds t pairs in all,
//! the number C of them in the current distribution is hypergeometric: t draws from N current and M
//! previous pairs. The mean contribution is
//!
//! ```text
//! f(t) = E[(C + alpha) (log((C + alpha) / (t - C + alpha)) - log(N / M))]
//! ```
//!
//! where the last logarithm, whose sum over all cells is known, keeps the numbers small. While the
//! distributions grow, C is taken as binomial, and [`crate::floor`] corrects its variance.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Up to this many pairs of a cell every term is a sum over C.
const SUMMED: u64 = 4096;
/// A variance of C from which the sum is its expansion about the mean to the fourth moment, which
/// is then off by less than 1e-12 of the mean.
const LARGE_VARIANCE: f64 = 32_768.0;
/// Weights below this share of the largest are left out.
const NEGLIGIBLE: f64 = 1e-19;
/// A pseudocount from which logarithms are taken of quotients.
const LARGE_ALPHA: f64 = 16.0;
/// Logarithms that are kept.
const MEMOISED: u64 = 8192;
/// Terms of larger cells are interpolated between so many nodes, this many of them an octave: f is
/// smooth on the scale of t.
const NODES: usize = 12;
const NODES_LOG2_PER_OCTAVE: u32 = 5;

/// log(n + alpha), memoised.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    alpha: f64,
    memo: Vec<f64>,
}

impl Logs {
    pub(crate) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            memo: Vec::new(),
        }
    }

    pub(crate) fn alpha(&self) -> f64 {
        self.alpha
    }

    /// log((n + alpha) / (m + alpha)), with all its digits where a large alpha brings the two close.
    pub(crate) fn quotient(&mut self, n: u64, m: u64) -> f64 {
        if self.alpha > LARGE_ALPHA {
            let (n, m) = (n as f64, m as f64);
            libm::log1p((n - m) / (m + self.alpha))
        } else {
            self.get(n) - self.get(m)
        }
    }

    /// log(n + alpha).
    #[allow(clippy::cast_possible_truncation)]
    fn get(&mut self, n: u64) -> f64 {
        if n >= MEMOISED {
            return libm::log(n as f64 + self.alpha);
        }
        for next in self.memo.len() as u64..=n {
            self.memo.push(libm::log(next as f64 + self.alpha));
        }
        self.memo[n as usize]
    }
}

/// How the pairs of a cell fall into the two distributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Draw {
    /// Without replacement from N and M pairs, at least one each: hypergeometric.
    Finite { current: u64, previous: u64 },
    /// Each for itself in the ratio of N to M: binomial.
    Independent { current: f64, previous: f64 },
}

impl Draw {
    fn totals(self) -> (f64, f64) {
        match self {
            Self::Finite { current, previous } => (current as f64, previous as f64),
            Self::Independent { current, previous } => (current, previous),
        }
    }

    /// The most pairs of a cell.
    fn most(self) -> u64 {
        match self {
            Self::Finite { current, previous } => current.saturating_add(previous),
            Self::Independent { .. } => u64::MAX,
        }
    }

    /// The share of the current distribution.
    fn share(self) -> f64 {
        let (n, m) = self.totals();
        n / (n + m)
    }

    /// The possible C of `t` pairs.
    fn range(self, t: u64) -> (u64, u64) {
        match self {
            Self::Finite { current, previous } => (t.saturating_sub(previous), t.min(current)),
            Self::Independent { .. } => (0, t),
        }
    }

    /// P(C = c + 1) / P(C = c).
    #[inline]
    fn odds(self, t: u64, c: u64) -> f64 {
        match self {
            Self::Finite { current, previous } => {
                let rest = previous as f64 - (t - c) as f64;
                (t - c) as f64 * (current - c) as f64 / ((c + 1) as f64 * (rest + 1.0))
            }
            Self::Independent { current, previous } => {
                (t - c) as f64 * current / ((c + 1) as f64 * previous)
            }
        }
    }

    /// Variance and third central moment of C.
    fn moments(self, t: f64) -> (f64, f64) {
        let (n, m) = self.totals();
        let total = n + m;
        let (p, q) = (n / total, m / total);
        let (variance, skew) = (t * p * q, q - p);
        match self {
            Self::Finite { .. } if total > 2.0 => {
                let variance = variance * (total - t) / (total - 1.0);
                (
                    variance,
                    variance * skew * (total - 2.0 * t) / (total - 2.0),
                )
            }
            _ => (variance, variance * skew),
        }
    }
}

/// f(t) of one draw.
#[derive(Debug, Clone)]
pub(crate) struct NullTerm {
    draw: Draw,
    offset: f64,
    /// Coefficients of the interpolation, by the first node of the interval.
    intervals: HashMap<u64, [f64; NODES], FixedState>,
    nodes: HashMap<u64, f64, FixedState>,
}

impl NullTerm {
    pub(crate) fn new(draw: Draw) -> Self {
        let (n, m) = draw.totals();
        Self {
            offset: libm::log(n / m),
            ..Self::without_offset(draw)
        }
    }

    /// The same without the logarithm of N / M.
    pub(crate) fn without_offset(draw: Draw) -> Self {
        Self {
            draw,
            offset: 0.0,
            intervals: HashMap::default(),
            nodes: HashMap::default(),
        }
    }

    /// f(t), in time that hardly grows with t; 0.0 of more pairs than there are, which a cell holds
    /// for a moment while a pair joins before another leaves.
    pub(crate) fn get(&mut self, t: u64, logs: &mut Logs) -> f64 {
        if t > self.draw.most() {
            0.0
        } else if t < SUMMED {
            self.evaluate(t, logs)
        } else {
            self.interpolate(t, logs)
        }
    }

    /// The term that C = E C would give.
    pub(crate) fn without_spread(&self, t: u64, alpha: f64) -> f64 {
        let mean = t as f64 * self.draw.share();
        let rest = t as f64 - mean;
        (mean + alpha) * (libm::log1p(alpha / mean) - libm::log1p(alpha / rest))
    }

    /// f(t) straight from its definition.
    pub(crate) fn evaluate(&self, t: u64, logs: &mut Logs) -> f64 {
        match (t, self.draw.moments(t as f64)) {
            (0, _) => 0.0,
            (_, (variance, third)) if variance > LARGE_VARIANCE => {
                self.expand(t, variance, third, logs.alpha)
            }
            _ => self.sum(t, logs),
        }
    }

    /// The sum over C outward from the most likely value; the weights are relative to its own.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn sum(&self, t: u64, logs: &mut Logs) -> f64 {
        let draw = self.draw;
        let (low, high) = draw.range(t);
        let mode = ((t as f64 + 1.0) * draw.share()) as u64;
        let mode = mode.clamp(low, high);
        let alpha = logs.alpha;
        let mut value = |c: u64| (c as f64 + alpha) * (logs.quotient(c, t - c) - self.offset);
        let (mut weights, mut sum) = (1.0, value(mode));
        let mut weight = 1.0;
        for c in mode..high {
            weight *= draw.odds(t, c);
            if weight < NEGLIGIBLE {
                break;
            }
            weights += weight;
            sum += weight * value(c + 1);
        }
        weight = 1.0;
        for c in (low..mode).rev() {
            weight /= draw.odds(t, c);
            if weight < NEGLIGIBLE {
                break;
            }
            weights += weight;
            sum += weight * value(c);
        }
        sum / weights
    }

    /// The expansion of the mean about E C.
    fn expand(&self, t: u64, variance: f64, third: f64, alpha: f64) -> f64 {
        let mean = t as f64 * self.draw.share();
        let (a, b) = (mean + alpha, t as f64 - mean + alpha);
        let (x, y) = (1.0 / a, 1.0 / b);
        // Derivatives of log((c + alpha) / (t - c + alpha)), from the first on.
        let d = [
            x + y,
            y * y - x * x,
            2.0 * (x * x * x + y * y * y),
            6.0 * (y * y * y * y - x * x * x * x),
        ];
        let p = self.draw.share();
        let fourth = variance * (3.0 * variance + 1.0 - 6.0 * p * (1.0 - p));
        let (n, m) = self.draw.totals();
        self.without_spread(t, alpha)
            + a * (libm::log(n / m) - self.offset)
            + (2.0 * d[0] + a * d[1]) * variance / 2.0
            + (3.0 * d[1] + a * d[2]) * third / 6.0
            + (4.0 * d[2] + a * d[3]) * fourth / 24.0
    }

    fn interpolate(&mut self, t: u64, logs: &mut Logs) -> f64 {
        let spacing = 1u64 << (t.ilog2() - NODES_LOG2_PER_OCTAVE);
        let mut first = (t & !(spacing - 1)) - (NODES as u64 / 2 - 1) * spacing;
        let most = self.draw.most();
        // No cell has more pairs than there are.
        while u128::from(first) + (NODES as u128 - 1) * u128::from(spacing) > u128::from(most) {
            first -= spacing;
        }
        if !self.intervals.contains_key(&first) {
            let differences = self.differences(first, spacing, logs);
            self.intervals.insert(first, differences);
        }
        let x = (t - first) as f64 / spacing as f64;
        let differences = &self.intervals[&first];
        let mut value = 0.0;
        for (k, difference) in differences.iter().enumerate().rev() {
            let k = k as f64;
            value = value * (x - k) / (k + 1.0) + difference;
        }
        value
    }

    /// Newton's forward differences at the nodes.
    fn differences(&mut self, first: u64, spacing: u64, logs: &mut Logs) -> [f64; NODES] {
        let mut values = [0.0; NODES];
        for (node, value) in (0..).zip(&mut values) {
            let t = first + node * spacing;
            *value = if let Some(&known) = self.nodes.get(&t) {
                known
            } else {
                let fresh = self.evaluate(t, logs);
                self.nodes.insert(t, fresh);
                fresh
            };
        }
        for order in 1..NODES {
            for k in (order..NODES).rev() {
                values[k] -= values[k - 1];
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(window: u64) -> NullTerm {
        NullTerm::new(Draw::Finite {
            current: window,
            previous: window,
        })
    }

    #[test]
    fn half_a_pseudocount_makes_the_term_flat() {
        let mut logs = Logs::new(0.5);
        let mut term = halves(1_000_000);
        for (t, expected) in [(1, 0.549), (2, 0.805), (3, 0.921), (5, 0.995), (10, 1.005)] {
            let got = term.get(t, &mut logs);
            assert!((got - expected).abs() < 6e-4, "{t}: {got}");
        }
    }

    #[test]
    fn a_cell_with_every_pair_leaves_nothing_to_chance() {
        let mut logs = Logs::new(0.5);
        for window in [1, 10, 1000, 2048, 100_000, 10_000_000] {
            let value = halves(window).get(2 * window, &mut logs);
            assert!(value.abs() < 1e-9 * window as f64, "{window}: {value}");
        }
        let mut uneven = NullTerm::new(Draw::Finite {
            current: 7,
            previous: 3,
        });
        let expected = 7.5 * ((7.5f64 / 3.5).ln() - (7.0f64 / 3.0).ln());
        assert!((uneven.get(10, &mut logs) - expected).abs() < 1e-14);
    }

    #[test]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn interpolation_and_expansion_meet_the_sum() {
        let draws = |ratio: f64| {
            let n = 1e7 * ratio;
            [
                Draw::Finite {
                    current: n as u64,
                    previous: 10_000_000,
                },
                Draw::Independent {
                    current: n,
                    previous: 1e7,
                },
            ]
        };
        for alpha in [1e-10, 0.5, 1e6] {
            let mut logs = Logs::new(alpha);
            for draw in [1.0, 0.2, 1e-3, 1e-6, 50.0].into_iter().flat_map(draws) {
                let mut term = NullTerm::new(draw);
                for t in [4096, 4097, 5001, 8191, 8193, 70_001, 300_007, 5_000_011] {
                    let exact = term.sum(t, &mut logs);
                    let got = term.get(t, &mut logs);
                    // A sum of terms is divided by N, of which this cell has its share, or by
                    // alpha K.
                    let scale = t as f64 * draw.share() + alpha;
                    assert!(
                        (got - exact).abs() <= 1e-13 * scale.max(1e-3),
                        "{draw:?} alpha {alpha} t {t}: {got} is not {exact}"
                    );
                }
            }
        }
    }
}
