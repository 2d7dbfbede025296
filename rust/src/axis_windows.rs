//! The histograms of the axes in the two distributions of a drift, brought up to date when asked.
//!
//! A pair leaves one byte an axis behind and a batch of them is counted at once, so a step costs a
//! copy. When the histograms are asked for, they follow the windows by the pairs that have moved,
//! or are counted anew where that is less work: whoever asks often pays per pair, whoever asks
//! never pays nothing.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::axis_histograms::{AxisCounts, AxisHistograms, Bins, Rows};
use crate::divergence::{Weights, smoothed_divergence};
use crate::drift::Mode;
use crate::error::{Error, Result};
use crate::row::Row;

/// Pairs that are counted at once.
const BATCH: u64 = 256;
/// Length of the windows that give the scale where every pair counts.
const SCALE_WINDOW: u64 = 1000;
/// Divergences that the scale of an axis is taken from.
pub(crate) const PAST: usize = 20;
/// As many again may overlap the current windows.
const KEPT: usize = PAST + 4;

/// Histograms that follow a range of pairs.
#[derive(Debug, Clone)]
struct Follower {
    range: Range<u64>,
    histograms: AxisHistograms,
}

impl Follower {
    fn new(bins: Bins) -> Self {
        Self {
            range: 0..0,
            histograms: AxisHistograms::new(bins),
        }
    }

    /// Counts the pairs of `range` and no others; those that are counted already need not be
    /// remembered.
    fn follow(&mut self, range: Range<u64>, rows: &Rows, bins: &Bins) {
        let common = self.range.start.max(range.start)..self.range.end.min(range.end);
        let kept = common.end.saturating_sub(common.start);
        let moved = (self.range.end - self.range.start - kept) + (range.end - range.start - kept);
        let forgotten = self.range.start < common.start && self.range.start < rows.first();
        if kept == 0 || forgotten || moved > range.end - range.start {
            self.histograms = AxisHistograms::new(bins.clone());
            self.add(range.start..range.end, rows);
        } else {
            self.remove(self.range.start..common.start, rows);
            self.remove(common.end..self.range.end, rows);
            self.add(range.start..common.start, rows);
            self.add(common.end..range.end, rows);
        }
        self.range = range;
    }

    fn add(&mut self, range: Range<u64>, rows: &Rows) {
        if range.start < range.end {
            self.histograms.add(rows.slice(range.start, range.end));
        }
    }

    fn remove(&mut self, range: Range<u64>, rows: &Rows) {
        if range.start < range.end {
            self.histograms.remove(rows.slice(range.start, range.end));
        }
    }
}

/// How much each axis moves from one window of the stream to the next.
#[derive(Debug, Clone)]
struct Scale {
    window: u64,
    epsilon: f64,
    /// The window that fills now, and the one before.
    open: AxisHistograms,
    closed: Option<AxisHistograms>,
    /// Divergence of each axis between successive windows, newest last.
    values: VecDeque<Vec<f64>>,
    /// Windows that have been filled.
    filled: u64,
}

impl Scale {
    fn new(window: u64, epsilon: f64, bins: &Bins) -> Self {
        Self {
            window,
            epsilon,
            open: AxisHistograms::new(bins.clone()),
            closed: None,
            values: VecDeque::new(),
            filled: 0,
        }
    }

    fn add(&mut self, range: Range<u64>, rows: &Rows, bins: &Bins) {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((self.filled + 1) * self.window);
            self.open.add(rows.slice(start, end));
            if end == (self.filled + 1) * self.window {
                self.close(bins);
            }
            start = end;
        }
    }

    fn close(&mut self, bins: &Bins) {
        let full = std::mem::replace(&mut self.open, AxisHistograms::new(bins.clone()));
        if let Some(before) = &self.closed {
            let axes = 0..bins.axes();
            if self.values.len() == KEPT {
                self.values.pop_front();
            }
            self.values.push_back(
                axes.map(|axis| divergence(full.axis(axis), before.axis(axis), self.epsilon))
                    .collect(),
            );
        }
        self.closed = Some(full);
        self.filled += 1;
    }

    /// The divergences of one axis between windows that had ended when pair `end` came, newest
    /// last; at most [`PAST`] of them.
    fn past(&self, axis: usize, end: u64) -> Vec<f64> {
        let later = self.filled.saturating_sub(end / self.window);
        let usable = (self.values.len() as u64).saturating_sub(later);
        let usable = usize::try_from(usable).unwrap_or(usize::MAX);
        let values = self.values.iter().take(usable);
        values
            .skip(usable.saturating_sub(PAST))
            .map(|values| values[axis])
            .collect()
    }
}

