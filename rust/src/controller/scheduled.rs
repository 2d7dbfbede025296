//! A ramp into another controller.

use serde::{Deserialize, Serialize};

use super::Controller;
use super::change::{Decision, Reason};
use super::exact_sum::mean;
use crate::error::{Error, Result};

/// How a ramp rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// In proportion to the steps.
    Linear,
    /// As (1 - cos(pi x)) / 2: without a corner at either end.
    Cosine,
}

impl std::str::FromStr for Shape {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "linear" => Ok(Self::Linear),
            "cosine" => Ok(Self::Cosine),
            _ => Err(Error::parameter(
                "shape",
                "'linear' or 'cosine'",
                format_args!("{name:?}"),
            )),
        }
    }
}

/// For `warmup_steps` the coefficient goes from `start` to that of a controller, which waits; then
/// the controller takes over.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduled {
    pub(super) controller: Box<Controller>,
    pub(super) warmup_steps: u64,
    pub(super) start: f64,
    pub(super) shape: Shape,
    /// Steps of the ramp that are done, at most `warmup_steps`.
    pub(super) steps: u64,
}

impl Scheduled {
    /// The controller that takes over.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Steps of the ramp that are done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Length of the ramp in steps.
    #[must_use]
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }

    pub(super) fn warm(&self) -> bool {
        self.steps >= self.warmup_steps
    }

    /// The coefficient; it depends on the number of steps alone, so a ramp cannot drift.
    pub(super) fn value(&self) -> f64 {
        let end = self.controller.value();
        if self.warm() {
            return end;
        }
        let done = self.steps as f64 / self.warmup_steps as f64;
        let share = match self.shape {
            Shape::Linear => done,
            Shape::Cosine => (1.0 - libm::cos(std::f64::consts::PI * done)) / 2.0,
        };
        let value = self.start + (end - self.start) * share;
        value.max(self.start.min(end)).min(self.start.max(end))
    }

    /// `measured` has one value unless the controller takes several.
    pub(super) fn decide(&mut self, measured: &[f64], n_steps: u64) -> Result<Decision> {
        if self.warm() {
            self.controller.update(measured, n_steps)?;
            let change = self.controller.last_change();
            return Ok(Decision {
                measured: change.map_or(0.0, |change| change.measured),
                error: change.and_then(|change| change.error),
                proposed: Some(self.controller.value()),
                bounded: change.is_some_and(|change| change.bounded),
                reason: change.map_or(Reason::Fixed, |change| change.reason),
            });
        }
        // What was measured under the ramp says nothing about the controller's own coefficient, so
        // neither it nor the steps beyond the end of the ramp reach the controller.
        self.steps = self.steps.saturating_add(n_steps).min(self.warmup_steps);
        Ok(Decision {
            measured: mean(measured),
            error: None,
            proposed: Some(self.value()),
            bounded: false,
            reason: Reason::WarmUp,
        })
    }
}
