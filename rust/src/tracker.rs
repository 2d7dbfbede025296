//! A drift with the axes of its pairs, fed the way an environment is stepped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::axis_histograms::AxisCounts;
use crate::axis_moves::AxisMove;
use crate::axis_tracker::{AxisShares, AxisTracker, MOST_AXES};
use crate::axis_windows::AxisWindowsState;
use crate::blindness::Blindness;
use crate::detector::{Detector, Saved};
use crate::drift::{Config, Drift, DriftState, Report, Which};
use crate::error::{Error, Result};
use crate::layout::{Key, Layout, Leaf};
use crate::row::Row;
use crate::snapshot::{Axes, Counts, NamedAxis, Snapshot, as_text, check_same_axes};

const FORMAT: &str = "kl_proteus.tracker";
const VERSION: u32 = 2;
/// The leaf that holds what a user's encoder returns.
pub(crate) const ENCODED_LEAF: &str = "encoder(observation)";

/// An observation on its way into a pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Observed {
    /// It has a cell.
    Cell {
        /// Its key.
        key: Key,
        /// Whether a digit is a flow bin.
        flow: bool,
        /// The histogram bin of each axis, if histograms are kept.
        #[serde(default, skip_serializing_if = "<[u8]>::is_empty")]
        row: Row,
    },
    /// It has none. That is an error only for the step that would count it: nobody acts on the
    /// last observation of an episode.
    Refused {
        /// What to tell the user.
        message: String,
        /// Whether the type is wrong rather than the value.
        wrong_type: bool,
    },
}

/// What [`PairTracker::statistics`] knows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// The newest joint divergence.
    pub current: f64,
    /// Mean over the history.
    pub mean: f64,
    /// Population standard deviation over the history.
    pub std: f64,
    /// Minimum over the history.
    pub min: f64,
    /// Maximum over the history.
    pub max: f64,
    /// Values in the history.
    pub count: usize,
    /// Mean observation part over the history.
    pub observation_mean: f64,
    /// Mean policy part over the history.
    pub policy_mean: f64,
    /// Occupied cells K.
    pub cells: u64,
    /// Pairs counted.
    pub steps: u64,
    /// Share of the current pairs with a digit in a flow bin.
    pub flow: f64,
    /// Whether the windows are full.
    pub ready: bool,
    /// Whether there is a noise floor.
    pub floor_available: bool,
    /// The noise floor of the newest joint divergence.
    pub noise_floor: f64,
    /// The newest joint divergence minus its floor.
    pub excess: f64,
    /// What the joint divergence usually is; 0.0 until that is known.
    pub expected: f64,
    /// P(a joint divergence at least as large as the newest) by its own past; 1.0 until known.
    pub pvalue: f64,
    /// What the counts can show.
    pub blindness: Blindness,
    /// Episodes with a pair in the windows.
    pub episodes_in_window: u64,
}

/// A tracker as it is saved.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    format: String,
    version: u32,
    config: Config,
    encoder: Option<String>,
    observation_axes: Option<Vec<NamedAxis>>,
    action_axes: Vec<NamedAxis>,
    reference: Option<String>,
    drift: DriftState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    axes: Option<AxisWindowsState>,
    observed: Option<Observed>,
    begins: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detector: Option<Saved>,
}

/// Counts (observation, action) pairs: observe, choose an action, count the pair when the
/// environment has accepted it.
#[derive(Debug, Clone)]
pub struct PairTracker {
    observation: Option<Arc<Layout>>,
    action: Arc<Layout>,
    encoder: Option<String>,
    drift: Drift,
    /// The histograms, if they are kept and the axes are known.
    axes: Option<AxisTracker>,
    observed: Option<Observed>,
    chosen: Option<(Key, bool, Row)>,
    /// Whether the next pair is the first of an episode.
    begins: bool,
    detector: Option<Box<Detector>>,
}

impl PairTracker {
    /// An empty tracker. `observation` may be missing where a named encoder decides the axes;
    /// give it to [`PairTracker::define_observation`] then.
    ///
    /// # Errors
    /// A parameter outside its range, or a reference on other axes.
    pub fn new(
        observation: Option<Arc<Layout>>,
        action: Arc<Layout>,
        encoder: Option<String>,
        config: Config,
        reference: Option<Arc<Snapshot>>,
    ) -> Result<Self> {
        let mut tracker = Self {
            observation,
            action,
            encoder,
            drift: Drift::new(config, reference)?,
            axes: None,
            observed: None,
            begins: false,
            chosen: None,
            detector: None,
        };
        tracker.check_references(tracker.observation.as_deref())?;
        tracker.axes = tracker.fresh_axes(tracker.observation.as_deref())?;
        Ok(tracker)
    }

