//! A PID rule on the logarithm of the coefficient.

use serde::{Deserialize, Serialize};

use super::adaptive::relative_error;
use super::change::{Decision, Reason};
use super::limits::{Limits, positive, within};
use crate::error::{Error, Result};

/// Gains, clip and horizons of one update are at most this, so that no product overflows.
const LARGEST: f64 = 1e6;

/// Parameters of [`Pid`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PidParameters {
    /// The divergence aimed at.
    pub target: f64,
    /// Steps that make one unit of time.
    pub horizon: f64,
    /// Log-coefficient per error and horizon.
    pub kp: f64,
    /// Log-coefficient per integrated error and horizon.
    pub ki: f64,
    /// Log-coefficient per change of the error.
    pub kd: f64,
    /// Largest relative error that counts.
    pub clip: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PidMemory {
    /// Error times horizons.
    integral: f64,
    /// `None` before the first update.
    previous_error: Option<f64>,
}

/// With e = clip(KL/target - 1, ±clip), dt = `n_steps` / horizon and I the integral of e:
///
/// log coef += kp e dt + ki (I dt + e dt^2 / 2) + kd (e - previous e),   I += e dt.
///
/// (e dt^2 / 2 only where I advances.)
/// The first term alone is the rule of Ziegler et al. 2019 (arXiv:1909.08593, section 2.2) in its
/// exponential form. A held e below the clip gives the same whether its steps come in one update or
/// in many; without ki so does any.
/// The integral stands still while the error is clipped, and while a bound holds the coefficient
/// and the error pushes outwards; else it would wind up, and overshoot when its turn comes.
#[derive(Debug, Clone, PartialEq)]
pub struct Pid {
    pub(super) parameters: PidParameters,
    pub(super) memory: PidMemory,
}

impl Pid {
    /// The rule before its first update.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn new(parameters: PidParameters) -> Result<Self> {
        positive("target", parameters.target)?;
        positive("horizon", parameters.horizon)?;
        within("kp", parameters.kp, 0.0, LARGEST)?;
        within("ki", parameters.ki, 0.0, LARGEST)?;
        within("kd", parameters.kd, 0.0, LARGEST)?;
        positive("clip", parameters.clip)?;
        within("clip", parameters.clip, 0.0, LARGEST)?;
        Ok(Self {
            parameters,
            memory: PidMemory::default(),
        })
    }

    /// Its parameters.
    #[must_use]
    pub fn parameters(&self) -> &PidParameters {
        &self.parameters
    }

    /// The largest integral: its term alone crosses the whole range in one horizon.
    fn largest_integral(&self, limits: &Limits) -> f64 {
        if self.parameters.ki > 0.0 {
            let range = libm::log(limits.max_value) - libm::log(limits.min_value);
            (range / self.parameters.ki).min(f64::MAX)
        } else {
            0.0
        }
    }

    /// The same rule with another memory.
    pub(super) fn with_memory(&self, memory: &PidMemory, limits: &Limits) -> Result<Self> {
        let wrong = |name: &str, value: f64| {
            Error::malformed("the state", format!("{name} {value:?} is out of range"))
        };
        if memory.integral.abs() > self.largest_integral(limits) || memory.integral.is_nan() {
            return Err(wrong("its integral", memory.integral));
        }
        match memory.previous_error {
            Some(error) if error.is_nan() || error.abs() > self.parameters.clip => {
                return Err(wrong("its previous error", error));
            }
            _ => {}
        }
        Ok(Self {
            parameters: self.parameters,
            memory: memory.clone(),
        })
    }

    pub(super) fn decide(
        &mut self,
        value: f64,
        limits: &Limits,
        measured: f64,
        n_steps: u64,
    ) -> Result<Decision> {
        let PidParameters {
            target,
            horizon,
            kp,
            ki,
            kd,
            clip,
        } = self.parameters;
        let dt = n_steps as f64 / horizon;
        if dt > LARGEST {
            return Err(Error::parameter(
                "n_steps",
                format!("at most {LARGEST:?} horizons of {horizon:?} steps"),
                n_steps,
            ));
        }
        let error = relative_error(measured, target, clip);
        let rise = self
            .memory
            .previous_error
            .map_or(0.0, |previous| error - previous);
        let integral = self.memory.integral;
        let gain = error * dt;
        // The integral grows evenly over dt, so its mean is that in the middle.
        let integrated = ki * integral * dt + ki * (gain * dt / 2.0);
        let proposed = value * libm::exp(kp * error * dt + integrated + kd * rise);
        let outwards = (error > 0.0 && proposed >= limits.max_value)
            || (error < 0.0 && proposed <= limits.min_value);
        if error.abs() < clip && !outwards {
            let most = self.largest_integral(limits);
            self.memory.integral = (integral + gain).max(-most).min(most);
        }
        self.memory.previous_error = Some(error);
        Ok(Decision {
            measured,
            error: Some(error),
            proposed: Some(proposed),
            bounded: false,
            reason: Reason::of_error(error),
        })
    }
}
