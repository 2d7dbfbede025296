//! What an update measured, compared and did.

use serde::{Deserialize, Serialize};

/// Which way a coefficient moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It grew.
    Up,
    /// It shrank.
    Down,
    /// It stayed.
    Hold,
}

impl Action {
    /// `up`, `down` or `hold`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Hold => "hold",
        }
    }
}

/// Why a coefficient moved or stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The coefficient is constant.
    Fixed,
    /// The divergence was above the target.
    AboveTarget,
    /// The divergence was below the target.
    BelowTarget,
    /// The divergence was the target.
    AtTarget,
    /// The divergence was above the band around the target.
    AboveBand,
    /// The divergence was below the band around the target.
    BelowBand,
    /// The divergence was inside the band, borders included.
    InsideBand,
    /// There are not enough values for a mean yet.
    WindowNotFull,
    /// The coefficient follows a ramp.
    WarmUp,
}

impl Reason {
    /// Its name in snake case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::AboveTarget => "above_target",
            Self::BelowTarget => "below_target",
            Self::AtTarget => "at_target",
            Self::AboveBand => "above_band",
            Self::BelowBand => "below_band",
            Self::InsideBand => "inside_band",
            Self::WindowNotFull => "window_not_full",
            Self::WarmUp => "warm_up",
        }
    }

    /// On which side of the target a relative error is.
    pub(super) fn of_error(error: f64) -> Self {
        if error > 0.0 {
            Self::AboveTarget
        } else if error < 0.0 {
            Self::BelowTarget
        } else {
            Self::AtTarget
        }
    }
}

/// The last update that counted. Divergences are in the controller's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The divergence that was compared: the value, or the mean of the window.
    pub measured: f64,
    /// What it was compared with.
    pub target: Option<f64>,
    /// The clipped relative error, where the rule uses one.
    pub error: Option<f64>,
    /// Steps that the update stood for.
    pub n_steps: u64,
    /// The coefficient before it.
    pub before: f64,
    /// The coefficient after it.
    pub after: f64,
    /// Whether a bound cut the change short.
    pub bounded: bool,
    /// Why it moved or stayed.
    pub reason: Reason,
}

impl Change {
    /// Which way the coefficient moved.
    #[must_use]
    pub fn action(&self) -> Action {
        if self.after > self.before {
            Action::Up
        } else if self.after < self.before {
            Action::Down
        } else {
            Action::Hold
        }
    }

    /// The measured divergence in multiples of the target; finite.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.target
            .map(|target| (self.measured / target).clamp(f64::MIN, f64::MAX))
    }
}

/// What a rule wants to do with a measurement.
pub(super) struct Decision {
    pub(super) measured: f64,
    pub(super) error: Option<f64>,
    /// The new coefficient before the bounds; `None` leaves even one outside them as it is.
    pub(super) proposed: Option<f64>,
    /// Whether a bound has cut it short already.
    pub(super) bounded: bool,
    pub(super) reason: Reason,
}