/// The smoothed divergence of two histograms in nats; 0.0 without counts.
pub(crate) fn divergence(p: &[u64], q: &[u64], epsilon: f64) -> f64 {
    let floats = |counts: &[u64]| counts.iter().map(|&count| count as f64).collect::<Vec<_>>();
    let (p, q) = (floats(p), floats(q));
    let weights = |values| Weights {
        name: "counts",
        index: None,
        values,
    };
    // Counts are finite and not negative, so nothing is refused.
    smoothed_divergence(weights(&p), weights(&q), epsilon)
        .unwrap_or(0.0)
        .max(0.0)
}

/// Histograms as they are saved. The windows follow from the remembered rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AxisWindowsState {
    /// Rows of the remembered pairs, oldest first.
    rows: Row,
    /// Counts of every pair where every pair counts, else empty.
    all: AxisCounts,
    open: AxisCounts,
    closed: Option<AxisCounts>,
    values: Vec<Vec<f64>>,
}

/// What the frozen previous distribution says of the axes.
#[derive(Debug, Clone)]
pub(crate) enum Frozen {
    /// There is none: the previous distribution is of the stream.
    No,
    /// There is one without histograms.
    Unknown,
    /// Its histograms.
    Known(AxisHistograms),
}

/// The two distributions of each axis, and the past of their divergence.
#[derive(Debug, Clone)]
pub(crate) struct AxisWindows {
    bins: Bins,
    mode: Mode,
    frozen: Frozen,
    rows: Rows,
    settled: u64,
    current: Follower,
    previous: Follower,
    scale: Scale,
}

impl AxisWindows {
    pub(crate) fn new(bins: Bins, mode: Mode, epsilon: f64, frozen: Frozen) -> Self {
        Self {
            rows: Rows::new(bins.axes(), 0),
            settled: 0,
            current: Follower::new(bins.clone()),
            previous: Follower::new(bins.clone()),
            scale: Scale::new(mode.window().unwrap_or(SCALE_WINDOW), epsilon, &bins),
            bins,
            mode,
            frozen,
        }
    }

    /// Forgets every pair.
    pub(crate) fn reset(&mut self) {
        let frozen = std::mem::replace(&mut self.frozen, Frozen::No);
        *self = Self::new(self.bins.clone(), self.mode, self.scale.epsilon, frozen);
    }

    /// Whether the rows of an observation and an action belong here.
    #[inline]
    pub(crate) fn fit(&self, observation: &[u8], action: &[u8]) -> bool {
        observation.len() + action.len() == self.bins.axes()
    }

    /// Whether the first axes have the bins of the start of a row.
    pub(crate) fn holds_start(&self, row: &[u8]) -> bool {
        self.bins.hold_start(row)
    }

    /// Remembers the rows of one pair.
    #[inline]
    pub(crate) fn push(&mut self, observation: &[u8], action: &[u8]) {
        self.rows.push(observation, action);
        if self.rows.end() - self.settled >= BATCH {
            self.settle();
        }
    }

    /// Counts what must be counted before rows may go.
    #[cold]
    fn settle(&mut self) {
        let n = self.rows.end();
        self.scale.add(self.settled..n, &self.rows, &self.bins);
        self.settled = n;
        if self.mode.counts_all() {
            self.current.follow(0..n, &self.rows, &self.bins);
        }
        self.rows.forget_before(self.needed(n));
    }

    /// The first pair whose row is needed after pair `n`.
    fn needed(&self, n: u64) -> u64 {
        n - n.min(self.mode.span_of_rows())
    }

    /// The histograms of the current distribution.
    pub(crate) fn current(&mut self) -> &AxisHistograms {
        self.settle();
        let range = self.mode.windows(self.rows.end()).current;
        self.current.follow(range, &self.rows, &self.bins);
        &self.current.histograms
    }

