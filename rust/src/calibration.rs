//! How large a part of the divergence is without a change, and how unusual a value is.

use serde::{Deserialize, Serialize};

use crate::cells::Divergence;
use crate::error::{Error, Result};
use crate::student::student_t_tail;

/// A part of the divergence that a detector can watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Where the agent goes.
    Observation,
    /// What it does there.
    Policy,
    /// Both together.
    Joint,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Observation, Self::Policy, Self::Joint];

    /// The word users know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Observation => "observation",
            Self::Policy => "policy",
            Self::Joint => "joint",
        }
    }
}

/// Reads the word of a part.
impl std::str::FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|part| part.name() == text);
        found.ok_or_else(|| {
            Error::parameter(
                "parts",
                "some of 'observation', 'policy' and 'joint'",
                format!("{text:?}"),
            )
        })
    }
}

/// One value of each part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerPart<T> {
    /// Where the agent goes.
    pub observation: T,
    /// What it does there.
    pub policy: T,
    /// Both together.
    pub joint: T,
}

impl<T: Copy> PerPart<T> {
    /// The value of one part.
    pub fn get(&self, part: Part) -> T {
        match part {
            Part::Observation => self.observation,
            Part::Policy => self.policy,
            Part::Joint => self.joint,
        }
    }

    /// What `f` makes of each value.
    pub fn map<U>(&self, mut f: impl FnMut(T) -> U) -> PerPart<U> {
        PerPart {
            observation: f(self.observation),
            policy: f(self.policy),
            joint: f(self.joint),
        }
    }
}

impl From<Divergence> for PerPart<f64> {
    fn from(divergence: Divergence) -> Self {
        Self {
            observation: divergence.observation,
            policy: divergence.policy,
            joint: divergence.joint,
        }
    }
}

/// Mean and standard deviation (of a sample) of the log divergence of one part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Mean of the logarithms.
    pub mean: f64,
    /// Their standard deviation, with the divisor one less than their number.
    pub sd: f64,
}

impl Level {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let squares = values.map(|x| (x - mean) * (x - mean)).sum::<f64>();
        Self {
            mean,
            sd: (squares / (count - 1.0)).sqrt(),
        }
    }
}

/// The logarithm of a divergence between a window of `window` pairs and a reference.
///
/// What is below one nat a window counts as that much: it is less than a single pair in a new cell
/// makes, and a constant stream has no logarithm at all.
pub(crate) fn log_level(divergence: f64, window: f64) -> f64 {
    libm::log(divergence.max(1.0 / window))
}

/// What [`Calibration`] is made of: the logarithms of windows without change.
pub(crate) type Logs = PerPart<f64>;

/// What the detector has learned of the divergence without change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Pairs in the window that was compared.
    pub window: u64,
    /// Pseudocount of a cell.
    pub epsilon: f64,
    /// How many windows it was learned from.
    pub windows: u64,
    /// The level of each part.
    #[serde(flatten)]
    pub levels: PerPart<Level>,
}

impl Calibration {
    pub(crate) fn of(window: u64, epsilon: f64, logs: &[Logs]) -> Self {
        let level = |part: Part| Level::of(logs.iter().map(move |log| log.get(part)));
        Self {
            window,
            epsilon,
            windows: logs.len() as u64,
            levels: PerPart {
                observation: level(Part::Observation),
                policy: level(Part::Policy),
                joint: level(Part::Joint),
            },
        }
    }

    /// Refuses what no run can have learned.
    pub(crate) fn validate(&self) -> Result<()> {
        let wrong = |why: String| Error::malformed("the calibration", why);
        if self.window == 0 || self.windows < 2 {
            return Err(wrong(format!(
                "expected at least two windows of at least one pair, got {} of {}",
                self.windows, self.window
            )));
        }
        let levels = self.levels;
        for level in [levels.observation, levels.policy, levels.joint] {
            // Both are logarithms of float64 values or their spread.
            if !(level.mean.abs() <= 1024.0 && (0.0..=2048.0).contains(&level.sd)) {
                return Err(wrong(format!(
                    "mean {} and sd {} are none of log divergences",
                    level.mean, level.sd
                )));
            }
        }
        Ok(())
    }

