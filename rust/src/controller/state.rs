//! Controllers as JSON: saved in the middle of a run, they continue bit for bit.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::band::PpoPenalty;
use super::limits::Limits;
use super::pid::{Pid, PidMemory};
use super::scheduled::{Scheduled, Shape};
use super::threshold::{Threshold, ThresholdMemory};
use super::{Adaptive, Change, Controller, Fixed, Reason, Rule};
use crate::error::{Error, Result};

const VERSION: u32 = 1;
const WHAT: &str = "the state";

/// A controller as it is saved.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    class: String,
    parameters: Map<String, Value>,
    value: f64,
    memory: Value,
    last_change: Option<Change>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    class: String,
    parameters: Map<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleParameters {
    controller: Inner,
    warmup_steps: u64,
    start: f64,
    shape: Shape,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleMemory {
    steps: u64,
    controller: State,
}

fn to_value(part: &impl Serialize) -> Result<Value> {
    serde_json::to_value(part).map_err(|error| Error::malformed(WHAT, error))
}

fn from_value<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| Error::malformed(WHAT, error))
}

/// Equal as JSON, where 6 and 6.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, x)| b.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

impl Rule {
    /// Whether a change of this rule can have this reason.
    fn gives(&self, reason: Reason) -> bool {
        use Reason::{
            AboveBand, AboveTarget, AtTarget, BelowBand, BelowTarget, InsideBand, WarmUp,
            WindowNotFull,
        };
        match self {
            Self::Fixed(_) => reason == Reason::Fixed,
            Self::Adaptive(_) | Self::Pid(_) => {
                matches!(reason, AboveTarget | BelowTarget | AtTarget)
            }
            Self::PpoPenalty(_) => matches!(reason, AboveBand | BelowBand | InsideBand),
            Self::Threshold(_) => {
                matches!(reason, AboveBand | BelowBand | InsideBand | WindowNotFull)
            }
            Self::Scheduled(rule) => reason == WarmUp || rule.controller.rule.gives(reason),
        }
    }
}