    /// Empty histograms, if any are to be kept.
    fn fresh_axes(&self, observation: Option<&Layout>) -> Result<Option<AxisTracker>> {
        let Some(observation) = observation else {
            return Ok(None);
        };
        if !keeps_histograms(self.drift.config(), observation, &self.action) {
            return Ok(None);
        }
        let reference = self.drift.reference();
        AxisTracker::new(
            observation,
            &self.action,
            self.drift.mode(),
            self.drift.config().epsilon,
            reference.map(|snapshot| (snapshot.axis_histograms.as_ref(), snapshot.pairs())),
        )
        .map(Some)
    }

    /// Checks the histogram bins of an observation that came from a file.
    pub(crate) fn check_row(&self, observed: &Observed) -> Result<()> {
        check_row(self.axes.as_ref(), observed)
    }

    /// Whether the histograms of the axes are kept, so that rows are needed.
    #[must_use]
    pub fn keeps_rows(&self) -> bool {
        self.axes.is_some()
    }

    fn check_references(&self, observation: Option<&Layout>) -> Result<()> {
        let detector = self.detector.as_deref();
        let watched = detector.and_then(Detector::given_reference);
        if let Some(reference) = watched {
            self.check_reference(
                observation,
                "the reference of the drift detector",
                reference,
            )?;
        }
        let Some(reference) = self.drift.reference() else {
            return Ok(());
        };
        self.check_reference(observation, "the reference", reference)
    }

    fn check_reference(
        &self,
        observation: Option<&Layout>,
        name: &str,
        reference: &Snapshot,
    ) -> Result<()> {
        let observation = observation.map(NamedAxis::of);
        let action = NamedAxis::of(&self.action);
        let own = Axes {
            encoder: self.encoder.as_deref(),
            observation: observation.as_deref(),
            action: &action,
        };
        check_same_axes(("the environment", own), (name, reference.as_axes()))
    }

    /// Refuses a detector that cannot watch these pairs.
    ///
    /// # Errors
    /// There is one already, or its reference has other axes.
    pub fn check_detector(&self, detector: &Detector) -> Result<()> {
        if self.detector.is_some() {
            return Err(Error::parameter("detector", "the only one", "a second one"));
        }
        match detector.given_reference() {
            Some(reference) => self.check_reference(
                self.observation.as_deref(),
                "the reference of the drift detector",
                reference,
            ),
            None => Ok(()),
        }
    }

    /// From now on the detector counts every pair that the tracker counts.
    ///
    /// # Errors
    /// As [`PairTracker::check_detector`].
    pub fn attach(&mut self, mut detector: Box<Detector>) -> Result<()> {
        self.check_detector(&detector)?;
        detector.unlink();
        self.detector = Some(detector);
        Ok(())
    }

    /// The detector that watches the pairs, if there is one.
    #[must_use]
    pub fn detector(&self) -> Option<&Detector> {
        self.detector.as_deref()
    }

    /// The detector, to be changed.
    pub fn detector_mut(&mut self) -> Option<&mut Detector> {
        self.detector.as_deref_mut()
    }

    /// The reference of the detector with these axes, and the calibration once it is complete;
    /// `None` without a detector, or while the reference is being collected.
    #[must_use]
    pub fn detector_reference(&self) -> Option<Snapshot> {
        let detector = self.detector.as_deref()?;
        let mut snapshot = self.with_axes(detector.reference_counts()?, None);
        snapshot.calibration = detector.calibration().copied();
        Some(snapshot)
    }

    /// Sets the axes that an encoder's first result decides.
    ///
    /// # Errors
    /// They are set already to others, or the reference has others.
    pub fn define_observation(&mut self, layout: Arc<Layout>) -> Result<()> {
        if let Some(known) = &self.observation {
            return if **known == *layout {
                Ok(())
            } else {
                Err(Error::AxesDiffer(
                    "the observation axes are defined already".into(),
                ))
            };
        }
        self.check_references(Some(&layout))?;
        self.axes = self.fresh_axes(Some(&layout))?;
        self.observation = Some(layout);
        Ok(())
    }

