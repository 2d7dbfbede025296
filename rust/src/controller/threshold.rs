//! The band rule on the mean of the last values.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::band::PpoPenalty;
use super::change::{Decision, Reason};
use super::exact_sum::ExactSum;
use crate::error::{Error, Result};

/// The most values a window may hold.
const LONGEST: u64 = u32::MAX as u64;

/// Parameters of [`Threshold`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThresholdParameters {
    /// The divergence aimed at.
    pub target: f64,
    /// Values in the mean; before there are that many the coefficient holds.
    pub window: u64,
    /// Upper border of the band, in multiples of the target.
    pub high: f64,
    /// Lower border of the band, in multiples of the target.
    pub low: f64,
    /// Multiplies the coefficient above the band.
    pub increase_factor: f64,
    /// Multiplies the coefficient below the band.
    pub decrease_factor: f64,
    /// Keep a coefficient outside the bounds until the window is full.
    pub keep_outside: bool,
}

/// The values that the mean is taken over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThresholdMemory {
    pub(super) window: VecDeque<f64>,
}

/// [`PpoPenalty`] on the mean of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    pub(super) parameters: ThresholdParameters,
    band: PpoPenalty,
    length: usize,
    pub(super) memory: ThresholdMemory,
    sum: ExactSum,
}

impl Threshold {
    /// The rule with an empty window.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn new(parameters: ThresholdParameters) -> Result<Self> {
        let length = match usize::try_from(parameters.window) {
            Ok(length) if (1..=LONGEST).contains(&parameters.window) => length,
            _ => {
                return Err(Error::parameter(
                    "window",
                    format!("an integer from 1 to {LONGEST}"),
                    parameters.window,
                ));
            }
        };
        let band = PpoPenalty {
            target: parameters.target,
            high: parameters.high,
            low: parameters.low,
            increase_factor: parameters.increase_factor,
            decrease_factor: parameters.decrease_factor,
        };
        band.check()?;
        Ok(Self {
            parameters,
            band,
            length,
            memory: ThresholdMemory {
                window: VecDeque::new(),
            },
            sum: ExactSum::new(),
        })
    }

    /// The same rule with another window.
    pub(super) fn with_memory(&self, memory: &ThresholdMemory) -> Result<Self> {
        if memory.window.len() > self.length {
            return Err(Error::malformed(
                "the state",
                format!(
                    "its window holds {} values, more than {}",
                    memory.window.len(),
                    self.length
                ),
            ));
        }
        if memory.window.iter().any(|value| !value.is_finite()) {
            return Err(Error::malformed(
                "the state",
                "a value of its window is not finite",
            ));
        }
        let mut fresh = Self::new(self.parameters)?;
        for &value in &memory.window {
            fresh.push(value);
        }
        Ok(fresh)
    }

    fn push(&mut self, value: f64) {
        let window = &mut self.memory.window;
        if window.len() == self.length
            && let Some(oldest) = window.pop_front()
        {
            self.sum.add(-oldest);
        }
        window.push_back(value);
        self.sum.add(value);
    }

    /// Finite values join the window, oldest first; there is at least one.
    pub(super) fn decide(&mut self, value: f64, measured: &[f64]) -> Decision {
        for &x in measured {
            self.push(x);
        }
        let count = self.memory.window.len();
        let mean = self.sum.mean(count);
        if count == self.length {
            self.band.decide(value, mean)
        } else {
            Decision {
                measured: mean,
                error: None,
                proposed: None,
                bounded: false,
                reason: Reason::WindowNotFull,
            }
        }
    }
}
