//! A constant coefficient.

use serde::{Deserialize, Serialize};

use super::change::{Decision, Reason};

/// A coefficient that no measurement moves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// The coefficient.
    pub kl_coef: f64,
}

impl Fixed {
    pub(super) fn decide(self, measured: f64) -> Decision {
        Decision {
            measured,
            error: None,
            proposed: Some(self.kl_coef),
            bounded: false,
            reason: Reason::Fixed,
        }
    }
}