    /// The axes of the observation, if they are decided.
    #[must_use]
    pub fn observation(&self) -> Option<&Arc<Layout>> {
        self.observation.as_ref()
    }

    /// The name of the encoder, if there is one.
    #[must_use]
    pub fn encoder(&self) -> Option<&str> {
        self.encoder.as_deref()
    }

    /// The drift of the pairs counted so far.
    #[must_use]
    pub fn drift(&self) -> &Drift {
        &self.drift
    }

    /// Takes the observation that the next action answers.
    pub fn observe(&mut self, observed: Observed) {
        self.observed = Some(observed);
        self.chosen = None;
    }

    /// The next pair is the first of an episode.
    pub fn begin_episode(&mut self) {
        self.begins = true;
    }

    /// The observation that waits for an action.
    #[must_use]
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// Forgets what waits to be counted.
    pub fn forget(&mut self) {
        self.observed = None;
        self.chosen = None;
    }

    /// Forgets the action, so that the observation waits for another.
    pub(crate) fn forget_action(&mut self) {
        self.chosen = None;
    }

    /// Takes the action, with the histogram bin of each axis where histograms are kept; the pair
    /// waits for [`PairTracker::count`].
    pub fn choose(&mut self, action: Key, flow: bool, row: Row) {
        self.chosen = Some((action, flow, row));
    }

    /// The action that waits to be counted.
    #[must_use]
    pub fn chosen(&self) -> Option<Key> {
        self.chosen.as_ref().map(|&(key, ..)| key)
    }

    /// Counts the waiting pair, if there is one: an action on an observation that was never seen is
    /// no pair. Nothing waits afterwards.
    ///
    /// # Errors
    /// More cells than can be numbered.
    pub fn count(&mut self) -> Result<Report> {
        if let Some(detector) = &mut self.detector {
            detector.begin_step();
        }
        if let (Some(Observed::Cell { key, flow, row }), Some((action, action_flow, action_row))) =
            (&self.observed, &self.chosen)
        {
            let (key, action) = (*key, *action);
            if std::mem::take(&mut self.begins) {
                self.drift.begin_episode();
            }
            let (number, is_new) = self.drift.enter(key, action, *flow || *action_flow)?;
            self.drift.conclude();
            remember(&mut self.axes, row, action_row);
            if let Some(detector) = &mut self.detector {
                detector.update_numbered(number, is_new, (key, action))?;
            }
            self.explain_alarm();
        }
        self.observed = None;
        self.chosen = None;
        Ok(self.drift.report())
    }

