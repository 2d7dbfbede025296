//! Trackers for the rows of a batch, fed the way a vector environment is stepped.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::axis_moves::AxisMove;
use crate::detector::Detector;
use crate::drift::{Config, Drift, LONGEST, Report, Which};
use crate::error::{Error, Result};
use crate::layout::{Key, Layout};
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::tracker::{Observed, PairTracker, State, Statistics};

const FORMAT: &str = "kl_proteus.vector_tracker";
const VERSION: u32 = 2;

/// A thread costs as much as a few dozen rows.
const ROWS_WORTH_A_THREAD: usize = 512;

/// What a step leaves in a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The observation that the row's next action answers.
    Observed(Observed),
    /// The row has ended, and the environment ignores its next action: that will be no pair.
    Ended,
    /// Nobody knows what the next action answers.
    Nothing,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorState {
    format: String,
    version: u32,
    rows: usize,
    pooled: bool,
    /// One a row, or one for all of them.
    trackers: Vec<State>,
    /// What waits in each row; empty where each tracker knows it.
    observed: Vec<Option<Observed>>,
    ended: Vec<bool>,
    /// Rows whose next pair is the first of an episode; empty where each tracker knows it.
    begins: Vec<bool>,
}

#[derive(Debug, Clone)]
enum Rows {
    Each(Vec<PairTracker>),
    Pooled(Box<Pool>),
}

/// One tracker for every row.
#[derive(Debug, Clone)]
struct Pool {
    tracker: PairTracker,
    observed: Vec<Option<Observed>>,
    chosen: Vec<Option<(Key, bool, Row)>>,
    begins: Vec<bool>,
}

impl Pool {
    /// Counts what waits in every row, in the order of the rows; they report one value together.
    fn count(&mut self) -> Result<Report> {
        let pairs = self.observed.iter().zip(&self.chosen);
        let rows = pairs.zip(&mut self.begins);
        let report = self
            .tracker
            .count_all(rows.filter_map(|(pair, begins)| match pair {
                (
                    Some(Observed::Cell { key, flow, row }),
                    Some((action, action_flow, action_row)),
                ) => {
                    let begins = std::mem::take(begins);
                    Some((
                        *key,
                        *action,
                        *flow || *action_flow,
                        row,
                        action_row,
                        begins,
                    ))
                }
                _ => None,
            }))?;
        self.chosen.fill(None);
        Ok(report)
    }
}

/// Counts the (observation, action) pairs of N rows: each on its own, exactly as N
/// [`PairTracker`]s would, or all in one distribution.
///
/// The rows share the memory of their axes. A pooled tracker counts `window`, `lag` and
/// `min_window` in steps of all rows, so its windows hold `window * rows` pairs. Where some rows
/// bring no pair, the windows hold as many pairs and reach back further.
#[derive(Debug, Clone)]
pub struct VectorTracker {
    config: Config,
    rows: Rows,
    /// Rows whose next action the environment ignores.
    ended: Vec<bool>,
}

impl VectorTracker {
    /// An empty tracker of `rows` rows; the other arguments are those of [`PairTracker::new`].
    ///
    /// # Errors
    /// No rows, a parameter outside its range, or a reference on other axes.
    pub fn new(
        rows: usize,
        pooled: bool,
        observation: Option<Arc<Layout>>,
        action: Arc<Layout>,
        encoder: Option<String>,
        config: Config,
        reference: Option<Arc<Snapshot>>,
    ) -> Result<Self> {
        if rows == 0 {
            return Err(Error::parameter("rows", "at least 1", rows));
        }
        let own = if pooled {
            of_all_rows(&config, rows as u64)?
        } else {
            config.clone()
        };
        let tracker = PairTracker::new(observation, action, encoder, own, reference)?;
        let rows = if pooled {
            Rows::Pooled(Box::new(Pool {
                tracker,
                observed: vec![None; rows],
                chosen: vec![None; rows],
                begins: vec![false; rows],
            }))
        } else {
            Rows::Each(vec![tracker; rows])
        };
        let mut tracker = Self {
            config,
            rows,
            ended: Vec::new(),
        };
        tracker.ended = vec![false; tracker.len()];
        Ok(tracker)
    }

