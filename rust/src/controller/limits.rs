//! Bounds and unit that every controller has, and the checks of parameters.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a divergence, and so a target, is measured in.
///
/// 0.06 nats a token over 100 tokens are 6 nats a sequence: a target means nothing without it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nats per token of a language model.
    #[default]
    #[serde(rename = "nats/token")]
    NatsPerToken,
    /// Nats per sequence, summed over its tokens.
    #[serde(rename = "nats/sequence")]
    NatsPerSequence,
    /// Nats per environment step.
    #[serde(rename = "nats/step")]
    NatsPerStep,
}

impl Unit {
    const ALL: [Self; 3] = [Self::NatsPerToken, Self::NatsPerSequence, Self::NatsPerStep];

    /// Its name, such as `nats/token`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NatsPerToken => "nats/token",
            Self::NatsPerSequence => "nats/sequence",
            Self::NatsPerStep => "nats/step",
        }
    }
}

impl std::str::FromStr for Unit {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|unit| unit.name() == name);
        found.ok_or_else(|| {
            Error::parameter(
                "unit",
                "'nats/token', 'nats/sequence' or 'nats/step'",
                format_args!("{name:?}"),
            )
        })
    }
}

/// Bounds of the coefficient, and the unit of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Smallest coefficient, above 0: from 0 no factor leads back.
    pub min_value: f64,
    /// Largest coefficient.
    pub max_value: f64,
    /// Unit of the measured divergence and of the target.
    pub unit: Unit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_value: 1e-8,
            max_value: 1e4,
            unit: Unit::default(),
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<()> {
        positive("min_value", self.min_value)?;
        positive("max_value", self.max_value)?;
        if self.min_value > self.max_value {
            return Err(Error::parameter(
                "min_value",
                format!("at most max_value = {:?}", self.max_value),
                format_args!("{:?}", self.min_value),
            ));
        }
        Ok(())
    }

    pub(super) fn check_holds(&self, name: &str, value: f64) -> Result<()> {
        within(name, value, self.min_value, self.max_value)
    }

    pub(super) fn clamp(&self, value: f64) -> f64 {
        value.max(self.min_value).min(self.max_value)
    }
}

/// A finite number above 0.
pub(super) fn positive(name: &str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::parameter(
        name,
        "a finite number above 0",
        format_args!("{value:?}"),
    ))
}

/// A number from `low` to `high`, both legal.
pub(super) fn within(name: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if low <= value && value <= high {
        return Ok(());
    }
    Err(Error::parameter(
        name,
        format!("a number from {low:?} to {high:?}"),
        format_args!("{value:?}"),
    ))
}
