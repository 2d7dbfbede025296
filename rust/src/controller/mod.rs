//! Controllers of a KL coefficient: a divergence goes in, the coefficient of a penalty comes out.
//!
//! One [`Controller`] holds what all rules share: the coefficient, its bounds, the unit, and what
//! the last update did. A rule, one a file, says what it wants to do with a measurement.

mod adaptive;
mod band;
mod change;
mod exact_sum;
mod fixed;
mod limits;
mod pid;
mod scheduled;
mod state;
mod threshold;

pub use adaptive::Adaptive;
pub use band::PpoPenalty;
pub use change::{Action, Change, Reason};
pub use fixed::Fixed;
pub use limits::{Limits, Unit};
pub use pid::{Pid, PidParameters};
pub use scheduled::{Scheduled, Shape};
pub use threshold::{Threshold, ThresholdParameters};

use crate::error::{Error, Result};
use limits::within;

/// How a measurement moves the coefficient.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Not at all.
    Fixed(Fixed),
    /// In proportion to the relative error.
    Adaptive(Adaptive),
    /// By factors outside a band.
    PpoPenalty(PpoPenalty),
    /// By factors where the mean of a window is outside a band.
    Threshold(Threshold),
    /// By a PID rule on its logarithm.
    Pid(Pid),
    /// Along a ramp into another controller.
    Scheduled(Scheduled),
}

/// A coefficient that follows measured divergences; positive and finite, within its bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    rule: Rule,
    limits: Limits,
    value: f64,
    last_change: Option<Change>,
}

impl Controller {
    /// A constant coefficient; 0 is legal besides the values within the bounds.
    ///
    /// # Errors
    /// The coefficient or the bounds are out of range.
    pub fn fixed(kl_coef: f64, limits: Limits) -> Result<Self> {
        limits.check()?;
        if kl_coef != 0.0 {
            within("kl_coef", kl_coef, limits.min_value, limits.max_value)?;
        }
        // Turns -0.0 into 0.0.
        let kl_coef = kl_coef + 0.0;
        Ok(Self::from_parts(
            Rule::Fixed(Fixed { kl_coef }),
            limits,
            kl_coef,
        ))
    }

    /// The rule of Ziegler et al. 2019.
    ///
    /// # Errors
    /// A parameter is out of range, or the initial coefficient outside the bounds.
    pub fn adaptive(init_kl_coef: f64, rule: Adaptive, limits: Limits) -> Result<Self> {
        rule.check()?;
        Self::within_limits(init_kl_coef, Rule::Adaptive(rule), limits)
    }

    /// The rule of Schulman et al. 2017.
    ///
    /// # Errors
    /// A parameter is out of range, or the initial coefficient outside the bounds.
    pub fn ppo_penalty(init_kl_coef: f64, rule: PpoPenalty, limits: Limits) -> Result<Self> {
        rule.check()?;
        Self::within_limits(init_kl_coef, Rule::PpoPenalty(rule), limits)
    }

    /// The band rule on the mean of a window.
    ///
    /// # Errors
    /// The initial coefficient is outside the bounds, unless the rule keeps one there.
    pub fn threshold(init_kl_coef: f64, rule: Threshold, limits: Limits) -> Result<Self> {
        let keeps = rule.parameters.keep_outside;
        let rule = Rule::Threshold(rule);
        if !keeps {
            return Self::within_limits(init_kl_coef, rule, limits);
        }
        limits.check()?;
        within("init_kl_coef", init_kl_coef, 0.0, f64::MAX)?;
        Ok(Self::from_parts(rule, limits, init_kl_coef + 0.0))
    }

    /// The PID rule.
    ///
    /// # Errors
    /// The initial coefficient is outside the bounds.
    pub fn pid(init_kl_coef: f64, rule: Pid, limits: Limits) -> Result<Self> {
        Self::within_limits(init_kl_coef, Rule::Pid(rule), limits)
    }

