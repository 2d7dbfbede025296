//! Two distributions of the pairs seen so far, and how they move by one pair.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::blindness::Blindness;
use crate::cells::{Cells, Change, Divergence};
use crate::episodes::{Episodes, EpisodesState};
use crate::error::{Error, Result};
use crate::expectation::{Expectation, Past};
use crate::floor::Regime;
use crate::history::{History, HistoryState, Moments, checked_size};
use crate::layout::Key;
use crate::snapshot::{Counts, Snapshot};

/// The longest window and lag: a pair in the ring is numbered by 32 bits.
pub(crate) const LONGEST: u64 = u32::MAX as u64;
const LARGEST_EPSILON: f64 = 1e6;

/// What is compared with what. Units of `window`, `lag` and `min_window` are pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Length of each window; `None` counts every pair.
    pub window: Option<u64>,
    /// How far the previous window lies back; `None` puts it next to the current one.
    pub lag: Option<u64>,
    /// Pseudocount of each occupied cell.
    pub epsilon: f64,
    /// Number of reported values that mean, deviation, minimum and maximum are taken over.
    pub history_size: u64,
    /// Fewer pairs than this on a side report nothing.
    pub min_window: u64,
    /// Whether the histogram of each axis is kept; `None` keeps them for up to 64 axes.
    #[serde(default)]
    pub axis_histograms: Option<bool>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Some(1000),
            lag: None,
            epsilon: 0.5,
            history_size: 1000,
            min_window: 32,
            axis_histograms: None,
        }
    }
}

/// Numbers of the pairs, from 0, in each distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Those of P.
    pub(crate) current: Range<u64>,
    /// Those of Q; `None` for a frozen reference.
    pub(crate) previous: Option<Range<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The last W pairs against the W before them.
    Adjacent { window: usize },
    /// The last W pairs against the W that end L pairs earlier.
    Lagged { window: usize, lag: usize },
    /// Every pair against all but the newest.
    Newest,
    /// The last W pairs against a frozen reference.
    ReferenceWindow { window: usize },
    /// Every pair against a frozen reference.
    ReferenceAll,
}

impl Mode {
    #[allow(clippy::cast_possible_truncation)]
    fn new(config: &Config, has_reference: bool) -> Result<Self> {
        let length = |name, value| match value {
            Some(length @ 1..=LONGEST) => Ok(Some(length as usize)),
            None => Ok(None),
            Some(other) => Err(Error::parameter(
                name,
                format!("None or an integer from 1 to {LONGEST}"),
                other,
            )),
        };
        let window = length("window", config.window)?;
        let lag = length("lag", config.lag)?;
        if !(config.epsilon > 0.0 && config.epsilon <= LARGEST_EPSILON) {
            return Err(Error::parameter(
                "epsilon",
                "a number above 0, at most 1e6",
                config.epsilon,
            ));
        }
        if config.min_window == 0 {
            return Err(Error::parameter(
                "min_window",
                "an integer of at least 1",
                0,
            ));
        }
        match (window, lag, has_reference) {
            (Some(window), None, false) => Ok(Self::Adjacent { window }),
            (Some(window), Some(lag), false) => Ok(Self::Lagged { window, lag }),
            (None, None, false) => Ok(Self::Newest),
            (Some(window), None, true) => Ok(Self::ReferenceWindow { window }),
            (None, None, true) => Ok(Self::ReferenceAll),
            (None, Some(lag), _) => Err(Error::parameter("lag", "None where window is None", lag)),
            (Some(_), Some(lag), true) => Err(Error::parameter(
                "lag",
                "None where a reference is given",
                lag,
            )),
        }
    }

    /// The most pairs that must be remembered in order.
    fn span(self) -> usize {
        match self {
            Self::Adjacent { window } => 2 * window,
            Self::Lagged { window, lag } => window + lag,
            Self::ReferenceWindow { window } => window,
            Self::Newest | Self::ReferenceAll => 0,
        }
    }

    /// W; `None` where every pair counts.
    pub(crate) fn window(self) -> Option<u64> {
        match self {
            Self::Adjacent { window }
            | Self::Lagged { window, .. }
            | Self::ReferenceWindow { window } => Some(window as u64),
            Self::Newest | Self::ReferenceAll => None,
        }
    }

    /// Whether every pair is in P.
    pub(crate) fn counts_all(self) -> bool {
        self.window().is_none()
    }

