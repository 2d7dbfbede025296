//! The band rule of Schulman et al. 2017: hold near the target, else multiply.

use serde::{Deserialize, Serialize};

use super::change::{Decision, Reason};
use super::limits::{positive, within};
use crate::error::{Error, Result};

/// KL > high * target multiplies by `increase_factor`, KL < low * target by `decrease_factor`.
///
/// Source: Schulman et al. 2017, arXiv:1707.06347, section 4 ("adaptive KL penalty"): double above
/// 1.5 times the target, halve below the target over 1.5.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PpoPenalty {
    /// The divergence aimed at.
    pub target: f64,
    /// Upper border of the band, in multiples of the target; on it the coefficient holds.
    pub high: f64,
    /// Lower border of the band, in multiples of the target; on it the coefficient holds.
    pub low: f64,
    /// Multiplies the coefficient above the band.
    pub increase_factor: f64,
    /// Multiplies the coefficient below the band.
    pub decrease_factor: f64,
}

impl PpoPenalty {
    pub(super) fn check(&self) -> Result<()> {
        positive("target", self.target)?;
        positive("high", self.high)?;
        within("low", self.low, 0.0, self.high)?;
        positive("increase_factor", self.increase_factor)?;
        if self.increase_factor < 1.0 {
            return Err(Error::parameter(
                "increase_factor",
                "a finite number of at least 1",
                format_args!("{:?}", self.increase_factor),
            ));
        }
        positive("decrease_factor", self.decrease_factor)?;
        within("decrease_factor", self.decrease_factor, 0.0, 1.0)
    }

    pub(super) fn decide(&self, value: f64, measured: f64) -> Decision {
        let (factor, reason) = if measured > self.high * self.target {
            (self.increase_factor, Reason::AboveBand)
        } else if measured < self.low * self.target {
            (self.decrease_factor, Reason::BelowBand)
        } else {
            (1.0, Reason::InsideBand)
        };
        Decision {
            measured,
            error: None,
            proposed: Some(value * factor),
            bounded: false,
            reason,
        }
    }
}
