//! What an alarm says.

use serde::{Deserialize, Serialize};

use crate::axis_moves::AxisMove;
use crate::calibration::{Part, PerPart};
use crate::detector::counts::CellShare;

/// What raised an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// The log divergence from the reference lies above its prediction interval.
    Divergence,
    /// The likelihood-ratio CUSUM of the policy passed its limit.
    LikelihoodRatio,
}

impl Test {
    /// The word users know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Divergence => "divergence",
            Self::LikelihoodRatio => "likelihood_ratio",
        }
    }
}

/// Evidence that the behaviour has changed: when, which part, how sure, and what moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alarm {
    /// Pairs that the detector had counted.
    pub step: u64,
    /// The part with the smallest p-value.
    pub part: Part,
    /// What raised it.
    pub test: Test,
    /// The smallest p-value times the number of parts.
    pub pvalue: f64,
    /// What it had to fall below.
    pub threshold: f64,
    /// The p-value of each part; 1.0 before the calibration.
    pub pvalues: PerPart<f64>,
    /// Divergence of the window from the reference, in nats.
    pub divergence: PerPart<f64>,
    /// What it is without change (the exponential of the mean logarithm), in nats.
    pub expected: PerPart<f64>,
    /// Evidence of the likelihood-ratio CUSUM, in nats; 0.0 without it.
    pub log_likelihood_ratio: f64,
    /// The cells that moved most.
    pub cells: Vec<CellShare>,
    /// The axes that moved most between the windows of the tracker that feeds the detector, if it
    /// keeps histograms.
    pub axes: Vec<AxisMove>,
}
