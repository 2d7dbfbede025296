//! A PID rule on the logarithm of the coefficient.

use serde::{Deserialize, Serialize};

use super::adaptive::relative_error;
use super::change::{Decision, Reason};
use super::limits::{Limits, positive, within};
use crate::error::{Error, Result};

/// Gains, clip and horizons of one update are at most this, so that no product overflows.
const LARGEST: f64 = 1e6;

/// The term of the integral is at most this share of the proportional one at full clip. On a policy
/// that follows with a lag of one horizon, started at three times the target, log KL then swings
/// 0.09 below it; 0.16 with a share of 1, and 0.03 without an integral, which leaves a lasting error
/// of 0.05 under a pressure that grows by 1 % a tenth of a horizon, as a share of 0.1 does by half.
const INTEGRAL_SHARE: f64 = 0.25;

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
/// log coef += kp e dt + ki (integral of I over dt) + kd (e - previous e).
///
/// The first term alone is the rule of Ziegler et al. 2019 (arXiv:1909.08593, section 2.2) in its
/// exponential form. While e stays the same it does not matter whether its steps come in one update
/// or in many; without ki nor does it otherwise.
/// Two things keep the integral from winding up. It takes the clipped error and stays where its
/// term is a quarter of the proportional one at full clip, so a full error of the other sign undoes
/// it within kp/(4 ki) horizons, however long it grew. And while a bound holds the coefficient and
/// the error pushes outwards, it does not grow outwards; it may fall back to 0. Neither depends on more than the
/// sign of the error, so that a larger divergence never has the smaller coefficient.
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

    /// The largest integral: see [`INTEGRAL_SHARE`]; without kp its term crosses the whole range in
    /// one horizon.
    fn largest_integral(&self, limits: &Limits) -> f64 {
        let PidParameters { kp, ki, clip, .. } = self.parameters;
        if ki == 0.0 {
            return 0.0;
        }
        let speed = if kp > 0.0 {
            INTEGRAL_SHARE * kp * clip
        } else {
            libm::log(limits.max_value) - libm::log(limits.min_value)
        };
        (speed / ki).min(f64::MAX)
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
        let before = self.memory.integral;
        let (area, after) = integrate(before, error, dt, self.largest_integral(limits));
        let proposed = value * libm::exp(kp * error * dt + ki * area + kd * rise);
        self.memory.integral = if error > 0.0 && proposed >= limits.max_value {
            after.min(before.max(0.0))
        } else if error < 0.0 && proposed <= limits.min_value {
            after.max(before.min(0.0))
        } else {
            after
        };
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

/// The area under `start + error t` for t from 0 to `dt`, held within ±`most`, and where it ends.
fn integrate(start: f64, error: f64, dt: f64, most: f64) -> (f64, f64) {
    if error == 0.0 {
        return (start * dt, start);
    }
    let limit = most.copysign(error);
    // How long the integral grows before its limit holds it.
    let growing = ((limit - start) / error).clamp(0.0, dt);
    let end = if growing < dt {
        limit
    } else {
        start + error * dt
    };
    let area = start * growing + error * growing * growing / 2.0 + end * (dt - growing);
    (area, end)
}