    /// Counts pairs that report one value together: observation, action, flow, the rows of both,
    /// and whether an episode begins with it. Without any the
    /// value is that of the newest pair.
    ///
    /// # Errors
    /// More cells than can be numbered; the pairs before are counted then.
    pub(crate) fn count_all<'a>(
        &mut self,
        pairs: impl IntoIterator<Item = (Key, Key, bool, &'a Row, &'a Row, bool)>,
    ) -> Result<Report> {
        let before = self.drift.steps();
        if let Some(detector) = &mut self.detector {
            detector.begin_step();
        }
        let counted = pairs.into_iter().try_for_each(
            |(observation, action, flow, row, action_row, begins)| {
                if begins {
                    self.drift.begin_episode();
                }
                let (number, is_new) = self.drift.gather(observation, action, flow)?;
                remember(&mut self.axes, row, action_row);
                match &mut self.detector {
                    Some(detector) => {
                        detector.update_numbered(number, is_new, (observation, action))
                    }
                    None => Ok(()),
                }
            },
        );
        if self.drift.steps() != before {
            self.drift.conclude_gathered();
        }
        self.explain_alarm();
        counted?;
        Ok(self.drift.report())
    }

    /// Tells an alarm of the newest step which axes have moved.
    #[inline]
    fn explain_alarm(&mut self) {
        if self.detector.as_ref().is_some_and(|own| own.alarmed()) {
            let moves = self.axis_moves();
            if let Some(detector) = &mut self.detector {
                detector.explain(moves);
            }
        }
    }

    /// Forgets pairs and values; keeps the reference and a waiting observation. A detector goes on:
    /// it watches the run, not the windows.
    ///
    /// # Errors
    /// As [`Drift::reset`].
    pub fn reset(&mut self) -> Result<()> {
        self.drift.reset()?;
        if let Some(detector) = &mut self.detector {
            detector.unlink();
        }
        self.axes = self.fresh_axes(self.observation.as_deref())?;
        Ok(())
    }

    /// How each axis differs between the two distributions, the largest excess first. Nothing where
    /// there is no value to report, where all pairs are compared with all but the newest, or where
    /// histograms are not kept on both sides.
    pub fn axis_moves(&mut self) -> Vec<AxisMove> {
        match &mut self.axes {
            Some(axes) if self.drift.reported() => axes.moves(),
            _ => Vec::new(),
        }
    }

    /// Shares of the current pairs on each axis, in walk order; nothing where no histograms are
    /// kept.
    pub fn axis_shares(&mut self) -> Vec<AxisShares> {
        self.axes
            .as_mut()
            .map(AxisTracker::shares)
            .unwrap_or_default()
    }

    /// Everything there is to say about the current state.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let drift = &self.drift;
        let report = drift.report();
        let history = drift.history();
        let (observation_mean, policy_mean) = history.part_means();
        let expectation = drift.expectation();
        Statistics {
            current: report.joint,
            mean: report.moments.mean,
            std: report.moments.std,
            min: history.min(),
            max: history.max(),
            count: history.len(),
            observation_mean,
            policy_mean,
            cells: drift.occupied(),
            steps: drift.steps(),
            flow: drift.flow(),
            ready: drift.ready(),
            floor_available: drift.floor_available(),
            noise_floor: report.noise_floor,
            excess: report.excess(),
            expected: expectation.map_or(0.0, |past| past.typical()),
            pvalue: expectation.map_or(1.0, |past| past.pvalue(report.joint)),
            blindness: drift.blindness(),
            episodes_in_window: drift.episodes_in_window(),
        }
    }

    /// One distribution with its axes.
    #[must_use]
    pub fn snapshot(&self, which: Which) -> Snapshot {
        let histograms = match &self.axes {
            Some(axes) => axes.counts(which == Which::Current),
            None if which == Which::Previous => {
                let reference = self.drift.reference();
                reference.and_then(|snapshot| snapshot.axis_histograms.clone())
            }
            None => None,
        };
        self.with_axes(self.drift.counts(which), histograms)
    }

    fn with_axes(&self, counts: Counts, histograms: Option<AxisCounts>) -> Snapshot {
        Snapshot::new(
            self.encoder.clone(),
            self.observation
                .as_deref()
                .map(NamedAxis::of)
                .unwrap_or_default(),
            NamedAxis::of(&self.action),
            counts,
            histograms,
        )
    }

    /// The whole state as JSON; the same text for the same pairs.
    ///
    /// # Errors
    /// None that a tracker can meet.
    pub fn state_json(&self) -> Result<String> {
        serde_json::to_string(&self.state()?).map_err(|error| Error::malformed("the state", error))
    }

    /// The whole state; the same for the same pairs.
    pub(crate) fn state(&self) -> Result<State> {
        let reference = self.drift.reference();
        Ok(State {
            format: FORMAT.into(),
            version: VERSION,
            config: self.drift.config().clone(),
            encoder: self.encoder.clone(),
            observation_axes: self.observation.as_deref().map(NamedAxis::of),
            action_axes: NamedAxis::of(&self.action),
            reference: reference
                .map(|snapshot| snapshot.fingerprint())
                .transpose()?,
            drift: self.drift.state(),
            axes: self.axes.as_ref().map(AxisTracker::state),
            observed: self.observed.clone(),
            begins: self.begins,
            detector: self.detector.as_ref().map(|own| own.saved()).transpose()?,
        })
    }

    /// Continues from a state of a tracker with the same parameters, axes and reference.
    ///
    /// # Errors
    /// Another tracker's state, or one that no run can have; nothing is changed then.
    pub fn load_state_json(&mut self, text: &str) -> Result<()> {
        let state = serde_json::from_str(text)
            .map_err(|error| Error::malformed("the state", error.to_string()))?;
        self.load_state(state)
    }

    /// Continues from a state, as [`PairTracker::load_state_json`].
    pub(crate) fn load_state(&mut self, state: State) -> Result<()> {
        let wrong = |why: String| Error::malformed("the state", why);
        if state.format != FORMAT || state.version != VERSION {
            return Err(wrong(format!(
                "expected format {FORMAT:?} version {VERSION}, got {:?} version {}",
                state.format, state.version
            )));
        }
        if state.config != *self.drift.config() {
            return Err(wrong(format!(
                "it was saved with {}, and this tracker has {}",
                as_text(&state.config),
                as_text(self.drift.config())
            )));
        }
        // Only an encoder that has not met an observation yet leaves the axes open.
        if state.observation_axes.is_none() && (self.encoder.is_none() || state.drift.steps > 0) {
            return Err(wrong("its observation axes are missing".into()));
        }
        let own = self.observation.as_deref().map(NamedAxis::of);
        let action = NamedAxis::of(&self.action);
        check_same_axes(
            (
                "this tracker",
                Axes {
                    encoder: self.encoder.as_deref(),
                    observation: own.as_deref(),
                    action: &action,
                },
            ),
            (
                "the state",
                Axes {
                    encoder: state.encoder.as_deref(),
                    observation: state.observation_axes.as_deref(),
                    action: &state.action_axes,
                },
            ),
        )?;
        let reference = self.drift.reference();
        if state.reference
            != reference
                .map(|snapshot| snapshot.fingerprint())
                .transpose()?
        {
            return Err(wrong("it was saved with another reference".into()));
        }
        let observation = match (&self.observation, state.observation_axes) {
            (None, Some(axes)) => Some(Arc::new(encoded_layout(axes)?)),
            (known, _) => known.clone(),
        };
        let detector = self.restored_detector(state.detector)?;
        let drift = Drift::restore(state.config, reference.cloned(), &state.drift)?;
        let mut axes = self.fresh_axes(observation.as_deref())?;
        match (&mut axes, &state.axes) {
            (Some(axes), Some(saved)) => axes.restore(saved, drift.steps())?,
            (Some(_), None) => return Err(wrong("histograms of its axes are missing".into())),
            (None, Some(_)) => {
                return Err(wrong("histograms of the axes do not belong here".into()));
            }
            (None, None) => {}
        }
        if let Some(observed) = &state.observed {
            check_row(axes.as_ref(), observed)?;
        }
        self.drift = drift;
        self.axes = axes;
        self.detector = detector;
        self.observation = observation;
        self.observed = state.observed;
        self.begins = state.begins;
        self.chosen = None;
        Ok(())
    }

    fn restored_detector(&self, saved: Option<Saved>) -> Result<Option<Box<Detector>>> {
        let wrong = |why: &str| Error::malformed("the state", why);
        match (&self.detector, saved) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(wrong("it was saved without a drift detector")),
            (None, Some(_)) => Err(wrong("it was saved with a drift detector")),
            (Some(own), Some(saved)) => Ok(Some(Box::new(saved.restored(own)?))),
        }
    }
}

