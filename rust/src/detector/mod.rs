//! Alarms at a rate the user asked for, from a reference that the stream itself provides.
//!
//! The first windows are the reference; the next, one window apart, show how large the divergence
//! from it is without a change. From then on the newest window is compared with the reference
//! again and again: an alarm is raised where the logarithm of a part of the divergence lies above
//! the prediction interval of Student's t. Pairs are only noted as they come, and counted in
//! batches, so that watching adds little to a step.

mod alarm;
mod config;
mod counts;
mod likelihood_ratio;
mod state;
mod terms;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::axis_moves::AxisMove;
use crate::calibration::{Logs, log_level, score_limit};
use crate::detector::counts::FrozenCounts;
use crate::detector::likelihood_ratio::LikelihoodRatio;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::layout::Key;
use crate::snapshot::{Counts, Snapshot};
use crate::student::student_t_tail;

pub use crate::calibration::{Calibration, Level, Part, PerPart};
pub use alarm::{Alarm, Test};
pub use config::DetectorConfig;
pub use counts::CellShare;
pub(crate) use state::Saved;

/// So many cells an alarm names.
const CELLS_IN_ALARM: usize = 5;
/// So many axes an alarm names.
const AXES_IN_ALARM: usize = 3;

/// What a detector is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It collects the reference.
    Reference,
    /// It learns what the divergence is without change.
    Calibration,
    /// It watches, once the window is full.
    Watching,
}

impl Phase {
    /// The word users know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Calibration => "calibration",
            Self::Watching => "watching",
        }
    }
}

/// Watches a stream of pairs for a change of behaviour.
#[derive(Debug, Clone)]
pub struct Detector {
    config: DetectorConfig,
    given: Option<Arc<Snapshot>>,
    counts: FrozenCounts,
    ratio: Option<LikelihoodRatio>,
    phase: Phase,
    /// Pairs so far.
    steps: u64,
    /// Pairs of this phase.
    phase_steps: u64,
    /// Pairs until something must be done.
    due: u64,
    logs: Vec<Logs>,
    calibration: Option<Calibration>,
    /// The divergence of each part above which it raises an alarm.
    bounds: PerPart<f64>,
    divergence: PerPart<f64>,
    /// Whether `divergence` has been compared with the calibration.
    compared: bool,
    /// No alarm before this step.
    quiet_until: u64,
    alarmed: bool,
    alarms: VecDeque<Alarm>,
    alarm_count: u64,
}

impl Detector {
    /// A detector before its first pair; `reference` takes the place of the first windows, and
    /// brings its calibration where it has one.
    ///
    /// # Errors
    /// A parameter outside its range, a reference without pairs, or one whose calibration is for
    /// other windows.
    pub fn new(config: DetectorConfig, reference: Option<Arc<Snapshot>>) -> Result<Self> {
        config.validate()?;
        if let Some(snapshot) = &reference {
            if snapshot.counts.is_empty() {
                let expected = "a snapshot with at least one pair";
                return Err(Error::parameter("reference", expected, "none"));
            }
            if let Some(known) = &snapshot.calibration
                && (known.window != config.window || known.epsilon != config.epsilon)
            {
                return Err(Error::parameter(
                    "reference",
                    format!(
                        "a snapshot calibrated with window {} and epsilon {}",
                        config.window, config.epsilon
                    ),
                    format!(
                        "one with window {} and epsilon {}",
                        known.window, known.epsilon
                    ),
                ));
            }
        }
        let mut detector = Self {
            counts: FrozenCounts::new(config.epsilon),
            ratio: None,
            given: reference,
            phase: Phase::Reference,
            steps: 0,
            phase_steps: 0,
            due: 0,
            logs: Vec::new(),
            calibration: None,
            bounds: PerPart::default(),
            divergence: PerPart::default(),
            compared: false,
            quiet_until: 0,
            alarmed: false,
            alarms: VecDeque::new(),
            alarm_count: 0,
            config,
        };
        detector.rebase();
        if let Some(snapshot) = detector.given.clone() {
            detector.take_reference(&snapshot)?;
        }
        Ok(detector)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn window(&self) -> usize {
        self.config.window as usize
    }

    /// The parameters.
    #[must_use]
    pub fn config(&self) -> &DetectorConfig {
        &self.config
    }

    /// The reference that was given, if one was.
    #[must_use]
    pub fn given_reference(&self) -> Option<&Arc<Snapshot>> {
        self.given.as_ref()
    }

    /// A hash of the given reference that equal ones share.
    ///
    /// # Errors
    /// None that a snapshot can meet.
    pub fn reference_fingerprint(&self) -> Result<Option<String>> {
        let given = self.given.as_deref();
        given.map(Snapshot::fingerprint).transpose()
    }

    /// Pairs so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What the detector is doing.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the divergence is compared: the calibration is complete and the window full.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.phase == Phase::Watching && self.counts.total() == self.config.window
    }