    /// Number of rows.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is at least one.
    pub fn len(&self) -> usize {
        match &self.rows {
            Rows::Each(trackers) => trackers.len(),
            Rows::Pooled(pool) => pool.observed.len(),
        }
    }

    /// Whether all rows are in one distribution.
    #[must_use]
    pub fn pooled(&self) -> bool {
        matches!(self.rows, Rows::Pooled(_))
    }

    /// The parameters; windows count steps of all rows.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn trackers(&self) -> &[PairTracker] {
        match &self.rows {
            Rows::Each(trackers) => trackers,
            Rows::Pooled(pool) => std::slice::from_ref(&pool.tracker),
        }
    }

    fn trackers_mut(&mut self) -> &mut [PairTracker] {
        match &mut self.rows {
            Rows::Each(trackers) => trackers,
            Rows::Pooled(pool) => std::slice::from_mut(&mut pool.tracker),
        }
    }

    /// The tracker of a row, or that of all rows.
    #[must_use]
    pub fn tracker(&self, row: usize) -> Option<&PairTracker> {
        match &self.rows {
            Rows::Each(trackers) => trackers.get(row),
            Rows::Pooled(pool) => (row < pool.observed.len()).then_some(&pool.tracker),
        }
    }

    fn first(&self) -> &PairTracker {
        &self.trackers()[0]
    }

    /// Sets the axes that an encoder's first result decides.
    ///
    /// # Errors
    /// As [`PairTracker::define_observation`].
    pub fn define_observation(&mut self, layout: &Arc<Layout>) -> Result<()> {
        // All have the same axes and reference, so all agree with the first.
        self.trackers_mut()
            .iter_mut()
            .try_for_each(|tracker| tracker.define_observation(layout.clone()))
    }

    /// Whether histograms of the axes are kept, so that rows of bins are needed.
    #[must_use]
    pub fn keeps_rows(&self) -> bool {
        self.trackers().iter().any(PairTracker::keeps_rows)
    }

    /// As [`PairTracker::axis_moves`], for each row or once for all of them.
    pub fn axis_moves(&mut self) -> Vec<Vec<AxisMove>> {
        let trackers = self.trackers_mut().iter_mut();
        trackers.map(PairTracker::axis_moves).collect()
    }

    /// The axes of the observation, if they are decided.
    #[must_use]
    pub fn observation(&self) -> Option<&Arc<Layout>> {
        self.first().observation()
    }

    /// The name of the encoder, if there is one.
    #[must_use]
    pub fn encoder(&self) -> Option<&str> {
        self.first().encoder()
    }

    /// From now on a copy of the detector counts the pairs of each row, or one those of all rows in
    /// their order.
    ///
    /// # Errors
    /// As [`PairTracker::check_detector`]; nothing is attached then.
    pub fn attach(&mut self, detector: &Detector) -> Result<()> {
        // All have the same axes, so all agree with the first.
        self.first().check_detector(detector)?;
        self.trackers_mut()
            .iter_mut()
            .try_for_each(|tracker| tracker.attach(Box::new(detector.clone())))
    }

    /// The detector of a row, or that of all rows, if there is one.
    #[must_use]
    pub fn detector(&self, row: usize) -> Option<&Detector> {
        self.tracker(row)?.detector()
    }

    /// The detector of a row, or that of all rows, to be changed.
    pub fn detector_mut(&mut self, row: usize) -> Option<&mut Detector> {
        let row = if self.pooled() { 0 } else { row };
        self.trackers_mut().get_mut(row)?.detector_mut()
    }

    /// For each row, whether its newest step, or that of all rows, raised an alarm; `None` without
    /// detectors.
    #[must_use]
    pub fn alarms(&self) -> Option<Vec<bool>> {
        (0..self.len())
            .map(|row| self.detector(row).map(Detector::alarmed))
            .collect()
    }

    /// What waits for an action in a row.
    #[must_use]
    pub fn observed(&self, row: usize) -> Option<&Observed> {
        match &self.rows {
            Rows::Each(trackers) => trackers[row].observed(),
            Rows::Pooled(pool) => pool.observed[row].as_ref(),
        }
    }

    /// The action that waits to be counted in a row.
    #[must_use]
    pub fn chosen(&self, row: usize) -> Option<Key> {
        match &self.rows {
            Rows::Each(trackers) => trackers[row].chosen(),
            Rows::Pooled(pool) => pool.chosen[row].as_ref().map(|&(key, ..)| key),
        }
    }

    /// Whether the environment ignores the next action of a row.
    #[must_use]
    pub fn ended(&self, row: usize) -> bool {
        self.ended[row]
    }

    /// Takes the actions of the rows whose pairs wait for [`VectorTracker::advance`].
    pub fn choose(&mut self, actions: impl IntoIterator<Item = (usize, Key, bool, Row)>) {
        self.forget_actions();
        for (row, key, flow, bins) in actions {
            match &mut self.rows {
                Rows::Each(trackers) => trackers[row].choose(key, flow, bins),
                Rows::Pooled(pool) => pool.chosen[row] = Some((key, flow, bins)),
            }
        }
    }

    fn forget_actions(&mut self) {
        match &mut self.rows {
            Rows::Each(trackers) => trackers.iter_mut().for_each(PairTracker::forget_action),
            Rows::Pooled(pool) => pool.chosen.fill(None),
        }
    }

    /// Takes what a reset leaves in a row.
    pub fn observe(&mut self, row: usize, next: Next) {
        let (observed, ended) = taken(next);
        match &mut self.rows {
            Rows::Each(trackers) => put(&mut trackers[row], observed),
            Rows::Pooled(pool) => {
                pool.observed[row] = observed;
                pool.chosen[row] = None;
            }
        }
        self.ended[row] = ended;
    }

    /// The next pair of each of these rows is the first of an episode.
    pub fn begin_episodes(&mut self, rows: impl IntoIterator<Item = usize>) {
        for row in rows {
            match &mut self.rows {
                Rows::Each(trackers) => trackers[row].begin_episode(),
                Rows::Pooled(pool) => pool.begins[row] = true,
            }
        }
    }

    /// Forgets what waits in every row.
    pub fn forget(&mut self) {
        for row in 0..self.len() {
            self.observe(row, Next::Nothing);
        }
    }

    /// Counts the waiting pairs and takes what the step leaves in each row.
    ///
    /// `columns[i][row]` becomes the i-th of [`Report::numbers`]; a row that brings no pair because
    /// it had ended gets 0.0 unless `every` row is to report.
    ///
    /// # Errors
    /// More cells than can be numbered; the rows before are counted then.
    ///
    /// # Panics
    /// A column is shorter than the rows.
    pub fn advance(
        &mut self,
        next: impl Fn(usize, &mut Vec<u8>) -> Next + Sync,
        every: bool,
        columns: &mut [&mut [f64]; Report::WIDTH],
    ) -> Result<()> {
        match &mut self.rows {
            Rows::Each(trackers) => advance_each(
                trackers,
                &mut self.ended,
                columns.each_mut().map(|column| &mut **column),
                &next,
                every,
            )?,
            Rows::Pooled(pool) => {
                let report = pool.count()?;
                let mut scratch = Vec::new();
                for (row, ended) in self.ended.iter_mut().enumerate() {
                    write(columns, row, &report, true);
                    (pool.observed[row], *ended) = taken(next(row, &mut scratch));
                }
            }
        }
        Ok(())
    }

    /// Writes what the newest pairs reported, as [`VectorTracker::advance`] for every row.
    pub fn report(&self, columns: &mut [&mut [f64]; Report::WIDTH]) {
        match &self.rows {
            Rows::Each(trackers) => {
                for (row, tracker) in trackers.iter().enumerate() {
                    write(columns, row, &tracker.drift().report(), true);
                }
            }
            Rows::Pooled(pool) => {
                let report = pool.tracker.drift().report();
                for row in 0..pool.observed.len() {
                    write(columns, row, &report, true);
                }
            }
        }
    }

    /// What [`PairTracker::statistics`] knows, for each row or once for all of them.
    #[must_use]
    pub fn statistics(&self) -> Vec<Statistics> {
        self.trackers()
            .iter()
            .map(PairTracker::statistics)
            .collect()
    }

    /// The drift of each row, or the one of all rows.
    pub fn drifts(&self) -> impl Iterator<Item = &Drift> {
        self.trackers().iter().map(PairTracker::drift)
    }

    /// Forgets pairs and values; keeps the reference and what waits.
    ///
    /// # Errors
    /// As [`PairTracker::reset`].
    pub fn reset(&mut self) -> Result<()> {
        self.trackers_mut()
            .iter_mut()
            .try_for_each(PairTracker::reset)
    }

    /// One distribution of all rows.
    ///
    /// # Errors
    /// A count overflows.
    pub fn snapshot(&self, which: Which) -> Result<Snapshot> {
        let mut merged = self.first().snapshot(which);
        for tracker in &self.trackers()[1..] {
            merged.merge(&tracker.snapshot(which))?;
        }
        Ok(merged)
    }

    /// The whole state as JSON; the same text for the same pairs.
    ///
    /// # Errors
    /// None that a tracker can meet.
    pub fn state_json(&self) -> Result<String> {
        let trackers = self.trackers().iter().map(PairTracker::state);
        let state = VectorState {
            format: FORMAT.into(),
            version: VERSION,
            rows: self.len(),
            pooled: self.pooled(),
            trackers: trackers.collect::<Result<_>>()?,
            observed: match &self.rows {
                Rows::Each(_) => Vec::new(),
                Rows::Pooled(pool) => pool.observed.clone(),
            },
            ended: self.ended.clone(),
            begins: match &self.rows {
                Rows::Each(_) => Vec::new(),
                Rows::Pooled(pool) => pool.begins.clone(),
            },
        };
        serde_json::to_string(&state).map_err(|error| Error::malformed("the state", error))
    }

    /// Continues from a state of a tracker with the same rows, parameters, axes and reference.
    ///
    /// # Errors
    /// Another tracker's state, or one that no run can have; nothing is changed then.
    pub fn load_state_json(&mut self, text: &str) -> Result<()> {
        let wrong = |why: String| Error::malformed("the state", why);
        let state: VectorState =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if state.format != FORMAT || state.version != VERSION {
            return Err(wrong(format!(
                "expected format {FORMAT:?} version {VERSION}, got {:?} version {}",
                state.format, state.version
            )));
        }
        let describe = |rows: usize, pooled: bool| {
            let kind = if pooled { "pooled" } else { "separate" };
            format!("{rows} {kind} rows")
        };
        if (state.rows, state.pooled) != (self.len(), self.pooled()) {
            return Err(wrong(format!(
                "it was saved with {}, and this tracker has {}",
                describe(state.rows, state.pooled),
                describe(self.len(), self.pooled())
            )));
        }
        let waiting = if state.pooled { state.rows } else { 0 };
        if state.trackers.len() != self.trackers().len()
            || state.ended.len() != state.rows
            || state.observed.len() != waiting
            || state.begins.len() != waiting
        {
            return Err(wrong("it does not say something of every row".into()));
        }
        let mut loaded = self.clone();
        for (tracker, state) in loaded.trackers_mut().iter_mut().zip(state.trackers) {
            tracker.load_state(state)?;
        }
        if let Some(layout) = loaded
            .trackers()
            .iter()
            .find_map(|tracker| tracker.observation().cloned())
        {
            // An encoder's first result decides the axes of every row.
            loaded.define_observation(&layout)?;
        }
        if let Rows::Pooled(pool) = &mut loaded.rows {
            let waiting = state.observed.iter().flatten();
            waiting
                .clone()
                .try_for_each(|observed| pool.tracker.check_row(observed))?;
            pool.observed = state.observed;
            pool.begins = state.begins;
            pool.chosen.fill(None);
        }
        loaded.ended = state.ended;
        *self = loaded;
        Ok(())
    }
}