    /// A ramp of `warmup_steps` from `start` into a controller, whose bounds and unit it takes.
    ///
    /// `start` defaults to the lower bound.
    ///
    /// # Errors
    /// The controller is scheduled itself, or `start` is outside its bounds.
    pub fn scheduled(
        controller: Self,
        warmup_steps: u64,
        start: Option<f64>,
        shape: Shape,
    ) -> Result<Self> {
        let limits = controller.limits;
        if matches!(controller.rule, Rule::Scheduled(_)) {
            return Err(Error::parameter(
                "controller",
                "a controller without a schedule",
                controller.class(),
            ));
        }
        let start = start.unwrap_or(limits.min_value);
        limits.check_holds("start", start)?;
        let rule = Scheduled {
            controller: Box::new(controller),
            warmup_steps,
            start,
            shape,
            steps: 0,
        };
        let value = rule.value();
        Ok(Self::from_parts(Rule::Scheduled(rule), limits, value))
    }

    fn within_limits(init_kl_coef: f64, rule: Rule, limits: Limits) -> Result<Self> {
        limits.check()?;
        limits.check_holds("init_kl_coef", init_kl_coef)?;
        Ok(Self::from_parts(rule, limits, init_kl_coef))
    }

    fn from_parts(rule: Rule, limits: Limits, value: f64) -> Self {
        Self {
            rule,
            limits,
            value,
            last_change: None,
        }
    }

    /// The coefficient in force.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }

    /// How it moves.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Its bounds, and the unit of what is measured.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the last update with steps did.
    #[must_use]
    pub fn last_change(&self) -> Option<&Change> {
        self.last_change.as_ref()
    }

    /// The divergence aimed at; `None` for a constant coefficient.
    #[must_use]
    pub fn target(&self) -> Option<f64> {
        match &self.rule {
            Rule::Fixed(_) => None,
            Rule::Adaptive(rule) => Some(rule.target),
            Rule::PpoPenalty(rule) => Some(rule.target),
            Rule::Threshold(rule) => Some(rule.parameters.target),
            Rule::Pid(rule) => Some(rule.parameters.target),
            Rule::Scheduled(rule) => rule.controller.target(),
        }
    }

    /// Whether one update takes several measurements.
    #[must_use]
    pub fn takes_several(&self) -> bool {
        match &self.rule {
            Rule::Threshold(_) => true,
            Rule::Scheduled(rule) => rule.controller.takes_several(),
            _ => false,
        }
    }

    /// Adapts to divergences measured under the coefficient in force; `n_steps` is how many steps
    /// (episodes, sequences) they stand for. No measurement or no step changes nothing.
    ///
    /// # Errors
    /// A divergence is not finite, there are several where the rule takes one, or `n_steps` is too
    /// large for the rule. Nothing is changed then.
    pub fn update(&mut self, current: &[f64], n_steps: u64) -> Result<f64> {
        if let Some(place) = current.iter().position(|value| !value.is_finite()) {
            let name = match current.len() {
                1 => "current".to_owned(),
                _ => format!("current[{place}]"),
            };
            return Err(Error::parameter(
                &name,
                "a finite number of nats",
                format_args!("{:?}", current[place]),
            ));
        }
        if current.len() > 1 && !self.takes_several() {
            return Err(Error::parameter(
                "current",
                format!("one number for {}", self.class()),
                format_args!("{} numbers", current.len()),
            ));
        }
        let Some(&first) = current.first().filter(|_| n_steps > 0) else {
            return Ok(self.value);
        };
        let before = self.value;
        let decision = match &mut self.rule {
            Rule::Fixed(rule) => rule.decide(first),
            Rule::Adaptive(rule) => rule.decide(before, first, n_steps)?,
            Rule::PpoPenalty(rule) => rule.decide(before, first),
            Rule::Threshold(rule) => rule.decide(before, current),
            Rule::Pid(rule) => rule.decide(before, &self.limits, first, n_steps)?,
            Rule::Scheduled(rule) => rule.decide(current, n_steps)?,
        };
        let mut bounded = decision.bounded;
        if let Some(proposed) = decision.proposed {
            // A constant 0, and a ramp into it, are the values that may lie below the bounds.
            self.value = match self.rule {
                Rule::Fixed(_) | Rule::Scheduled(_) => proposed,
                _ => self.limits.clamp(proposed),
            };
            bounded |= self.value != proposed;
        }
        self.last_change = Some(Change {
            measured: decision.measured,
            target: self.target(),
            error: decision.error,
            n_steps,
            before,
            after: self.value,
            bounded,
            reason: decision.reason,
        });
        Ok(self.value)
    }
}

#[cfg(test)]
mod tests;