    /// Whether the two distributions differ by more than one pair.
    pub(crate) fn compares_windows(self) -> bool {
        self != Self::Newest
    }

    /// The pairs that must be remembered where the newest is told apart.
    pub(crate) fn span_of_rows(self) -> u64 {
        match self {
            Self::Newest => 1,
            _ => self.span() as u64,
        }
    }

    /// Which of `n` pairs are in which distribution.
    pub(crate) fn windows(self, n: u64) -> Windows {
        let last = |end: u64, length: u64| end.saturating_sub(length)..end;
        match self {
            Self::Adjacent { window } => {
                let window = (window as u64).min(n - n / 2);
                let current = last(n, window);
                Windows {
                    previous: Some(last(current.start, window)),
                    current,
                }
            }
            Self::Lagged { window, lag } => Windows {
                current: last(n, window as u64),
                previous: Some(last(n.saturating_sub(lag as u64), window as u64)),
            },
            Self::Newest => Windows {
                current: 0..n,
                previous: Some(0..n.saturating_sub(1)),
            },
            Self::ReferenceWindow { window } => Windows {
                current: last(n, window as u64),
                previous: None,
            },
            Self::ReferenceAll => Windows {
                current: 0..n,
                previous: None,
            },
        }
    }

    /// Whether pair `j` (from 0) of `n` is in the current and in the previous distribution.
    fn membership(self, j: u64, n: u64) -> (bool, bool) {
        let windows = self.windows(n);
        let previous = windows.previous.is_some_and(|pairs| pairs.contains(&j));
        (windows.current.contains(&j), previous)
    }
}

/// What one pair reports, in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Joint divergence; 0.0 until there is evidence.
    pub joint: f64,
    /// Its observation part: where the agent goes.
    pub observation: f64,
    /// Its policy part: what it does there.
    pub policy: f64,
    /// What the joint divergence would be on average if nothing had changed, for exchangeable
    /// pairs; 0.0 where the distributions share pairs.
    pub noise_floor: f64,
    /// Mean and deviation of the joint divergence over the history.
    pub moments: Moments,
}

impl Report {
    /// Number of values in [`Report::numbers`].
    pub const WIDTH: usize = 7;

    /// Joint divergence, its mean and deviation, observation part, policy part, noise floor, excess.
    #[must_use]
    pub fn numbers(&self) -> [f64; Self::WIDTH] {
        [
            self.joint,
            self.moments.mean,
            self.moments.std,
            self.observation,
            self.policy,
            self.noise_floor,
            self.excess(),
        ]
    }

    /// The joint divergence beyond the noise floor; may be negative.
    #[must_use]
    pub fn excess(&self) -> f64 {
        self.joint - self.noise_floor
    }
}

/// Which distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// P, the newest behaviour.
    Current,
    /// Q, what it is compared with.
    Previous,
}

/// A drift as it is saved. Counts follow from the order of the pairs where there are windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriftState {
    /// Pairs since the start.
    pub steps: u64,
    /// Observation key, action key, and whether a digit is a flow bin.
    pub cells: Vec<(Key, Key, bool)>,
    /// Numbers into `cells` of the remembered pairs, oldest first.
    pub pairs: Vec<u32>,
    /// Count of each of `cells` where every pair counts, else empty.
    pub counts: Vec<u64>,
    /// Number of the newest pair's cell where every pair counts against all but the newest.
    pub newest: Option<u32>,
    /// The reported values.
    pub history: HistoryState,
    /// Joint divergences one window apart, oldest first.
    pub past: Vec<f64>,
    /// Where the episodes begin.
    pub episodes: EpisodesState,
}

/// The two distributions, the ring of pairs between them, and the history.
#[derive(Debug, Clone)]
pub struct Drift {
    config: Config,
    mode: Mode,
    history_size: usize,
    reference: Option<Arc<Snapshot>>,
    cells: Cells,
    /// Cell numbers of the remembered pairs, oldest first; grows with the run up to the span.
    ring: VecDeque<u32>,
    steps: u64,
    newest: Option<u32>,
    current: Divergence,
    noise_floor: f64,
    history: History,
    past: Past,
    /// Values that `past` has taken in all.
    taken: u64,
    episodes: Episodes,
}