/// Advances separate rows, by as many threads as are worth starting: the rows share nothing.
fn advance_each(
    trackers: &mut [PairTracker],
    ended: &mut [bool],
    columns: [&mut [f64]; Report::WIDTH],
    next: &(impl Fn(usize, &mut Vec<u8>) -> Next + Sync),
    every: bool,
) -> Result<()> {
    let threads = (trackers.len() / ROWS_WORTH_A_THREAD).min(cores());
    if threads <= 1 {
        return advance_part(0, trackers, ended, columns, next, every);
    }
    let length = trackers.len().div_ceil(threads);
    let mut columns = columns.map(|column| column.chunks_mut(length));
    let parts = trackers
        .chunks_mut(length)
        .zip(ended.chunks_mut(length))
        .enumerate();
    thread::scope(|scope| {
        let running: Vec<_> = parts
            .map(|(i, (trackers, ended))| {
                let columns = columns
                    .each_mut()
                    .map(|chunks| chunks.next().unwrap_or_default());
                scope.spawn(move || advance_part(i * length, trackers, ended, columns, next, every))
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Advances the rows from `first` on.
fn advance_part(
    first: usize,
    trackers: &mut [PairTracker],
    ended: &mut [bool],
    mut columns: [&mut [f64]; Report::WIDTH],
    next: &impl Fn(usize, &mut Vec<u8>) -> Next,
    every: bool,
) -> Result<()> {
    let mut scratch = Vec::new();
    for (row, (tracker, ended)) in trackers.iter_mut().zip(ended).enumerate() {
        let report = tracker.count()?;
        write(&mut columns, row, &report, every || !*ended);
        let observed;
        (observed, *ended) = taken(next(first + row, &mut scratch));
        put(tracker, observed);
    }
    Ok(())
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

fn taken(next: Next) -> (Option<Observed>, bool) {
    match next {
        Next::Observed(observed) => (Some(observed), false),
        Next::Ended => (None, true),
        Next::Nothing => (None, false),
    }
}

fn put(tracker: &mut PairTracker, observed: Option<Observed>) {
    match observed {
        Some(observed) => tracker.observe(observed),
        None => tracker.forget(),
    }
}

#[inline]
fn write(columns: &mut [&mut [f64]; Report::WIDTH], row: usize, report: &Report, reports: bool) {
    let numbers = if reports {
        report.numbers()
    } else {
        [0.0; Report::WIDTH]
    };
    for (column, number) in columns.iter_mut().zip(numbers) {
        column[row] = number;
    }
}

/// The parameters of one tracker that counts the pairs of all rows.
fn of_all_rows(config: &Config, rows: u64) -> Result<Config> {
    let pairs = |name, steps: Option<u64>| {
        let most = LONGEST / rows;
        match steps {
            Some(steps) if steps > most => Err(Error::parameter(
                name,
                format!("None or an integer from 1 to {most}, for {rows} rows in one window"),
                steps,
            )),
            Some(steps) => Ok(Some(steps * rows)),
            None => Ok(None),
        }
    };
    Ok(Config {
        window: pairs("window", config.window)?,
        lag: pairs("lag", config.lag)?,
        min_window: config.min_window.saturating_mul(rows),
        ..config.clone()
    })
}
