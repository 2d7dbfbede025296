//! Which axis has moved, from the histogram of each on its own.

use serde::{Deserialize, Serialize};

use crate::axis::Axis;
use crate::axis_histograms::Histogram;
use crate::axis_windows::{PAST, divergence};
use crate::independent;

/// With fewer values the past of an axis says too little.
const LEAST_PAST: usize = 10;
/// A divergence below this, in nats, is no divergence.
const SMALLEST: f64 = 1e-9;
/// Spread of the logarithms of an axis that repeats itself exactly.
const LEAST_DEVIATION: f64 = 1e-3;

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
    pub(crate) fn movement(&self, epsilon: f64) -> AxisMove {
        let axis = self.axis;
        let histogram = |counts| Histogram { axis, counts };
        let (p, q) = (histogram(self.current), histogram(self.previous));
        let kl = divergence(self.current, self.previous, epsilon);
        let (expected, excess) = self.standardised(kl, epsilon);
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
    fn standardised(&self, kl: f64, epsilon: f64) -> (f64, f64) {
        let (n, m): (u64, u64) = (self.current.iter().sum(), self.previous.iter().sum());
        if n == 0 || m == 0 {
            return (0.0, 0.0);
        }
        if self.past.len() < LEAST_PAST {
            let expected = independent::expected(self.current, self.previous, epsilon);
            let cells = self.current.iter().zip(self.previous);
            let occupied = cells.filter(|&(&c, &d)| c > 0 || d > 0).count();
            // Of a chi-square variable with one degree less than there are bins.
            let deviation = expected * (2.0 / (occupied.max(2) - 1) as f64).sqrt();
            let excess = if deviation > 0.0 {
                (kl - expected) / deviation
            } else {
                0.0
            };
            return (expected, excess);
        }
        // The past is of two windows of equal length; these may be of others.
        let size = (1.0 / n as f64 + 1.0 / m as f64) * self.past_window as f64 / 2.0;
        let logs = || self.past.iter().map(|&kl| libm::log(kl.max(SMALLEST)));
        let count = self.past.len() as f64;
        let mean = logs().sum::<f64>() / count;
        let squares: f64 = logs().map(|log| (log - mean) * (log - mean)).sum();
        let deviation = (squares / (count - 1.0)).sqrt().max(LEAST_DEVIATION);
        let expected = mean + libm::log(size);
        let distance = libm::log(kl.max(SMALLEST)) - expected;
        (
            libm::exp(expected),
            distance / (deviation * (1.0 + 1.0 / count).sqrt()),
        )
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