    /// Degrees of freedom of a score.
    pub(crate) fn freedom(&self) -> f64 {
        (self.windows - 1) as f64
    }

    /// How many standard deviations of a prediction each part lies above its level.
    ///
    /// The deviation of the logarithm is at least half of what counting alone would give a
    /// divergence of that level, 1 / sqrt(window * divergence): 20 windows that happened to be
    /// alike, or a constant stream, must not make the first odd pair an alarm.
    pub(crate) fn scores(&self, divergence: PerPart<f64>) -> PerPart<f64> {
        let window = self.window as f64;
        let score = |part: Part| {
            let level = self.levels.get(part);
            (log_level(divergence.get(part), window) - level.mean) / self.spread(level)
        };
        PerPart {
            observation: score(Part::Observation),
            policy: score(Part::Policy),
            joint: score(Part::Joint),
        }
    }

    /// Standard deviation of a prediction.
    fn spread(&self, level: Level) -> f64 {
        let size = libm::log(self.window as f64) + level.mean;
        let least = 0.5 / libm::exp(0.5 * size.max(0.0));
        level.sd.max(least) * (1.0 + 1.0 / self.windows as f64).sqrt()
    }

    /// The divergence of each part whose score is `limit`, above 0.
    pub(crate) fn bounds(&self, limit: f64) -> PerPart<f64> {
        let least = -libm::log(self.window as f64);
        self.levels.map(|level| {
            // Nothing is lower than one nat a window.
            libm::exp((level.mean + limit * self.spread(level)).max(least))
        })
    }
}

/// The score that is exceeded with this probability, for the degrees of freedom of a calibration.
pub(crate) fn score_limit(probability: f64, freedom: f64) -> f64 {
    // From a score that is always exceeded far enough to one that never is, halving the exponent
    // first: one degree of freedom reaches probabilities of 1e-20 only beyond 1e19.
    let (mut low, mut high) = (0.0, 1.0);
    while student_t_tail(high, freedom) > probability && high < 1e300 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if student_t_tail(middle, freedom) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(values: &[f64]) -> Vec<Logs> {
        let log = |&x: &f64| PerPart {
            observation: x,
            policy: 2.0 * x,
            joint: -1.0,
        };
        values.iter().map(log).collect()
    }

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let calibration = Calibration::of(100, 0.5, &logs(&[-3.0, -2.0, -4.0]));
        assert_eq!(calibration.levels.observation.mean, -3.0);
        assert_eq!(calibration.levels.observation.sd, 1.0);
        assert_eq!(calibration.levels.policy.sd, 2.0);
        assert_eq!(calibration.levels.joint.sd, 0.0);
    }

    #[test]
    fn a_constant_stream_has_finite_scores() {
        let nothing = log_level(0.0, 100.0);
        let zero = PerPart {
            observation: nothing,
            policy: nothing,
            joint: nothing,
        };
        let calibration = Calibration::of(100, 0.5, &[zero; 20]);
        let still = calibration.scores(PerPart::default());
        assert!(still.observation.abs() < 1e-12);
        let moved = calibration.scores(PerPart {
            observation: 0.3,
            policy: 0.02,
            joint: 0.32,
        });
        assert!(moved.observation > 6.0 && moved.observation < 7.0);
        assert!(moved.policy > 1.0 && moved.policy < 1.5);
    }

    #[test]
    fn the_limit_is_exceeded_as_often_as_asked() {
        for freedom in [1.0, 2.0, 19.0, 500.0] {
            for probability in [0.025, 5e-4, 1e-9, 1e-20] {
                let limit = score_limit(probability, freedom);
                let tail = student_t_tail(limit, freedom);
                assert!(
                    (tail / probability - 1.0).abs() < 1e-9,
                    "{probability} {freedom}"
                );
            }
        }
    }
}
