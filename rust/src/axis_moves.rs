//! Which axis has moved, from the histogram of each on its own.

use serde::{Deserialize, Serialize};

use crate::axis::Axis;
use crate::axis_histograms::Histogram;
use crate::axis_windows::{PAST, divergence};
use crate::expectation::{Expectation, log_divergence};
use crate::null_term::{Draw, Logs, NullTerm};

/// With fewer values the past of an axis says too little.
const LEAST_PAST: usize = 10;
/// An expected divergence below this is the rounding of 0.0.
const LEAST_EXPECTED: f64 = 1e-12;

/// The bin whose share has grown most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrownBin {
    /// Smallest value in it; `None` where there is no bound.
    pub low: Option<f64>,
    /// Largest value in it.
    pub high: Option<f64>,
    /// Its share of Q.
    pub before: f64,
    /// Its share of P.
    pub now: f64,
}

/// How one axis differs between the two distributions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisMove {
    /// The scalar, such as `observation[2]`.
    pub axis: String,
    /// KL(P || Q) of its histograms, in nats, smoothed as the joint one.
    pub kl: f64,
    /// What it would be about without a change, in nats.
    pub expected: f64,
    /// How far it lies above that, in standard deviations.
    pub excess: f64,
    /// Number of earlier windows that say what is expected; 0 where independent pairs are assumed.
    pub past: usize,
    /// How far the mean has moved, in units of the axis; `None` where values have no order.
    pub shift: Option<f64>,
    /// The bin that has grown most; `None` where none has.
    pub grown: Option<GrownBin>,
    /// Share of P's pairs outside the range.
    pub flow: f64,
    /// Share of the fullest bin in P: near 1 the axis says nothing.
    pub fullest: f64,
}

/// One axis in both distributions.
pub(crate) struct Compared<'a> {
    pub(crate) name: &'a str,
    pub(crate) axis: &'a Axis,
    pub(crate) current: &'a [u64],
    pub(crate) previous: &'a [u64],
    /// Its divergence between successive windows of the stream, of `past_window` pairs each.
    pub(crate) past: &'a [f64],
    pub(crate) past_window: u64,
}

impl Compared<'_> {
    pub(crate) fn movement(&self, logs: &mut Logs) -> AxisMove {
        let axis = self.axis;
        let histogram = |counts| Histogram { axis, counts };
        let (p, q) = (histogram(self.current), histogram(self.previous));
        let kl = divergence(self.current, self.previous, logs.alpha());
        let (expected, excess) = self.standardised(kl, logs);
        let shift = p.mean().zip(q.mean()).map(|(p, q)| p - q);
        AxisMove {
            axis: self.name.into(),
            kl,
            expected,
            excess,
            past: if self.past.len() < LEAST_PAST {
                0
            } else {
                self.past.len()
            },
            shift: shift.filter(|shift| shift.is_finite()),
            grown: self.grown(),
            flow: p.flow_share(),
            fullest: p.fullest_share(),
        }
    }

    /// What the divergence is expected to be, and how many deviations it lies above.
    fn standardised(&self, kl: f64, logs: &mut Logs) -> (f64, f64) {
        let (n, m): (u64, u64) = (self.current.iter().sum(), self.previous.iter().sum());
        if n == 0 || m == 0 {
            return (0.0, 0.0);
        }
        if self.past.len() < LEAST_PAST {
            let expected = self.expected_of_independent(n, m, logs);
            let cells = self.current.iter().zip(self.previous);
            let occupied = cells.filter(|&(&c, &d)| c > 0 || d > 0).count();
            // Of a chi-square variable with one degree less than there are bins.
            let deviation = expected * (2.0 / (occupied.max(2) - 1) as f64).sqrt();
            let excess = if expected > LEAST_EXPECTED {
                (kl - expected) / deviation
            } else {
                0.0
            };
            return (expected, excess);
        }
        // The past is of two windows of equal length; these may be of others.
        let size = (1.0 / n as f64 + 1.0 / m as f64) * self.past_window as f64 / 2.0;
        let Some(past) = Expectation::of(self.past.iter().copied()) else {
            return (0.0, 0.0);
        };
        let expected = past.mean + libm::log(size);
        let count = past.count as f64;
        let spread = past.deviation * (1.0 + 1.0 / count).sqrt();
        (
            libm::exp(expected),
            (log_divergence(kl) - expected) / spread,
        )
    }

    /// The mean divergence of independent pairs given the pooled counts of the bins.
    fn expected_of_independent(&self, n: u64, m: u64, logs: &mut Logs) -> f64 {
        let term = NullTerm::new(Draw::Finite {
            current: n,
            previous: m,
        });
        let bins = self.current.iter().zip(self.previous);
        let pooled = bins.map(|(&c, &d)| c.saturating_add(d)).filter(|&t| t > 0);
        let (mut sum, mut mass) = (0.0, 0.0);
        for t in pooled {
            sum += term.evaluate(t, logs);
            mass += logs.alpha();
        }
        let (n, m) = (n as f64, m as f64);
        (sum / (n + mass) + libm::log1p(mass / m) - libm::log1p(mass / n)).max(0.0)
    }

    #[allow(clippy::cast_possible_truncation)] // a histogram has at most 64 bins
    fn grown(&self) -> Option<GrownBin> {
        let totals: (u64, u64) = (self.current.iter().sum(), self.previous.iter().sum());
        if totals.0 == 0 || totals.1 == 0 {
            return None;
        }
        let share = |count: u64, total: u64| count as f64 / total as f64;
        let (bin, before, now) = self
            .current
            .iter()
            .zip(self.previous)
            .enumerate()
            .map(|(bin, (&c, &d))| (bin, share(d, totals.1), share(c, totals.0)))
            .max_by(|a, b| (a.2 - a.1).total_cmp(&(b.2 - b.1)))?;
        let (low, high) = self.axis.histogram_edges(bin as u8);
        (now > before).then(|| GrownBin {
            low: Some(low).filter(|edge| edge.is_finite()),
            high: Some(high).filter(|edge| edge.is_finite()),
            before,
            now,
        })
    }
}

/// The largest excess first; equal ones in the order of the axes.
pub(crate) fn sort(moves: &mut [AxisMove]) {
    const _: () = assert!(LEAST_PAST <= PAST);
    moves.sort_by(|a, b| b.excess.total_cmp(&a.excess));
}