    /// Pairs from now on until it is ready, if nothing is rebased.
    #[must_use]
    pub fn steps_until_ready(&self) -> u64 {
        let window = self.config.window;
        let calibration = self.config.calibration_windows.saturating_mul(window);
        let remaining = match self.phase {
            Phase::Reference => {
                let reference = self.config.reference_windows.saturating_mul(window);
                reference.saturating_add(calibration)
            }
            Phase::Calibration => calibration,
            // A given calibration starts with an empty window.
            Phase::Watching if self.ready() => 0,
            Phase::Watching => window,
        };
        remaining.saturating_sub(self.phase_steps)
    }

    /// Whether a pair of the newest step raised an alarm.
    #[must_use]
    pub fn alarmed(&self) -> bool {
        self.alarmed
    }

    /// The newest alarms, oldest first.
    #[allow(clippy::must_use_candidate)]
    pub fn alarms(&self) -> impl DoubleEndedIterator<Item = &Alarm> {
        self.alarms.iter()
    }

    /// Alarms so far, forgotten ones included.
    #[must_use]
    pub fn alarm_count(&self) -> u64 {
        self.alarm_count
    }

    /// The calibration, once it is complete.
    #[must_use]
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// The divergence of the window from the reference when it was last compared, in nats.
    #[must_use]
    pub fn divergence(&self) -> PerPart<f64> {
        self.divergence
    }

    /// What the divergence is without change, in nats: the exponential of its mean logarithm;
    /// `None` until the calibration is complete.
    #[must_use]
    pub fn expected(&self) -> Option<PerPart<f64>> {
        let calibration = self.calibration.as_ref()?;
        Some(calibration.levels.map(|level| libm::exp(level.mean)))
    }

    /// Evidence of the likelihood-ratio CUSUM, in nats; 0.0 without it.
    #[must_use]
    pub fn log_likelihood_ratio(&self) -> f64 {
        self.ratio.as_ref().map_or(0.0, LikelihoodRatio::sum)
    }

