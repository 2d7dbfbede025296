//! Parameters of a detector and what follows from them.

use serde::{Deserialize, Serialize};

use crate::calibration::Part;
use crate::drift::LONGEST;
use crate::error::{Error, Result};

/// False alarms cannot be asked to be rarer than this.
const RAREST: f64 = 1e15;
const LARGEST_EPSILON: f64 = 1e6;
/// The most windows of a reference or a calibration, and the most alarms kept.
pub(crate) const MOST: u64 = 1_000_000;

/// How a detector is set up. Units of `false_alarm_every`, `window` and `every` are pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectorConfig {
    /// How many pairs should lie between two false alarms.
    pub false_alarm_every: f64,
    /// Newest pairs that are compared with the reference.
    pub window: u64,
    /// Windows that make up the reference.
    pub reference_windows: u64,
    /// Windows after it that the level without change is learned from.
    pub calibration_windows: u64,
    /// What is watched.
    pub parts: Vec<Part>,
    /// How often the window is compared; `None` is a fortieth of it.
    pub every: Option<u64>,
    /// Whether the likelihood-ratio CUSUM watches as well.
    pub fast: bool,
    /// Pseudocount of each occupied cell.
    pub epsilon: f64,
    /// How many alarms are remembered.
    pub max_alarms: u64,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        Self {
            false_alarm_every: 100_000.0,
            window: 1000,
            reference_windows: 4,
            calibration_windows: 20,
            parts: vec![Part::Observation, Part::Policy],
            every: None,
            fast: false,
            epsilon: 0.5,
            max_alarms: 1000,
        }
    }
}

impl DetectorConfig {
    pub(super) fn validate(&self) -> Result<()> {
        if !(1.0..=RAREST).contains(&self.false_alarm_every) {
            return Err(Error::parameter(
                "false_alarm_every",
                "a number of pairs from 1 to 1e15",
                self.false_alarm_every,
            ));
        }
        if !(self.epsilon > 0.0 && self.epsilon <= LARGEST_EPSILON) {
            return Err(Error::parameter(
                "epsilon",
                "a number above 0, at most 1e6",
                self.epsilon,
            ));
        }
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                let expected = format!("an integer from {least} to {most}");
                Err(Error::parameter(name, expected, value))
            }
        };
        within("window", self.window, 1, LONGEST)?;
        within("reference_windows", self.reference_windows, 1, MOST)?;
        // A deviation needs two values.
        within("calibration_windows", self.calibration_windows, 2, MOST)?;
        within("max_alarms", self.max_alarms, 1, MOST)?;
        if let Some(every) = self.every
            && !(1..=self.window).contains(&every)
        {
            return Err(Error::parameter(
                "every",
                format!("None or an integer from 1 to the window, {}", self.window),
                every,
            ));
        }
        let repeated = (1..self.parts.len()).any(|i| self.parts[..i].contains(&self.parts[i]));
        if self.parts.is_empty() || repeated {
            let names: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
            return Err(Error::parameter(
                "parts",
                "one or more of 'observation', 'policy' and 'joint', each once",
                format!("{names:?}"),
            ));
        }
        Ok(())
    }

    /// How often the window is compared.
    pub(super) fn stride(&self) -> u64 {
        self.every.unwrap_or(self.window / 40).max(1)
    }

    /// What a p-value, corrected for the number of parts, must fall below: min(0.05, 0.5 R^-1.32),
    /// where a false alarm is asked for every R windows; half of it where another test shares the
    /// false alarms.
    pub(super) fn threshold(&self) -> f64 {
        let windows = self.false_alarm_every / self.window as f64;
        let threshold = (0.5 * libm::pow(windows, -1.32)).min(0.05);
        if self.fast {
            0.5 * threshold
        } else {
            threshold
        }
    }

    /// The evidence in nats at which the likelihood-ratio CUSUM raises an alarm.
    pub(super) fn evidence_limit(&self) -> f64 {
        libm::log(2.0 * self.false_alarm_every)
    }

    /// Pairs after an alarm that raise no other.
    pub(super) fn rest(&self) -> u64 {
        2 * self.window
    }
}
