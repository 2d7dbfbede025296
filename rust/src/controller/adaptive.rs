//! The proportional rule of Ziegler et al. 2019.

use serde::{Deserialize, Serialize};

use super::change::{Decision, Reason};
use super::limits::positive;
use crate::error::{Error, Result};

/// coef *= 1 + clip(KL/target - 1, -clip, clip) * `n_steps` / horizon.
///
/// Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2, which has a constant gain of 0.1 an
/// update and the clip of 0.2; the form with `n_steps` / horizon is that of the code of the paper
/// (openai/lm-human-preferences), which the trainers took over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adaptive {
    /// The divergence aimed at.
    pub target: f64,
    /// Steps over which an error of 1 would double the coefficient.
    pub horizon: f64,
    /// Largest relative error that counts.
    pub clip: f64,
}

impl Adaptive {
    pub(super) fn check(&self) -> Result<()> {
        positive("target", self.target)?;
        positive("horizon", self.horizon)?;
        positive("clip", self.clip)
    }

    pub(super) fn decide(&self, value: f64, measured: f64, n_steps: u64) -> Result<Decision> {
        let steps = n_steps as f64;
        if self.clip * steps >= self.horizon {
            return Err(Error::parameter(
                "n_steps",
                format!(
                    "less than horizon / clip = {:?} (more could turn the coefficient negative)",
                    self.horizon / self.clip
                ),
                n_steps,
            ));
        }
        let error = relative_error(measured, self.target, self.clip);
        // One operation at a time, in this order: published traces are met to the last bit.
        let multiplier = 1.0 + ((error * steps) / self.horizon);
        Ok(Decision {
            measured,
            error: Some(error),
            proposed: Some(value * multiplier),
            bounded: false,
            reason: Reason::of_error(error),
        })
    }
}

/// KL/target - 1, at most `clip` either way.
pub(super) fn relative_error(measured: f64, target: f64, clip: f64) -> f64 {
    (measured / target - 1.0).max(-clip).min(clip)
}