impl Drift {
    /// An empty drift; `reference` freezes the previous distribution.
    ///
    /// # Errors
    /// A parameter outside its range, or a reference without pairs.
    pub fn new(config: Config, reference: Option<Arc<Snapshot>>) -> Result<Self> {
        let mode = Mode::new(&config, reference.is_some())?;
        let history_size = checked_size(config.history_size, config.epsilon)?;
        let mut drift = Self {
            mode,
            history_size,
            reference,
            cells: Cells::new(config.epsilon),
            ring: VecDeque::new(),
            steps: 0,
            newest: None,
            current: Divergence::default(),
            noise_floor: 0.0,
            history: History::new(history_size),
            past: Past::new(),
            taken: 0,
            episodes: Episodes::new(mode.span() as u64),
            config,
        };
        if drift
            .reference
            .as_ref()
            .is_some_and(|snapshot| snapshot.counts.is_empty())
        {
            return Err(Error::parameter(
                "reference",
                "a snapshot with at least one pair",
                "none",
            ));
        }
        drift.cells = drift.reference_cells()?;
        Ok(drift)
    }

    fn reference_cells(&self) -> Result<Cells> {
        let mut cells = Cells::new(self.config.epsilon);
        for (&observation, actions) in self.reference.iter().flat_map(|snapshot| &snapshot.counts) {
            for (&action, &count) in actions {
                let number = cells.enter(observation, action, false)?;
                let mut left = count;
                // A count of more than 63 bits enters in two parts.
                while left > 0 {
                    let part = left.min(i64::MAX as u64);
                    cells.change(
                        number,
                        Change {
                            previous: part.cast_signed(),
                            ..Change::default()
                        },
                    );
                    left -= part;
                }
            }
        }
        Ok(cells)
    }

    /// The parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What is compared with what.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The frozen previous distribution, if there is one.
    #[must_use]
    pub fn reference(&self) -> Option<&Arc<Snapshot>> {
        self.reference.as_ref()
    }

    /// Pairs since the start or the last reset.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// K, the cells occupied in either distribution.
    #[must_use]
    pub fn occupied(&self) -> u64 {
        self.cells.union()
    }

    /// Share of the current pairs with a digit in a flow bin; 0.0 without pairs.
    #[must_use]
    pub fn flow(&self) -> f64 {
        match self.cells.current_total() {
            0 => 0.0,
            total => self.cells.flow_pairs() as f64 / total as f64,
        }
    }

    /// The reported values.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Whether a value is reported: before that there is no evidence of change.
    #[must_use]
    pub fn reported(&self) -> bool {
        let n = self.steps;
        let least = self.config.min_window;
        match self.mode {
            Mode::Adjacent { window } => {
                let window = window as u64;
                (n / 2).min(window) >= least.min(window)
            }
            Mode::Lagged { window, lag } => n >= window as u64 + lag as u64,
            Mode::Newest => n >= 2,
            Mode::ReferenceWindow { window } => {
                let window = window as u64;
                n.min(window) >= least.min(window)
            }
            Mode::ReferenceAll => n >= least,
        }
    }

    /// Whether reported values have a noise floor: the distributions share no pairs.
    #[must_use]
    pub fn has_floor(&self) -> bool {
        match self.mode {
            Mode::Lagged { window, lag } => lag >= window,
            Mode::Newest => false,
            _ => true,
        }
    }

    /// Whether there is a noise floor by now: a value is reported, and it has one.
    #[must_use]
    pub fn floor_available(&self) -> bool {
        self.has_floor() && self.reported()
    }

    /// Whether the windows are full.
    #[must_use]
    pub fn ready(&self) -> bool {
        let n = self.steps;
        match self.mode {
            Mode::Adjacent { window } => n >= 2 * window as u64,
            Mode::Lagged { window, lag } => n >= window as u64 + lag as u64,
            Mode::Newest => n >= 2,
            Mode::ReferenceWindow { window } => n >= window as u64,
            Mode::ReferenceAll => n >= self.config.min_window,
        }
    }