    /// The histograms of both distributions; `None` where the previous one is unknown.
    pub(crate) fn distributions(&mut self) -> Option<(&AxisHistograms, &AxisHistograms)> {
        self.current();
        let previous = self.mode.windows(self.rows.end()).previous;
        match (&self.frozen, previous) {
            (Frozen::Known(reference), _) => Some((&self.current.histograms, reference)),
            (Frozen::Unknown, _) => None,
            (Frozen::No, previous) => {
                let previous = previous.unwrap_or_default();
                if self.mode.counts_all() {
                    // All but the newest.
                    let mut histograms = self.current.histograms.clone();
                    let newest = self.rows.slice(previous.end, self.rows.end());
                    histograms.remove(newest);
                    self.previous = Follower {
                        range: previous,
                        histograms,
                    };
                } else {
                    self.previous.follow(previous, &self.rows, &self.bins);
                }
                Some((&self.current.histograms, &self.previous.histograms))
            }
        }
    }

    /// The counts of the current, or of the previous distribution, if they are known.
    pub(crate) fn counts(&self, current: bool) -> Option<AxisCounts> {
        let mut copy = self.clone();
        if current {
            return Some(copy.current().counts());
        }
        copy.distributions().map(|(_, previous)| previous.counts())
    }

    /// The divergences of one axis between successive windows of the stream before the current one,
    /// newest last; at most [`PAST`].
    pub(crate) fn past(&self, axis: usize) -> Vec<f64> {
        let start = self.mode.windows(self.rows.end()).current.start;
        // Where every pair counts, no window lies before them; those that have ended must do.
        let end = if self.mode.counts_all() {
            self.rows.end()
        } else {
            start
        };
        self.scale.past(axis, end)
    }

    /// Length of the windows that [`AxisWindows::past`] compares.
    pub(crate) fn past_window(&self) -> u64 {
        self.scale.window
    }

    /// All that is needed to continue; the same for the same pairs.
    pub(crate) fn state(&self) -> AxisWindowsState {
        let mut copy = self.clone();
        copy.settle();
        let n = copy.rows.end();
        AxisWindowsState {
            rows: Row::from(copy.rows.slice(copy.needed(n), n)),
            all: if copy.mode.counts_all() {
                copy.current.histograms.counts()
            } else {
                AxisCounts::new()
            },
            open: copy.scale.open.counts(),
            closed: copy.scale.closed.as_ref().map(AxisHistograms::counts),
            values: copy.scale.values.into(),
        }
    }

    /// Continues from the state after `steps` pairs.
    ///
    /// # Errors
    /// A state that no run can have; nothing is changed then.
    pub(crate) fn restore(&mut self, state: &AxisWindowsState, steps: u64) -> Result<()> {
        let wrong = |why: String| Error::malformed("the histograms of the axes", why);
        let mut new = self.clone();
        new.reset();
        let axes = new.bins.axes();
        let needed = new.needed(steps);
        let pairs = usize::try_from(steps - needed).ok();
        if pairs.and_then(|pairs| pairs.checked_mul(axes)) != Some(state.rows.len()) {
            return Err(wrong(format!(
                "expected {axes} bytes for each of {} pairs, got {}",
                steps - needed,
                state.rows.len()
            )));
        }
        if axes > 0 && !state.rows.chunks(axes).all(|row| new.bins.hold(row)) {
            return Err(wrong("a row has a bin that its axis lacks".into()));
        }
        new.rows = Rows::new(axes, needed);
        new.rows.extend(&state.rows, steps);
        new.settled = steps;
        if new.mode.counts_all() {
            new.current = Follower {
                range: 0..steps,
                histograms: AxisHistograms::from_counts(new.bins.clone(), &state.all, steps)?,
            };
        } else if !state.all.is_empty() {
            return Err(wrong("counts of all pairs do not belong to windows".into()));
        }
        let scale = &mut new.scale;
        scale.filled = steps / scale.window;
        let counts = |counts, pairs| AxisHistograms::from_counts(new.bins.clone(), counts, pairs);
        scale.open = counts(&state.open, steps % scale.window)?;
        scale.closed = match &state.closed {
            Some(closed) => Some(counts(closed, scale.window)?),
            None => None,
        };
        let values = scale.filled.saturating_sub(1).min(KEPT as u64);
        let legal = |values: &Vec<f64>| {
            values.len() == axes && values.iter().all(|value| (0.0..=1024.0).contains(value))
        };
        if scale.closed.is_some() != (scale.filled > 0)
            || state.values.len() as u64 != values
            || !state.values.iter().all(legal)
        {
            return Err(wrong(format!(
                "expected {values} divergences of {axes} axes between windows"
            )));
        }
        scale.values = state.values.iter().cloned().collect();
        *self = new;
        Ok(())
    }
}