impl Controller {
    /// The name that users know its kind by.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match &self.rule {
            Rule::Fixed(_) => "FixedKLController",
            Rule::Adaptive(_) => "AdaptiveKLController",
            Rule::PpoPenalty(_) => "PPOPenaltyController",
            Rule::Threshold(_) => "ThresholdKLController",
            Rule::Pid(_) => "PIDKLController",
            Rule::Scheduled(_) => "ScheduledKLController",
        }
    }

    /// Its parameters by name. The initial coefficient is none: nothing depends on it later.
    ///
    /// # Errors
    /// None that a constructor has not ruled out.
    pub fn parameters(&self) -> Result<Map<String, Value>> {
        let (rule, limits) = match &self.rule {
            Rule::Fixed(rule) => (to_value(rule)?, true),
            Rule::Adaptive(rule) => (to_value(rule)?, true),
            Rule::PpoPenalty(rule) => (to_value(rule)?, true),
            Rule::Threshold(rule) => (to_value(&rule.parameters)?, true),
            Rule::Pid(rule) => (to_value(&rule.parameters)?, true),
            Rule::Scheduled(rule) => {
                let parameters = ScheduleParameters {
                    controller: Inner {
                        class: rule.controller.class().into(),
                        parameters: rule.controller.parameters()?,
                    },
                    warmup_steps: rule.warmup_steps,
                    start: rule.start,
                    shape: rule.shape,
                };
                (to_value(&parameters)?, false)
            }
        };
        let mut map: Map<String, Value> = from_value(rule)?;
        if limits {
            map.extend(from_value::<Map<String, Value>>(to_value(&self.limits)?)?);
        }
        Ok(map)
    }

    fn memory(&self) -> Result<Value> {
        match &self.rule {
            Rule::Fixed(_) | Rule::Adaptive(_) | Rule::PpoPenalty(_) => Ok(Value::Null),
            Rule::Threshold(rule) => to_value(&rule.memory),
            Rule::Pid(rule) => to_value(&rule.memory),
            Rule::Scheduled(rule) => to_value(&ScheduleMemory {
                steps: rule.steps,
                controller: rule.controller.state()?,
            }),
        }
    }

    fn state(&self) -> Result<State> {
        Ok(State {
            version: VERSION,
            class: self.class().into(),
            parameters: self.parameters()?,
            value: self.value,
            memory: self.memory()?,
            last_change: self.last_change,
        })
    }

    /// The whole state as JSON; equal runs give equal text.
    ///
    /// # Errors
    /// None that a constructor has not ruled out.
    pub fn state_json(&self) -> Result<String> {
        serde_json::to_string(&self.state()?).map_err(|error| Error::malformed(WHAT, error))
    }

    /// Continues from a state of a controller of the same kind with the same parameters.
    ///
    /// # Errors
    /// It is another controller's state, or none at all; nothing is changed then.
    pub fn load_state_json(&mut self, text: &str) -> Result<()> {
        let state = serde_json::from_str(text).map_err(|error| Error::malformed(WHAT, error))?;
        *self = self.continued(&state)?;
        Ok(())
    }

    /// A controller from its state alone.
    ///
    /// # Errors
    /// It is no state that a controller can have.
    pub fn from_state_json(text: &str) -> Result<Self> {
        let state: State =
            serde_json::from_str(text).map_err(|error| Error::malformed(WHAT, error))?;
        Self::fresh(&state.class, &state.parameters)?.continued(&state)
    }

    /// A controller of a class with these parameters; its coefficient is any legal one.
    fn fresh(class: &str, parameters: &Map<String, Value>) -> Result<Self> {
        let mut rule = parameters.clone();
        if class == "ScheduledKLController" {
            let schedule: ScheduleParameters = from_value(Value::Object(rule))?;
            let inner = Self::fresh(&schedule.controller.class, &schedule.controller.parameters)?;
            let ScheduleParameters {
                warmup_steps,
                start,
                shape,
                ..
            } = schedule;
            return Self::scheduled(inner, warmup_steps, Some(start), shape);
        }
        let mut limits = Map::new();
        for name in ["min_value", "max_value", "unit"] {
            limits.extend(rule.remove(name).map(|value| (name.to_owned(), value)));
        }
        let limits: Limits = from_value(Value::Object(limits))?;
        let rule = Value::Object(rule);
        let any = limits.min_value;
        match class {
            "FixedKLController" => Self::fixed(from_value::<Fixed>(rule)?.kl_coef, limits),
            "AdaptiveKLController" => Self::adaptive(any, from_value::<Adaptive>(rule)?, limits),
            "PPOPenaltyController" => {
                Self::ppo_penalty(any, from_value::<PpoPenalty>(rule)?, limits)
            }
            "ThresholdKLController" => {
                Self::threshold(any, Threshold::new(from_value(rule)?)?, limits)
            }
            "PIDKLController" => Self::pid(any, Pid::new(from_value(rule)?)?, limits),
            _ => Err(Error::malformed(WHAT, format!("unknown class {class:?}"))),
        }
    }

    /// This controller as a state left one of its kind.
    fn continued(&self, state: &State) -> Result<Self> {
        let wrong = |why: String| Error::malformed(WHAT, why);
        if state.version != VERSION {
            return Err(wrong(format!(
                "its version is {}, expected {VERSION}",
                state.version
            )));
        }
        if state.class != self.class() {
            return Err(wrong(format!(
                "it is that of a {}, expected a {}",
                state.class,
                self.class()
            )));
        }
        let expected = self.parameters()?;
        for (name, value) in &expected {
            match state.parameters.get(name) {
                Some(got) if same(got, value) => {}
                Some(got) => return Err(wrong(format!("{name} is {got}, expected {value}"))),
                None => return Err(wrong(format!("{name} is missing"))),
            }
        }
        if let Some(name) = state.parameters.keys().find(|&k| !expected.contains_key(k)) {
            return Err(wrong(format!("it has the unknown parameter {name:?}")));
        }
        let memory = state.memory.clone();
        let rule = match &self.rule {
            Rule::Fixed(_) | Rule::Adaptive(_) | Rule::PpoPenalty(_) => {
                from_value::<()>(memory)?;
                self.rule.clone()
            }
            Rule::Threshold(rule) => {
                Rule::Threshold(rule.with_memory(&from_value::<ThresholdMemory>(memory)?)?)
            }
            Rule::Pid(rule) => {
                Rule::Pid(rule.with_memory(&from_value::<PidMemory>(memory)?, &self.limits)?)
            }
            Rule::Scheduled(rule) => {
                let memory: ScheduleMemory = from_value(memory)?;
                if memory.steps > rule.warmup_steps {
                    return Err(wrong(format!(
                        "it has done {} of {} warm-up steps",
                        memory.steps, rule.warmup_steps
                    )));
                }
                Rule::Scheduled(Scheduled {
                    controller: Box::new(rule.controller.continued(&memory.controller)?),
                    warmup_steps: rule.warmup_steps,
                    start: rule.start,
                    shape: rule.shape,
                    steps: memory.steps,
                })
            }
        };
        let value = state.value;
        let legal = match &rule {
            Rule::Fixed(rule) => value == rule.kl_coef,
            Rule::Scheduled(rule) => value == rule.value(),
            Rule::Threshold(rule) if rule.parameters.keep_outside => {
                (0.0..=f64::MAX).contains(&value)
            }
            _ => (self.limits.min_value..=self.limits.max_value).contains(&value),
        };
        if !legal {
            return Err(wrong(format!("the coefficient cannot be {value:?}")));
        }
        if let Some(change) = &state.last_change
            && !self.can_have_made(change)
        {
            return Err(wrong(format!(
                "its last change cannot be that of this controller: {change:?}"
            )));
        }
        Ok(Self {
            rule,
            limits: self.limits,
            value,
            last_change: state.last_change,
        })
    }

    /// Whether a change is one of this rule; its numbers are finite, as JSON has no others.
    fn can_have_made(&self, change: &Change) -> bool {
        let has_error = matches!(
            change.reason,
            Reason::AboveTarget | Reason::BelowTarget | Reason::AtTarget
        );
        self.rule.gives(change.reason)
            && change.error.is_some() == has_error
            && change.target == self.target()
            && change.n_steps > 0
            && change.before >= 0.0
            && change.after >= 0.0
    }
}
