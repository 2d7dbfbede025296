//! How often each bin of each axis was visited, every axis on its own.

use std::sync::Arc;

use crate::axis::Axis;
use crate::error::{Error, Result};

/// Counts of the histogram bins of each axis, observation before action, in walk order; axes
/// without bins are left out.
pub type AxisCounts = Vec<Vec<u64>>;

/// Where the bins of each axis begin in one vector; the last entry is the number of bins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bins(Arc<[usize]>);

impl Bins {
    pub(crate) fn of<'a>(axes: impl IntoIterator<Item = &'a Axis>) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for bins in axes.into_iter().map(Axis::histogram_bins) {
            if bins > 0 {
                end += usize::from(bins);
                starts.push(end);
            }
        }
        Self(starts.into())
    }

    /// Number of axes.
    pub(crate) fn axes(&self) -> usize {
        self.0.len() - 1
    }

    /// Whether every bin of a row exists.
    pub(crate) fn hold(&self, row: &[u8]) -> bool {
        row.len() == self.axes() && self.hold_start(row)
    }

    /// Whether every bin of the start of a row exists.
    pub(crate) fn hold_start(&self, row: &[u8]) -> bool {
        let mut axes = row.iter().zip(self.0.windows(2));
        axes.all(|(&bin, ends)| usize::from(bin) < ends[1] - ends[0])
    }
}

/// One histogram an axis over the same pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AxisHistograms {
    bins: Bins,
    counts: Vec<u64>,
}

impl AxisHistograms {
    pub(crate) fn new(bins: Bins) -> Self {
        let length = bins.0[bins.axes()];
        Self {
            bins,
            counts: vec![0; length],
        }
    }

    /// Counts the pairs of `rows`, one row after the other, each of as many bytes as there are axes.
    #[inline]
    pub(crate) fn add(&mut self, rows: &[u8]) {
        self.change(rows, 1);
    }

    /// Takes pairs back that were added.
    #[inline]
    pub(crate) fn remove(&mut self, rows: &[u8]) {
        self.change(rows, u64::MAX);
    }

    #[inline]
    fn change(&mut self, rows: &[u8], by: u64) {
        let starts = &self.bins.0[..self.bins.axes()];
        if starts.is_empty() {
            return;
        }
        for row in rows.chunks_exact(starts.len()) {
            for (&bin, &start) in row.iter().zip(starts) {
                let count = &mut self.counts[start + usize::from(bin)];
                *count = count.wrapping_add(by);
            }
        }
    }

    /// The counts of one axis.
    pub(crate) fn axis(&self, axis: usize) -> &[u64] {
        &self.counts[self.bins.0[axis]..self.bins.0[axis + 1]]
    }

    /// The counts of all axes.
    pub(crate) fn counts(&self) -> AxisCounts {
        (0..self.bins.axes())
            .map(|axis| self.axis(axis).to_vec())
            .collect()
    }

    /// Histograms of `pairs` pairs with these counts.
    pub(crate) fn from_counts(bins: Bins, counts: &AxisCounts, pairs: u64) -> Result<Self> {
        let mut histograms = Self::new(bins);
        if counts.len() != histograms.bins.axes() {
            return Err(Error::malformed(
                "the histograms of the axes",
                format!(
                    "expected {} of them, got {}",
                    histograms.bins.axes(),
                    counts.len()
                ),
            ));
        }
        for (axis, own) in counts.iter().enumerate() {
            let expected = histograms.axis(axis).len();
            let total = own
                .iter()
                .try_fold(0u64, |sum, &count| sum.checked_add(count));
            if own.len() != expected || total != Some(pairs) {
                return Err(Error::malformed(
                    "the histograms of the axes",
                    format!("expected {expected} counts that add up to {pairs}, got {own:?}"),
                ));
            }
            let start = histograms.bins.0[axis];
            histograms.counts[start..start + expected].copy_from_slice(own);
        }
        Ok(histograms)
    }
}