    /// What the newest pair reported.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            joint: self.current.joint,
            observation: self.current.observation,
            policy: self.current.policy,
            noise_floor: self.noise_floor,
            moments: self.history.moments(),
        }
    }

    /// Counts one pair; `flow` says that a digit of it is a flow bin.
    ///
    /// # Errors
    /// More cells than 32 bits can number; nothing is counted then.
    #[inline]
    pub fn push(&mut self, observation: Key, action: Key, flow: bool) -> Result<()> {
        self.enter(observation, action, flow)?;
        self.conclude();
        Ok(())
    }

    /// Counts one pair; `conclude` comes next. Returns the number of its cell, and whether that number
    /// is new to the cell.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        observation: Key,
        action: Key,
        flow: bool,
    ) -> Result<(u32, bool)> {
        self.enter_pair::<false>(observation, action, flow)
    }

    /// Counts one pair of several that report one value together, as `enter` does;
    /// `conclude_gathered` comes after the last.
    ///
    /// A cell that several of them meet changes once, by the sum of their changes. That is the same
    /// as one after the other, because the sums of the cells do not depend on the order.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        observation: Key,
        action: Key,
        flow: bool,
    ) -> Result<(u32, bool)> {
        self.enter_pair::<true>(observation, action, flow)
    }

    #[inline]
    fn change<const GATHER: bool>(&mut self, number: u32, change: Change) {
        if GATHER {
            self.cells.gather(number, change);
        } else {
            self.cells.change(number, change);
        }
    }

    #[inline]
    fn enter_pair<const GATHER: bool>(
        &mut self,
        observation: Key,
        action: Key,
        flow: bool,
    ) -> Result<(u32, bool)> {
        let known = self.cells.numbered();
        let number = self.cells.enter(observation, action, flow)?;
        let is_new = self.cells.numbered() != known;
        let joins_current = Change {
            current: 1,
            ..Change::default()
        };
        let leaves_current = Change {
            current: -1,
            ..Change::default()
        };
        self.change::<GATHER>(number, joins_current);
        self.steps += 1;
        match self.mode {
            Mode::Adjacent { window } => self.push_adjacent::<GATHER>(number, window),
            Mode::Lagged { window, lag } => self.push_lagged::<GATHER>(number, window, lag),
            Mode::Newest => self.newest = Some(number),
            Mode::ReferenceWindow { window } => {
                self.ring.push_back(number);
                if self.ring.len() > window
                    && let Some(oldest) = self.ring.pop_front()
                {
                    self.change::<GATHER>(oldest, leaves_current);
                }
            }
            Mode::ReferenceAll => {}
        }
        Ok((number, is_new))
    }

    /// Changes the cells of the gathered pairs, and concludes.
    pub(crate) fn conclude_gathered(&mut self) {
        self.cells.change_gathered();
        self.conclude();
    }

    /// Computes the value after the pair entered last, and remembers it.
    #[inline]
    pub(crate) fn conclude(&mut self) {
        self.evaluate();
        if self.reported() {
            let Divergence {
                joint,
                observation,
                policy,
            } = self.current;
            self.history.push(joint, observation, policy);
            if self.steps >= self.next_taken() {
                self.past.take(joint);
                self.taken += 1;
            }
        }
    }

    /// The number of pairs with which the full windows first hold `taken` windows of new pairs.
    #[inline]
    fn next_taken(&self) -> u64 {
        let full = match self.mode {
            Mode::Adjacent { window } => 2 * window,
            Mode::Lagged { window, lag } => window + lag,
            Mode::ReferenceWindow { window } => window,
            // There are no windows to be apart.
            Mode::Newest | Mode::ReferenceAll => return u64::MAX,
        };
        full as u64 + self.taken * self.config.window.unwrap_or(0)
    }

    /// What the joint divergence usually is, from values one window apart; `None` until there are
    /// 20 of them, and without windows.
    #[must_use]
    pub fn expectation(&self) -> Option<Expectation> {
        self.past.expectation()
    }

    /// The next pair is the first of an episode.
    pub(crate) fn begin_episode(&mut self) {
        self.episodes.begin(self.steps);
    }

    /// Episodes with a pair in the windows (a reference has none); one without end where nobody
    /// says that they begin.
    #[must_use]
    pub fn episodes_in_window(&self) -> u64 {
        self.episodes.count(self.steps)
    }

    /// What the counts can show; walks the cells.
    #[must_use]
    pub fn blindness(&self) -> Blindness {
        if self.floor_available() {
            return self.cells.policy_blindness(self.current.policy);
        }
        Blindness {
            policy_excess: self.current.policy,
            ..self.cells.blindness(self.newest)
        }
    }

    fn push_adjacent<const GATHER: bool>(&mut self, number: u32, window: usize) {
        let crosses = Change {
            current: -1,
            previous: 1,
            held: 0,
        };
        let leaves_previous = Change {
            previous: -1,
            ..Change::default()
        };
        self.ring.push_back(number);
        let n = self.ring.len();
        if n > 2 * window {
            self.change::<GATHER>(self.ring[window], crosses);
            if let Some(oldest) = self.ring.pop_front() {
                self.change::<GATHER>(oldest, leaves_previous);
            }
        } else if n.is_multiple_of(2) {
            self.change::<GATHER>(self.ring[n / 2 - 1], crosses);
        }
    }

    fn push_lagged<const GATHER: bool>(&mut self, number: u32, window: usize, lag: usize) {
        self.ring.push_back(number);
        let n = self.ring.len();
        // Between the windows a pair is held, so that its cell keeps its number.
        let held = i32::from(lag > window);
        // Joining comes before leaving, so that a cell in both is never empty between the two;
        // a pair that is held leaves first, long before it joins.
        if n > lag {
            let joins_previous = Change {
                previous: 1,
                held: -held,
                ..Change::default()
            };
            self.change::<GATHER>(self.ring[n - 1 - lag], joins_previous);
        }
        if n > window {
            let leaves_current = Change {
                current: -1,
                held,
                ..Change::default()
            };
            self.change::<GATHER>(self.ring[n - 1 - window], leaves_current);
        }
        if n > window + lag
            && let Some(oldest) = self.ring.pop_front()
        {
            let leaves_previous = Change {
                previous: -1,
                ..Change::default()
            };
            self.change::<GATHER>(oldest, leaves_previous);
        }
    }

    fn evaluate(&mut self) {
        self.current = match (self.mode, self.newest) {
            _ if !self.reported() => Divergence::default(),
            (Mode::Newest, Some(number)) => self.cells.divergence_from_all_but(number),
            _ => self.cells.divergence(),
        };
        self.noise_floor = self.cells.noise_floor(self.floor_regime());
    }

    fn floor_regime(&self) -> Regime {
        let previous = self.cells.previous_total();
        let full = |window| Regime::Full {
            current: window as u64,
            previous,
        };
        match self.mode {
            _ if !self.floor_available() => Regime::Off,
            Mode::Adjacent { window } | Mode::ReferenceWindow { window } if self.ready() => {
                full(window)
            }
            Mode::Lagged { window, .. } => full(window),
            Mode::Adjacent { .. } => Regime::Halves,
            Mode::Newest | Mode::ReferenceWindow { .. } | Mode::ReferenceAll => {
                Regime::growing(self.cells.current_total(), previous)
            }
        }
    }

    /// Forgets every pair and value, and keeps the reference.
    ///
    /// # Errors
    /// None that [`Drift::new`] has not ruled out.
    pub fn reset(&mut self) -> Result<()> {
        self.cells = self.reference_cells()?;
        self.ring = VecDeque::new();
        self.steps = 0;
        self.newest = None;
        self.current = Divergence::default();
        self.noise_floor = 0.0;
        self.history = History::new(self.history_size);
        self.past = Past::new();
        self.taken = 0;
        self.episodes = Episodes::new(self.mode.span() as u64);
        Ok(())
    }

    /// The counts of one distribution.
    #[must_use]
    pub fn counts(&self, which: Which) -> Counts {
        let mut counts = Counts::new();
        for cell in self.cells.iter() {
            let count = match (which, self.mode) {
                (Which::Current, _) => cell.current,
                (Which::Previous, Mode::Newest) => {
                    cell.current - u64::from(self.newest == Some(cell.number))
                }
                (Which::Previous, _) => cell.previous,
            };
            if count > 0 {
                counts
                    .entry(cell.observation)
                    .or_default()
                    .insert(cell.action, count);
            }
        }
        counts
    }

    /// All that is needed to continue bit for bit; the same for the same pairs.
    #[must_use]
    pub fn state(&self) -> DriftState {
        let every_pair_counts = matches!(self.mode, Mode::Newest | Mode::ReferenceAll);
        let mut views: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| cell.current > 0 || cell.held > 0 || self.in_ring(cell.previous))
            .collect();
        views.sort_unstable_by_key(|cell| (cell.observation, cell.action));
        let mut places = vec![0; views.len()];
        let place: std::collections::HashMap<u32, u32> =
            views.iter().map(|cell| cell.number).zip(0..).collect();
        places.clear();
        places.extend(self.ring.iter().filter_map(|number| place.get(number)));
        DriftState {
            steps: self.steps,
            cells: views
                .iter()
                .map(|cell| (cell.observation, cell.action, cell.flow))
                .collect(),
            pairs: places,
            counts: if every_pair_counts {
                views.iter().map(|cell| cell.current).collect()
            } else {
                Vec::new()
            },
            newest: self.newest.and_then(|number| place.get(&number).copied()),
            history: self.history.state(),
            past: self.past.state(),
            episodes: self.episodes.state(self.steps),
        }
    }

    /// Whether a previous count comes from the ring and not from a reference.
    fn in_ring(&self, previous: u64) -> bool {
        previous > 0 && self.reference.is_none()
    }

    /// A drift that continues from `state`.
    ///
    /// # Errors
    /// A state that no run of this configuration can have.
    pub fn restore(
        config: Config,
        reference: Option<Arc<Snapshot>>,
        state: &DriftState,
    ) -> Result<Self> {
        let wrong = |why: String| Error::malformed("the state", why);
        let mut drift = Self::new(config, reference)?;
        if i64::try_from(state.steps).is_err() {
            return Err(wrong(format!("{} steps are too many", state.steps)));
        }
        let span = drift.mode.span();
        let expected = state.steps.min(span as u64);
        if state.pairs.len() as u64 != expected {
            return Err(wrong(format!(
                "expected {expected} pairs after {} steps, got {}",
                state.steps,
                state.pairs.len()
            )));
        }
        let known = drift.cells.numbered();
        let mut numbers = Vec::with_capacity(state.cells.len());
        let mut distinct = std::collections::HashSet::new();
        for &(observation, action, flow) in &state.cells {
            if !distinct.insert((observation, action)) {
                return Err(wrong(format!(
                    "a cell comes twice: {observation:?} {action:?}"
                )));
            }
            numbers.push(drift.cells.enter(observation, action, flow)?);
        }
        let number = |place: u32| {
            let found = numbers.get(place as usize).copied();
            found.ok_or_else(|| wrong(format!("there is no cell {place}")))
        };
        let first = state.steps - expected;
        drift.steps = state.steps;
        for (j, &place) in (first..).zip(&state.pairs) {
            let number = number(place)?;
            let (current, previous) = drift.mode.membership(j, state.steps);
            drift.ring.push_back(number);
            drift.cells.change(
                number,
                Change {
                    current: current.into(),
                    previous: previous.into(),
                    held: (!current && !previous).into(),
                },
            );
        }
        drift.restore_counts(state, &numbers)?;
        drift.newest = match (drift.mode, state.newest) {
            (Mode::Newest, Some(place)) => Some(number(place)?),
            (Mode::Newest, None) if state.steps == 0 => None,
            (Mode::Newest, None) => return Err(wrong("the newest cell is missing".into())),
            (_, None) => None,
            (_, Some(_)) => return Err(wrong("a newest cell does not belong here".into())),
        };
        if drift
            .cells
            .iter()
            .any(|cell| cell.current == 0 && cell.previous == 0 && cell.held == 0)
        {
            return Err(wrong(format!(
                "some of its {} cells hold no pair",
                drift.cells.numbered() - known
            )));
        }
        if state.history.values.len() as u64 > state.steps {
            return Err(wrong("its history is longer than the run".into()));
        }
        drift.history = History::restore(drift.history_size, &state.history)?;
        drift.evaluate();
        drift.taken = match drift.next_taken() {
            first if first <= drift.steps => {
                1 + (drift.steps - first) / drift.config.window.unwrap_or(u64::MAX)
            }
            _ => 0,
        };
        drift.past = Past::restore(&state.past, drift.taken)?;
        let span = drift.mode.span() as u64;
        drift.episodes = Episodes::restore(span, drift.steps, &state.episodes)?;
        Ok(drift)
    }

    fn restore_counts(&mut self, state: &DriftState, numbers: &[u32]) -> Result<()> {
        let wrong = |why: String| Error::malformed("the state", why);
        if self.mode.span() > 0 {
            return if state.counts.is_empty() {
                Ok(())
            } else {
                Err(wrong("counts do not belong to windows".into()))
            };
        }
        let total = state
            .counts
            .iter()
            .try_fold(0u64, |sum, &count| sum.checked_add(count));
        if state.counts.len() != numbers.len() || total != Some(state.steps) {
            return Err(wrong(format!(
                "expected a count for each of {} cells that add up to {} steps",
                numbers.len(),
                state.steps
            )));
        }
        for (&number, &count) in numbers.iter().zip(&state.counts) {
            let Some(current @ 1..) = i64::try_from(count).ok() else {
                return Err(wrong(format!("a cell counts {count} pairs")));
            };
            self.cells.change(
                number,
                Change {
                    current,
                    ..Change::default()
                },
            );
        }
        Ok(())
    }
}
