//! A detector as it is saved; what follows from the rest is computed again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Alarm, Calibration, Detector, DetectorConfig, PerPart, Phase};
use crate::calibration::Logs;
use crate::error::{Error, Result};
use crate::layout::Key;
use crate::snapshot::{Snapshot, as_text};

pub(super) const FORMAT: &str = "kl_proteus.drift_detector";
pub(super) const VERSION: u32 = 1;
/// No divergence and no evidence of float64 values is larger.
const LARGEST: f64 = 1024.0;

/// A detector as it is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetectorState {
    steps: u64,
    phase: Phase,
    phase_steps: u64,
    /// Observation key, action key and pairs in the reference.
    cells: Vec<(Key, Key, u64)>,
    /// Numbers into `cells` of the remembered pairs, oldest first.
    pairs: Vec<u32>,
    /// How many of them are noted and not counted.
    pending: u64,
    /// Log divergences of the calibration so far.
    logs: Vec<Logs>,
    calibration: Option<Calibration>,
    divergence: PerPart<f64>,
    /// Whether `divergence` has been compared with the calibration.
    compared: bool,
    quiet_until: u64,
    alarmed: bool,
    alarms: Vec<Alarm>,
    alarm_count: u64,
    likelihood_ratio: Option<RatioState>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RatioState {
    /// Numbers into `cells`.
    pairs: Vec<u32>,
    sum: f64,
}

/// A detector on its own, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    pub(super) format: String,
    pub(super) version: u32,
    pub(crate) config: DetectorConfig,
    /// Fingerprint of the reference that was given.
    pub(crate) reference: Option<String>,
    pub(crate) state: DetectorState,
}

impl Saved {
    /// The detector that continues, where `own` has the same parameters and reference.
    pub(crate) fn restored(self, own: &Detector) -> Result<Detector> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(wrong(format!(
                "expected format {FORMAT:?} version {VERSION}, got {:?} version {}",
                self.format, self.version
            )));
        }
        if self.config != *own.config() {
            return Err(wrong(format!(
                "it was saved with {}, and this one has {}",
                as_text(&self.config),
                as_text(own.config())
            )));
        }
        if self.reference != own.reference_fingerprint()? {
            return Err(wrong("it was saved with another reference"));
        }
        Detector::restore(self.config, own.given_reference().cloned(), &self.state)
    }
}

fn wrong(why: impl Into<String>) -> Error {
    Error::malformed("the state of the drift detector", why.into())
}

impl DetectorState {
    /// What can be said of it before any of it is used.
    fn check(&self, config: &DetectorConfig) -> Result<()> {
        let finite = |values: PerPart<f64>, low: f64| {
            let within = |x: f64| (low..=LARGEST).contains(&x);
            within(values.observation) && within(values.policy) && within(values.joint)
        };
        if i64::try_from(self.steps).is_err() || self.phase_steps > self.steps {
            return Err(wrong(format!(
                "{} steps, {} of them in its phase",
                self.steps, self.phase_steps
            )));
        }
        if self.quiet_until > self.steps + config.rest() {
            return Err(wrong("its rest is longer than two windows"));
        }
        let most = config.max_alarms.min(self.alarm_count);
        if self.alarms.len() as u64 > most || (self.alarmed && self.alarms.is_empty()) {
            return Err(wrong(format!(
                "{} alarms where {} were raised",
                self.alarms.len(),
                self.alarm_count
            )));
        }
        if !(self.alarms.iter().all(alarm_is_legal)
            && self.logs.iter().all(|&log| finite(log, -LARGEST))
            && finite(self.divergence, 0.0))
        {
            return Err(wrong("a number is out of its range"));
        }
        self.check_phase(config)
    }

    /// Whether the pairs are those of its phase.
    fn check_phase(&self, config: &DetectorConfig) -> Result<()> {
        let window = config.window;
        let noted = self.pairs.len() as u64;
        let (Some(counted), Some(before)) = (
            noted.checked_sub(self.pending),
            self.phase_steps.checked_sub(self.pending),
        ) else {
            return Err(wrong("more pairs wait than there are"));
        };
        let reference = self
            .cells
            .iter()
            .try_fold(0u64, |sum, &(_, _, count)| sum.checked_add(count))
            .ok_or(Error::CountOverflow)?;
        let calibrated = self.calibration.is_some();
        let legal = match self.phase {
            Phase::Reference => {
                self.phase_steps < config.reference_windows * window
                    && counted == 0
                    && reference == before
                    && self.logs.is_empty()
                    && !calibrated
            }
            Phase::Calibration => {
                self.phase_steps < config.calibration_windows * window
                    && counted == before.min(window)
                    && reference > 0
                    && self.logs.len() as u64 == before / window
                    && !calibrated
            }
            Phase::Watching => {
                (counted == window || counted == before.min(window))
                    && reference > 0
                    && self.logs.is_empty()
                    && calibrated
            }
        };
        let ratio = self.likelihood_ratio.as_ref();
        let ratio_is_legal = match ratio {
            None => !config.fast,
            Some(ratio) => {
                let noted = ratio.pairs.len() as u64;
                config.fast
                    && noted <= self.steps.min(2 * window)
                    && (0.0..=config.evidence_limit()).contains(&ratio.sum)
            }
        };
        if legal && ratio_is_legal && (!self.compared || self.phase == Phase::Watching) {
            Ok(())
        } else {
            Err(wrong(format!(
                "its pairs are none of the phase {:?} after {} steps",
                self.phase.name(),
                self.phase_steps
            )))
        }
    }
}