/// Adds the counts of `other`, whose axes and sums have been checked.
pub(crate) fn merge_counts(counts: &mut AxisCounts, other: &AxisCounts) {
    for (own, others) in counts.iter_mut().zip(other) {
        for (count, other) in own.iter_mut().zip(others) {
            *count += other;
        }
    }
}

/// Which pairs are remembered as rows: the newest, from pair `first` on.
///
/// Rows lie in one piece. Those that are not needed any more go once they are the larger part, so a
/// pair costs a byte an axis, and at most twice that much is held.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    width: usize,
    first: u64,
    end: u64,
    bytes: Vec<u8>,
}

impl Rows {
    /// No rows; `first` is the number of the first pair to come.
    pub(crate) fn new(width: usize, first: u64) -> Self {
        Self {
            width,
            first,
            end: first,
            bytes: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, observation: &[u8], action: &[u8]) {
        self.bytes.extend_from_slice(observation);
        self.bytes.extend_from_slice(action);
        self.end += 1;
    }

    /// Remembers whole rows; `end` is the number of the pair after them.
    pub(crate) fn extend(&mut self, rows: &[u8], end: u64) {
        self.bytes.extend_from_slice(rows);
        self.end = end;
    }

    /// The first pair that is remembered.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The number of the next pair.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The rows of the pairs from `start` to before `end`, which are remembered.
    #[allow(clippy::cast_possible_truncation)] // they lie in memory
    pub(crate) fn slice(&self, start: u64, end: u64) -> &[u8] {
        let place = |pair: u64| (pair - self.first) as usize * self.width;
        &self.bytes[place(start)..place(end)]
    }

    /// Forgets the pairs before `needed`, or leaves that for later.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn forget_before(&mut self, needed: u64) {
        let gone = needed.saturating_sub(self.first);
        if gone > 0 && gone >= self.end - needed {
            self.bytes.drain(..gone as usize * self.width);
            self.first = needed;
        }
    }
}

/// A legal list of counts of its own: for one axis, with the flow bins at its ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Histogram<'a> {
    /// The axis.
    pub(crate) axis: &'a Axis,
    /// Count of each bin.
    pub(crate) counts: &'a [u64],
}

impl Histogram<'_> {
    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn share(&self, count: u64) -> f64 {
        match self.total() {
            0 => 0.0,
            total => count as f64 / total as f64,
        }
    }

    /// Share of the pairs in a flow bin.
    pub(crate) fn flow_share(&self) -> f64 {
        match self.counts {
            [first, .., last] if self.axis.has_flow_bins() => self.share(first + last),
            _ => 0.0,
        }
    }

    /// Share of the pairs in the fullest bin; bins are joined to those of the cells where those are
    /// as many or a whole fraction of them.
    pub(crate) fn fullest_share(&self) -> f64 {
        let counts = self.counts;
        let inner = if self.axis.has_flow_bins() {
            counts.get(1..counts.len() - 1).unwrap_or_default()
        } else {
            counts
        };
        let joined = match usize::try_from(self.axis.size()) {
            Ok(size) if size > 0 && inner.len() % size == 0 => (inner.len() / size).max(1),
            _ => 1,
        };
        let fullest = inner.chunks(joined).map(|bins| bins.iter().sum()).max();
        let outer = if self.axis.has_flow_bins() {
            counts.first().max(counts.last()).copied()
        } else {
            None
        };
        self.share(fullest.max(outer).unwrap_or(0))
    }

    /// Mean of the values, taken at the middle of their bins and at the bounds for the flow bins;
    /// `None` where the values have no order or there are no pairs.
    pub(crate) fn mean(&self) -> Option<f64> {
        let total = self.total();
        if total == 0
            || matches!(
                self.axis,
                Axis::Category { .. } | Axis::Digit | Axis::Content
            )
        {
            return None;
        }
        let middles = (0..self.axis.histogram_bins()).map(|bin| self.axis.histogram_middle(bin));
        let parts = middles.zip(self.counts);
        let sum = parts
            .filter(|&(middle, &count)| count > 0 && middle.is_finite())
            .map(|(middle, &count)| count as f64 / total as f64 * middle)
            .sum();
        Some(sum)
    }
}