    /// What [`Detector::pvalue`] must fall below.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        self.config.threshold()
    }

    /// The p-value of each part when the window was last compared; 1.0 before that.
    #[must_use]
    pub fn pvalues(&self) -> PerPart<f64> {
        match (self.scores(), &self.calibration) {
            (Some(scores), Some(calibration)) => {
                scores.map(|score| student_t_tail(score, calibration.freedom()))
            }
            _ => PerPart {
                observation: 1.0,
                policy: 1.0,
                joint: 1.0,
            },
        }
    }

    fn scores(&self) -> Option<PerPart<f64>> {
        let calibration = self.calibration.filter(|_| self.compared)?;
        Some(calibration.scores(self.divergence))
    }

    /// The smallest p-value of the watched parts times their number, at most 1.0.
    #[must_use]
    pub fn pvalue(&self) -> f64 {
        let pvalues = self.pvalues();
        let smallest = self.config.parts.iter().map(|&part| pvalues.get(part));
        let smallest = smallest.fold(1.0, f64::min);
        (smallest * self.config.parts.len() as f64).min(1.0)
    }

    /// The watched part that lies furthest above its level; `None` before it is compared.
    #[must_use]
    pub fn part(&self) -> Option<Part> {
        let scores = self.scores()?;
        let parts = self.config.parts.iter().copied();
        // The first of equal ones.
        parts.reduce(|best, part| {
            if scores.get(part) > scores.get(best) {
                part
            } else {
                best
            }
        })
    }

    /// Counts one pair, and says whether it raises an alarm.
    ///
    /// # Errors
    /// More cells than 32 bits can number; nothing is counted then.
    pub fn update(&mut self, observation: Key, action: Key) -> Result<bool> {
        self.begin_step();
        let cell = self.counts.enter(observation, action)?;
        self.push(cell);
        Ok(self.alarmed)
    }

    /// Counts a pair whose cell a tracker has given a number, which is `fresh` where it stood for
    /// another cell before.
    pub(crate) fn update_numbered(
        &mut self,
        number: u32,
        fresh: bool,
        (observation, action): (Key, Key),
    ) -> Result<()> {
        let cell = match self.counts.linked(number) {
            Some(cell) if !fresh => cell,
            _ => {
                let cell = self.counts.enter(observation, action)?;
                self.counts.link(number, cell);
                cell
            }
        };
        self.push(cell);
        Ok(())
    }

    /// What comes next is a new step, of one pair, of none, or of several.
    #[inline]
    pub(crate) fn begin_step(&mut self) {
        self.alarmed = false;
    }

    /// Adds to the newest alarm which axes have moved: those above what is expected, by excess.
    pub(crate) fn explain(&mut self, moves: Vec<AxisMove>) {
        let moved = moves.into_iter().filter(|moved| moved.excess > 0.0);
        if let Some(alarm) = self.alarms.back_mut() {
            alarm.axes = moved.take(AXES_IN_ALARM).collect();
        }
    }

    /// Forgets what a tracker's numbers stand for.
    pub(crate) fn unlink(&mut self) {
        self.counts.unlink();
    }

    #[inline]
    fn push(&mut self, cell: u32) {
        self.steps += 1;
        self.phase_steps += 1;
        self.counts.push(cell);
        if self.ratio.is_some() {
            self.bet(cell);
        }
        self.due -= 1;
        if self.due == 0 {
            self.advance();
        }
    }

    fn bet(&mut self, cell: u32) {
        let Some(ratio) = &mut self.ratio else {
            return;
        };
        let counts = &self.counts;
        ratio.push(cell, |cell| counts.observation_of(cell));
        if self.steps < self.quiet_until {
            // During the rest no evidence is gathered.
            ratio.start_anew();
        } else if ratio.sum() > self.config.evidence_limit() {
            self.raise(Test::LikelihoodRatio);
        }
    }

    /// Counts the noted pairs and does what is due.
    fn advance(&mut self) {
        let window = self.window();
        match self.phase {
            Phase::Reference => {
                self.counts.absorb();
                if self.phase_steps == self.reference_pairs() {
                    self.counts.freeze();
                    self.enter_phase(Phase::Calibration);
                }
            }
            Phase::Calibration => {
                self.counts.slide(window);
                if self.phase_steps.is_multiple_of(self.config.window) {
                    self.learn();
                }
            }
            Phase::Watching => {
                self.counts.slide(window);
                if self.counts.total() == self.config.window {
                    self.compare();
                }
            }
        }
        if self.counts.is_crowded() && self.phase != Phase::Reference {
            self.clear_dead();
        }
        self.due = self.next_due();
    }

    fn reference_pairs(&self) -> u64 {
        self.config.reference_windows * self.config.window
    }

    fn enter_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_steps = 0;
    }

    fn next_due(&self) -> u64 {
        let (window, stride) = (self.config.window, self.config.stride());
        let until = match self.phase {
            Phase::Reference => self.reference_pairs() - self.phase_steps,
            Phase::Calibration => window - self.phase_steps % window,
            // A calibration of an earlier run starts with an empty window.
            Phase::Watching if self.counts.total() < window => window - self.counts.total(),
            Phase::Watching => stride,
        };
        until.min(stride)
    }

    fn learn(&mut self) {
        self.divergence = self.counts.divergence().into();
        let window = self.config.window as f64;
        self.logs
            .push(self.divergence.map(|x| log_level(x, window)));
        if self.logs.len() as u64 == self.config.calibration_windows {
            let logs = std::mem::take(&mut self.logs);
            let epsilon = self.config.epsilon;
            self.watch(Calibration::of(self.config.window, epsilon, &logs));
        }
    }

    fn watch(&mut self, calibration: Calibration) {
        let each = self.threshold() / self.config.parts.len() as f64;
        self.bounds = calibration.bounds(score_limit(each, calibration.freedom()));
        self.calibration = Some(calibration);
        self.enter_phase(Phase::Watching);
    }

    fn compare(&mut self) {
        self.divergence = self.counts.divergence().into();
        self.compared = true;
        let mut parts = self.config.parts.iter();
        if self.steps >= self.quiet_until
            && parts.any(|&part| self.divergence.get(part) > self.bounds.get(part))
        {
            self.raise(Test::Divergence);
        }
    }

    fn raise(&mut self, test: Test) {
        let part = match test {
            Test::LikelihoodRatio => Part::Policy,
            Test::Divergence => self.part().unwrap_or(Part::Joint),
        };
        let cells = match self.phase {
            Phase::Reference => Vec::new(),
            _ => self.counts.most_changed(CELLS_IN_ALARM),
        };
        self.alarms.push_back(Alarm {
            step: self.steps,
            part,
            test,
            pvalue: self.pvalue(),
            threshold: self.threshold(),
            pvalues: self.pvalues(),
            divergence: self.divergence,
            expected: self.expected().unwrap_or_default(),
            log_likelihood_ratio: self.log_likelihood_ratio(),
            cells,
            axes: Vec::new(),
        });
        if self.alarms.len() as u64 > self.config.max_alarms {
            self.alarms.pop_front();
        }
        self.alarm_count += 1;
        self.alarmed = true;
        self.quiet_until = self.steps + self.config.rest();
        if let Some(ratio) = &mut self.ratio {
            ratio.start_anew();
        }
    }

    fn clear_dead(&mut self) {
        let ratio = self.ratio.as_ref();
        self.counts
            .clear_dead(|cell| ratio.is_some_and(|ratio| ratio.holds(cell)));
    }

    /// Accepts the behaviour as it is from now on: the next pairs are a new reference, and the
    /// calibration starts over. Alarms and the number of steps stay.
    pub fn rebase(&mut self) {
        self.counts = FrozenCounts::new(self.config.epsilon);
        self.ratio = self
            .config
            .fast
            .then(|| LikelihoodRatio::new(self.window(), self.config.epsilon));
        self.enter_phase(Phase::Reference);
        self.logs.clear();
        self.calibration = None;
        self.divergence = PerPart::default();
        self.compared = false;
        self.quiet_until = self.steps;
        self.alarmed = false;
        self.due = self.next_due();
    }

    fn take_reference(&mut self, snapshot: &Arc<Snapshot>) -> Result<()> {
        for (&observation, actions) in &snapshot.counts {
            for (&action, &count) in actions {
                let cell = self.counts.enter(observation, action)?;
                self.counts.add_reference(cell, count)?;
            }
        }
        self.counts.freeze();
        match snapshot.calibration {
            Some(calibration) => self.watch(calibration),
            None => self.enter_phase(Phase::Calibration),
        }
        self.due = self.next_due();
        Ok(())
    }

    /// The counts of the reference; `None` while they are being collected.
    pub(crate) fn reference_counts(&self) -> Option<Counts> {
        (self.phase != Phase::Reference).then(|| self.counts.reference_counts())
    }

    /// The reference without axes, and the calibration once it is complete; `None` while the
    /// reference is being collected.
    #[must_use]
    pub fn reference(&self) -> Option<Snapshot> {
        let counts = self.reference_counts()?;
        let mut snapshot = Snapshot::new(None, Vec::new(), Vec::new(), counts, None);
        snapshot.calibration = self.calibration;
        Some(snapshot)
    }

    /// The state as JSON; the same text for the same pairs.
    ///
    /// # Errors
    /// None that a detector can meet.
    pub fn state_json(&self) -> Result<String> {
        let saved = self.saved()?;
        serde_json::to_string(&saved).map_err(|error| Error::malformed("the state", error))
    }

    /// Continues from a state of a detector with the same parameters and reference.
    ///
    /// # Errors
    /// Another detector's state, or one that no run can have; nothing is changed then.
    pub fn load_state_json(&mut self, text: &str) -> Result<()> {
        let saved: Saved =
            serde_json::from_str(text).map_err(|error| Error::malformed("the state", error))?;
        *self = saved.restored(self)?;
        Ok(())
    }
}
