//! The axes of a tracker, each with its histogram in both distributions.

use std::sync::Arc;

use crate::axis_histograms::{AxisCounts, AxisHistograms, Bins, Histogram};
use crate::axis_moves::{AxisMove, Compared, sort};
use crate::axis_windows::{AxisWindows, AxisWindowsState, Frozen};
use crate::drift::Mode;
use crate::error::Result;
use crate::layout::Layout;
use crate::null_term::Logs;
use crate::snapshot::NamedAxis;

/// With more axes than this no histograms are kept unless they are asked for.
pub const MOST_AXES: usize = 64;

/// Shares of the current pairs on one axis; see [`AxisMove`].
#[derive(Debug, Clone, PartialEq)]
pub struct AxisShares {
    /// The scalar.
    pub axis: String,
    /// Share of the pairs outside the range.
    pub flow: f64,
    /// Share of the fullest bin.
    pub fullest: f64,
}

/// Histograms of every axis that has bins, fed with the rows of pairs.
#[derive(Debug, Clone)]
pub(crate) struct AxisTracker {
    axes: Arc<[NamedAxis]>,
    observation_axes: usize,
    windows: AxisWindows,
    epsilon: f64,
    compares: bool,
}

impl AxisTracker {
    /// Empty histograms. `reference` is that of a frozen previous distribution, whose histograms
    /// may be unknown.
    ///
    /// # Errors
    /// The reference has other axes.
    pub(crate) fn new(
        observation: &Layout,
        action: &Layout,
        mode: Mode,
        epsilon: f64,
        reference: Option<(Option<&AxisCounts>, u64)>,
    ) -> Result<Self> {
        let binned = |layout| {
            let axes = NamedAxis::of(layout).into_iter();
            axes.filter(|named| named.axis.histogram_bins() > 0)
        };
        let mut axes: Vec<_> = binned(observation).collect();
        let observation_axes = axes.len();
        axes.extend(binned(action));
        let bins = Bins::of(axes.iter().map(|named| &named.axis));
        let frozen = match reference {
            None => Frozen::No,
            Some((None, _)) => Frozen::Unknown,
            Some((Some(counts), pairs)) => {
                Frozen::Known(AxisHistograms::from_counts(bins.clone(), counts, pairs)?)
            }
        };
        Ok(Self {
            windows: AxisWindows::new(bins, mode, epsilon, frozen),
            axes: axes.into(),
            observation_axes,
            epsilon,
            compares: mode.compares_windows(),
        })
    }

    /// Remembers the rows of one pair.
    #[inline]
    pub(crate) fn push(&mut self, observation: &[u8], action: &[u8]) {
        self.windows.push(observation, action);
    }

    /// Whether rows are as long as they should be.
    #[inline]
    pub(crate) fn fit(&self, observation: &[u8], action: &[u8]) -> bool {
        self.windows.fit(observation, action)
    }

    /// Whether a row is one of an observation.
    pub(crate) fn holds_observation(&self, row: &[u8]) -> bool {
        row.len() == self.observation_axes && self.windows.holds_start(row)
    }

    /// How each axis differs between the two distributions, the largest excess first; nothing where
    /// they differ by one pair only, or the previous one has no histograms.
    pub(crate) fn moves(&mut self) -> Vec<AxisMove> {
        if !self.compares || self.windows.distributions().is_none() {
            return Vec::new();
        }
        let pasts: Vec<_> = (0..self.axes.len())
            .map(|axis| self.windows.past(axis))
            .collect();
        let past_window = self.windows.past_window();
        let Some((current, previous)) = self.windows.distributions() else {
            return Vec::new();
        };
        let mut logs = Logs::new(self.epsilon);
        let mut moves: Vec<_> = self
            .axes
            .iter()
            .enumerate()
            .map(|(axis, named)| {
                Compared {
                    name: &named.name,
                    axis: &named.axis,
                    current: current.axis(axis),
                    previous: previous.axis(axis),
                    past: &pasts[axis],
                    past_window,
                }
                .movement(&mut logs)
            })
            .collect();
        sort(&mut moves);
        moves
    }

    /// Shares of the current pairs on each axis, in walk order.
    pub(crate) fn shares(&mut self) -> Vec<AxisShares> {
        let current = self.windows.current();
        let shares = self.axes.iter().enumerate().map(|(axis, named)| {
            let histogram = Histogram {
                axis: &named.axis,
                counts: current.axis(axis),
            };
            AxisShares {
                axis: named.name.clone(),
                flow: histogram.flow_share(),
                fullest: histogram.fullest_share(),
            }
        });
        shares.collect()
    }

    /// Counts of the current or of the previous distribution, if they are known.
    pub(crate) fn counts(&self, current: bool) -> Option<AxisCounts> {
        self.windows.counts(current)
    }

    /// All that is needed to continue.
    pub(crate) fn state(&self) -> AxisWindowsState {
        self.windows.state()
    }

    /// Continues from the state after `steps` pairs.
    ///
    /// # Errors
    /// A state that no run can have; nothing is changed then.
    pub(crate) fn restore(&mut self, state: &AxisWindowsState, steps: u64) -> Result<()> {
        self.windows.restore(state, steps)
    }
}