/// Checks the histogram bins of an observation that came from a file.
fn check_row(axes: Option<&AxisTracker>, observed: &Observed) -> Result<()> {
    match (axes, observed) {
        (Some(axes), Observed::Cell { row, .. }) if !axes.holds_observation(row) => {
            let why = "the bins of a waiting observation are not those of its axes";
            Err(Error::malformed("the state", why))
        }
        _ => Ok(()),
    }
}

/// Remembers the rows of a pair that has been counted.
fn remember(axes: &mut Option<AxisTracker>, observation: &Row, action: &Row) {
    match axes {
        Some(known) if known.fit(observation, action) => known.push(observation, action),
        // A pair without rows leaves a hole that no histogram may hide.
        axes => *axes = None,
    }
}

/// Whether histograms are kept of these axes.
fn keeps_histograms(config: &Config, observation: &Layout, action: &Layout) -> bool {
    config
        .axis_histograms
        .unwrap_or(observation.width() + action.width() <= MOST_AXES)
}

fn encoded_layout(axes: Vec<NamedAxis>) -> Result<Layout> {
    for named in &axes {
        named.axis.validate()?;
    }
    let axes: Vec<_> = axes.into_iter().map(|named| named.axis).collect();
    let leaf = Leaf::new(ENCODED_LEAF.into(), vec![axes.len()], axes)?;
    Ok(Layout::new(vec![leaf]))
}