fn alarm_is_legal(alarm: &Alarm) -> bool {
    let probability = |x: f64| (0.0..=1.0).contains(&x);
    let nats = |x: f64| (0.0..=LARGEST).contains(&x);
    let all = |values: PerPart<f64>, test: &dyn Fn(f64) -> bool| {
        test(values.observation) && test(values.policy) && test(values.joint)
    };
    probability(alarm.pvalue)
        && probability(alarm.threshold)
        && all(alarm.pvalues, &probability)
        && all(alarm.divergence, &nats)
        && all(alarm.expected, &nats)
        && nats(alarm.log_likelihood_ratio)
        && alarm
            .cells
            .iter()
            .all(|cell| probability(cell.share) && probability(cell.reference_share))
}

impl Detector {
    /// The detector with its parameters, to be saved.
    pub(crate) fn saved(&self) -> Result<Saved> {
        Ok(Saved {
            format: FORMAT.into(),
            version: VERSION,
            config: self.config.clone(),
            reference: self.reference_fingerprint()?,
            state: self.state(),
        })
    }

    /// All that is needed to continue bit for bit; the same for the same pairs.
    pub(super) fn state(&self) -> DetectorState {
        let holds = |cell| self.ratio.as_ref().is_some_and(|ratio| ratio.holds(cell));
        let cells = self.counts.occupied(holds);
        let places: std::collections::HashMap<u32, u32> =
            cells.iter().map(|&(number, ..)| number).zip(0..).collect();
        let place = |number: u32| places.get(&number).copied();
        let (pairs, pending) = self.counts.pairs();
        DetectorState {
            steps: self.steps,
            phase: self.phase,
            phase_steps: self.phase_steps,
            pairs: pairs.iter().filter_map(|&number| place(number)).collect(),
            pending: pending as u64,
            logs: self.logs.clone(),
            calibration: self.calibration,
            divergence: self.divergence,
            compared: self.compared,
            quiet_until: self.quiet_until,
            alarmed: self.alarmed,
            alarms: self.alarms.iter().cloned().collect(),
            alarm_count: self.alarm_count,
            likelihood_ratio: self.ratio.as_ref().map(|ratio| RatioState {
                pairs: ratio.pairs().filter_map(place).collect(),
                sum: ratio.sum(),
            }),
            cells: cells
                .into_iter()
                .map(|(_, o, a, count)| (o, a, count))
                .collect(),
        }
    }

    /// A detector that continues from `state`.
    ///
    /// # Errors
    /// A state that no run with these parameters can have.
    pub(super) fn restore(
        config: DetectorConfig,
        reference: Option<Arc<Snapshot>>,
        state: &DetectorState,
    ) -> Result<Self> {
        let mut detector = Self::new(config, reference)?;
        state.check(&detector.config)?;
        detector.rebase();
        let mut numbers = Vec::with_capacity(state.cells.len());
        for &(observation, action, count) in &state.cells {
            numbers.push(detector.enter_saved(observation, action, count)?);
        }
        let numbered = |places: &[u32]| -> Result<Vec<u32>> {
            let number = |&place: &u32| {
                let found = numbers.get(place as usize).copied();
                found.ok_or_else(|| wrong(format!("there is no cell {place}")))
            };
            places.iter().map(number).collect()
        };
        if state.phase != Phase::Reference {
            detector.counts.freeze();
        }
        let pairs = numbered(&state.pairs)?;
        let counted = pairs.len() - usize::try_from(state.pending).unwrap_or(pairs.len());
        detector.counts.restore_pairs(&pairs, counted);
        if let (Some(ratio), Some(saved)) = (&mut detector.ratio, &state.likelihood_ratio) {
            let counts = &detector.counts;
            ratio.restore(&numbered(&saved.pairs)?, saved.sum, |cell| {
                counts.observation_of(cell)
            });
        }
        if let Some(calibration) = state.calibration {
            calibration.validate()?;
            detector.watch(calibration);
        }
        detector.phase = state.phase;
        detector.phase_steps = state.phase_steps - state.pending;
        let due = detector.next_due();
        detector.phase_steps = state.phase_steps;
        detector.due = match due.checked_sub(state.pending) {
            Some(due @ 1..) => due,
            _ => return Err(wrong(format!("{} pairs wait too long", state.pending))),
        };
        detector.steps = state.steps;
        detector.logs.clone_from(&state.logs);
        detector.divergence = state.divergence;
        detector.compared = state.compared;
        detector.quiet_until = state.quiet_until;
        detector.alarmed = state.alarmed;
        detector.alarms = state.alarms.iter().cloned().collect();
        detector.alarm_count = state.alarm_count;
        Ok(detector)
    }

    fn enter_saved(&mut self, observation: Key, action: Key, count: u64) -> Result<u32> {
        let before = self.counts.numbered();
        let cell = self.counts.enter(observation, action)?;
        if self.counts.numbered() == before {
            return Err(wrong(format!(
                "a cell comes twice: {observation:?} {action:?}"
            )));
        }
        self.counts.add_reference(cell, count)?;
        Ok(cell)
    }
}
