//! Controllers of a KL coefficient: one class holds what all share, one for each rule builds it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
#[cfg(feature = "stubs")]
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyMapping, PySet, PyString};
#[cfg(feature = "stubs")]
use pyo3::{PyTypeInfo as _, type_hint_identifier, type_hint_subscript};

use super::named::{Named, Read, Word, shown};
use crate::controller as core;
use crate::controller::{Limits, PidParameters, Rule, ThresholdParameters};

/// A dict of names and plain values; its own type so that the stub can say so.
struct Plain<'py>(Bound<'py, PyDict>);

impl<'py> IntoPyObject<'py> for Plain<'py> {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = std::convert::Infallible;

    #[cfg(feature = "stubs")]
    const OUTPUT_TYPE: PyStaticExpr = type_hint_subscript!(
        PyDict::TYPE_HINT,
        String::OUTPUT_TYPE,
        type_hint_identifier!("typing", "Any")
    );

    fn into_pyobject(self, _: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(self.0)
    }
}

/// The measurements in a list or a rank-1 array.
fn several(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    let no_sequence = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PySet>()
        || value.is_instance_of::<PyMapping>();
    if no_sequence {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a number or a sequence of numbers, got {}",
            shown(value)
        )));
    }
    value
        .try_iter()?
        .enumerate()
        .map(|(i, item)| f64::read(&format!("{name}[{i}]"), &item?))
        .collect()
}

fn limits(
    min_value: Named<'_, '_, f64>,
    max_value: Named<'_, '_, f64>,
    unit: Named<'_, '_, Word>,
) -> PyResult<Limits> {
    Ok(Limits {
        min_value: min_value.get("min_value")?,
        max_value: max_value.get("max_value")?,
        unit: unit.get("unit")?.as_str().parse::<core::Unit>()?,
    })
}

fn wrapped(core: core::Controller) -> PyClassInitializer<CoefficientController> {
    PyClassInitializer::from(CoefficientController(Mutex::new(core)))
}

/// What every controller of a KL coefficient has; it cannot be made on its own.
#[pyclass(frozen, subclass, module = "kl_proteus._core")]
pub(crate) struct CoefficientController(Mutex<core::Controller>);

impl CoefficientController {
    fn lock(&self) -> MutexGuard<'_, core::Controller> {
        // A poisoned lock means a panic elsewhere; what lies behind it is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl CoefficientController {
    /// The coefficient in force.
    #[getter]
    fn value(&self) -> f64 {
        self.lock().value()
    }

    /// Smallest coefficient.
    #[getter]
    fn min_value(&self) -> f64 {
        self.lock().limits().min_value
    }

    /// Largest coefficient.
    #[getter]
    fn max_value(&self) -> f64 {
        self.lock().limits().max_value
    }

    /// Unit of the divergences and of the target: nats/token, nats/sequence or nats/step.
    #[getter]
    fn unit(&self) -> &'static str {
        self.lock().limits().unit.name()
    }

    /// The divergence aimed at, in `unit`; None for a constant coefficient.
    #[getter]
    fn target(&self) -> Option<f64> {
        self.lock().target()
    }

    /// Adapts to a divergence that was measured under the coefficient in force.
    ///
    /// Args:
    ///     current: The divergence in `unit`, any finite number: an estimate may be negative.
    ///     n_steps: How many episodes or sequences it stands for; 0 changes nothing.
    ///
    /// Returns:
    ///     The new coefficient.
    ///
    /// Raises:
    ///     TypeError: An argument is of another type.
    ///     ValueError: current is NaN or infinite, or n_steps is negative or too large for the
    ///         rule. Nothing is changed then.
    #[pyo3(
        signature = (current: "Any", n_steps=Named::Default(1)),
        text_signature = "($self, current, n_steps=1)"
    )]
    fn update(&self, current: &Bound<'_, PyAny>, n_steps: Named<'_, '_, u64>) -> PyResult<f64> {
        let n_steps = n_steps.get("n_steps")?;
        // No Python code runs under the lock.
        if !current.is_exact_instance_of::<PyFloat>()
            && self.lock().takes_several()
            && current.len().is_ok()
        {
            let values = several("current", current)?;
            return Ok(self.lock().update(&values, n_steps)?);
        }
        let value = f64::read("current", current)?;
        Ok(self.lock().update(&[value], n_steps)?)
    }

    /// What the last update measured, compared and did; None before the first.
    ///
    /// Returns:
    ///     A dict with `measured` (the value or mean that was compared), `target`, `ratio`
    ///     (measured / target), `error` (the clipped relative error, None for band rules),
    ///     `n_steps`, `before` and `after` (the coefficient), `action` ("up", "down" or "hold"),
    ///     `bounded` (whether a bound cut the change short), `reason` ("fixed", "above_target",
    ///     "below_target", "at_target", "above_band", "below_band", "inside_band",
    ///     "window_not_full" or "warm_up") and `unit`.
    #[getter]
    fn last_change<'py>(&self, py: Python<'py>) -> PyResult<Option<Plain<'py>>> {
        let (change, unit) = {
            let controller = self.lock();
            (controller.last_change().copied(), controller.limits().unit)
        };
        let Some(change) = change else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        dict.set_item("measured", change.measured)?;
        dict.set_item("target", change.target)?;
        dict.set_item("ratio", change.ratio())?;
        dict.set_item("error", change.error)?;
        dict.set_item("n_steps", change.n_steps)?;
        dict.set_item("before", change.before)?;
        dict.set_item("after", change.after)?;
        dict.set_item("action", change.action().name())?;
        dict.set_item("bounded", change.bounded)?;
        dict.set_item("reason", change.reason.name())?;
        dict.set_item("unit", unit.name())?;
        Ok(Some(Plain(dict)))
    }

    /// All that is needed to continue bit for bit: a versioned dict that JSON can hold.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = self.lock().state_json()?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Continues from what `state_dict` of a controller of the same kind returned.
    ///
    /// Args:
    ///     state: The dict; its parameters must be those of this controller, except for the
    ///         initial coefficient, on which nothing depends any more.
    ///
    /// Raises:
    ///     TypeError: It is no dict of JSON values.
    ///     ValueError: It is another controller's state, or none at all. Nothing is changed then.
    #[pyo3(signature = (state: "dict[str, Any]"))]
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = state.py();
        if !state.is_instance_of::<PyDict>() {
            return Err(PyTypeError::new_err(format!(
                "state must be a dict, got {}",
                shown(state)
            )));
        }
        let strict = PyDict::new(py);
        strict.set_item("allow_nan", false)?;
        let text = py
            .import("json")?
            .call_method("dumps", (state,), Some(&strict))
            .map_err(|error| {
                let why = format!("state must hold finite JSON values: {}", error.value(py));
                if error.is_instance_of::<PyTypeError>(py) {
                    PyTypeError::new_err(why)
                } else {
                    PyValueError::new_err(why)
                }
            })?;
        let text = text.extract::<String>()?;
        Ok(self.lock().load_state_json(&text)?)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let text = slf.get().lock().state_json()?;
        let restore = slf.py().import("kl_proteus._core")?;
        Ok((restore.getattr("controller_from_json")?, (text,)))
    }

    fn __repr__(&self) -> PyResult<String> {
        let controller = self.lock();
        Ok(described(&controller)?)
    }
}

fn described(controller: &core::Controller) -> crate::error::Result<String> {
    use std::fmt::Write as _;

    let mut text = format!("{}(value={:?}", controller.class(), controller.value());
    for (name, value) in controller.parameters()? {
        let part = match (name.as_str(), controller.rule()) {
            ("kl_coef", _) => continue,
            ("controller", Rule::Scheduled(rule)) => described(rule.controller())?,
            _ => match value.as_str() {
                Some(word) => format!("'{word}'"),
                None => match value {
                    serde_json::Value::Bool(true) => "True".into(),
                    serde_json::Value::Bool(false) => "False".into(),
                    other => other.to_string(),
                },
            },
        };
        // Writing to a String cannot fail.
        let _ = write!(text, ", {name}={part}");
    }
    text.push(')');
    Ok(text)
}

fn into_python(
    py: Python<'_>,
    core: core::Controller,
) -> PyResult<Bound<'_, CoefficientController>> {
    let rule = core.rule().clone();
    let base = wrapped(core);
    Ok(match rule {
        Rule::Fixed(_) => Bound::new(py, base.add_subclass(FixedKLController))?.into_super(),
        Rule::Adaptive(_) => Bound::new(py, base.add_subclass(AdaptiveKLController))?.into_super(),
        Rule::PpoPenalty(_) => {
            Bound::new(py, base.add_subclass(PPOPenaltyController))?.into_super()
        }
        Rule::Threshold(_) => {
            Bound::new(py, base.add_subclass(ThresholdKLController))?.into_super()
        }
        Rule::Pid(_) => Bound::new(py, base.add_subclass(PIDKLController))?.into_super(),
        Rule::Scheduled(_) => {
            Bound::new(py, base.add_subclass(ScheduledKLController))?.into_super()
        }
    })
}

/// A controller from the JSON of its state; what pickle calls.
///
/// Raises:
///     ValueError: It is no state that a controller can have.
#[pyfunction]
pub(crate) fn controller_from_json<'py>(
    py: Python<'py>,
    text: &str,
) -> PyResult<Bound<'py, CoefficientController>> {
    into_python(py, core::Controller::from_state_json(text)?)
}

/// A constant coefficient.
///
/// Args:
///     kl_coef: The coefficient; 0.0 (no penalty) or within the bounds.
///     min_value: Smallest coefficient besides 0.0.
///     max_value: Largest coefficient.
///     unit: What divergences are measured in: "nats/token", "nats/sequence" or "nats/step".
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct FixedKLController;

#[pymethods]
impl FixedKLController {
    #[new]
    #[pyo3(
        signature = (
            kl_coef, *, min_value=Named::Default(1e-8), max_value=Named::Default(1e4),
            unit=Named::Default(Word::Known("nats/token"))
        ),
        text_signature = "(kl_coef, *, min_value=1e-8, max_value=1e4, unit='nats/token')"
    )]
    fn new(
        kl_coef: Named<'_, '_, f64>,
        min_value: Named<'_, '_, f64>,
        max_value: Named<'_, '_, f64>,
        unit: Named<'_, '_, Word>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let core =
            core::Controller::fixed(kl_coef.get("kl_coef")?, limits(min_value, max_value, unit)?)?;
        Ok(wrapped(core).add_subclass(Self))
    }
}

/// The proportional rule: coef *= 1 + clip(KL/target - 1, -clip, clip) * n_steps / horizon.
///
/// It is not additive: one update of 512 steps is not two of 256. `update` refuses
/// clip * n_steps >= horizon, which could turn the coefficient negative.
///
/// Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2 (clip 0.2; a gain of 0.1 an
/// update). The form with n_steps / horizon is that of its code and of the trainers that took
/// it over.
///
/// Args:
///     init_kl_coef: The coefficient to begin with, within the bounds.
///     target: The divergence aimed at, in `unit`, above 0.
///     horizon: Steps over which an error of 1 would double the coefficient, above 0.
///     clip: Largest relative error that counts, above 0.
///     min_value: Smallest coefficient, above 0.
///     max_value: Largest coefficient.
///     unit: What divergences are measured in: "nats/token", "nats/sequence" or "nats/step".
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or init_kl_coef outside the bounds.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct AdaptiveKLController;

#[pymethods]
impl AdaptiveKLController {
    #[new]
    #[pyo3(
        signature = (
            init_kl_coef, target, horizon, *, clip=Named::Default(0.2),
            min_value=Named::Default(1e-8), max_value=Named::Default(1e4),
            unit=Named::Default(Word::Known("nats/token"))
        ),
        text_signature = "(init_kl_coef, target, horizon, *, clip=0.2, \
            min_value=1e-8, max_value=1e4, unit='nats/token')"
    )]
    fn new(
        init_kl_coef: Named<'_, '_, f64>,
        target: Named<'_, '_, f64>,
        horizon: Named<'_, '_, f64>,
        clip: Named<'_, '_, f64>,
        min_value: Named<'_, '_, f64>,
        max_value: Named<'_, '_, f64>,
        unit: Named<'_, '_, Word>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rule = core::Adaptive {
            target: target.get("target")?,
            horizon: horizon.get("horizon")?,
            clip: clip.get("clip")?,
        };
        let init = init_kl_coef.get("init_kl_coef")?;
        let core = core::Controller::adaptive(init, rule, limits(min_value, max_value, unit)?)?;
        Ok(wrapped(core).add_subclass(Self))
    }

    /// Steps over which an error of 1 would double the coefficient.
    #[getter]
    fn horizon(slf: PyRef<'_, Self>) -> f64 {
        match slf.as_super().lock().rule() {
            Rule::Adaptive(rule) => rule.horizon,
            _ => 0.0,
        }
    }
}

/// The band rule: times `increase_factor` above the band, times `decrease_factor` below it.
///
/// KL > high * target and KL < low * target are strict; in between the coefficient holds. One
/// update is one adaptation, whatever n_steps is: feed it the mean of a batch, not each of its
/// minibatches.
///
/// Source: Schulman et al. 2017, arXiv:1707.06347, section 4 (1.5 and 1/1.5, doubling and
/// halving). Other published variants are arguments: high=2.0, low=0.5 with factors 1.5 and
/// 0.5, or high=1.3, low=0.7 with 1.5 and 1/1.5.
///
/// Args:
///     init_kl_coef: The coefficient to begin with, within the bounds.
///     target: The divergence aimed at, in `unit`, above 0.
///     high: Upper border of the band, in multiples of the target.
///     low: Lower border of the band, in multiples of the target, from 0 to `high`.
///     increase_factor: At least 1.
///     decrease_factor: Above 0, at most 1.
///     min_value: Smallest coefficient, above 0.
///     max_value: Largest coefficient.
///     unit: What divergences are measured in: "nats/token", "nats/sequence" or "nats/step".
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or init_kl_coef outside the bounds.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct PPOPenaltyController;

#[pymethods]
impl PPOPenaltyController {
    #[new]
    #[pyo3(
        signature = (
            init_kl_coef, target, *, high=Named::Default(1.5), low=Named::Default(1.0 / 1.5),
            increase_factor=Named::Default(2.0), decrease_factor=Named::Default(0.5),
            min_value=Named::Default(1e-8), max_value=Named::Default(1e4),
            unit=Named::Default(Word::Known("nats/token"))
        ),
        text_signature = "(init_kl_coef, target, *, high=1.5, low=0.6666666666666666, \
            increase_factor=2.0, decrease_factor=0.5, min_value=1e-8, max_value=1e4, unit='nats/token')"
    )]
    fn new(
        init_kl_coef: Named<'_, '_, f64>,
        target: Named<'_, '_, f64>,
        high: Named<'_, '_, f64>,
        low: Named<'_, '_, f64>,
        increase_factor: Named<'_, '_, f64>,
        decrease_factor: Named<'_, '_, f64>,
        min_value: Named<'_, '_, f64>,
        max_value: Named<'_, '_, f64>,
        unit: Named<'_, '_, Word>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rule = core::PpoPenalty {
            target: target.get("target")?,
            high: high.get("high")?,
            low: low.get("low")?,
            increase_factor: increase_factor.get("increase_factor")?,
            decrease_factor: decrease_factor.get("decrease_factor")?,
        };
        let init = init_kl_coef.get("init_kl_coef")?;
        let core = core::Controller::ppo_penalty(init, rule, limits(min_value, max_value, unit)?)?;
        Ok(wrapped(core).add_subclass(Self))
    }
}

/// The band rule on the mean of the last `window` values, once there are that many.
///
/// `update` takes a number, or a sequence whose values all join the window, oldest first,
/// before one adaptation; an empty one is no measurement. The mean is that of the exact sum, so
/// it does not depend on values that have left.
///
/// Source: the rule of the drop-in `KLControllerBase`, whose factors, bounds and band these
/// are; its form is that of Schulman et al. 2017, arXiv:1707.06347, section 4.
///
/// Args:
///     init_kl_coef: The coefficient to begin with, within the bounds.
///     target: The divergence aimed at, in `unit`, above 0.
///     window: Values in the mean, from 1 to 2^32 - 1.
///     high: Upper border of the band, in multiples of the target.
///     low: Lower border of the band, in multiples of the target, from 0 to `high`.
///     increase_factor: At least 1.
///     decrease_factor: Above 0, at most 1.
///     keep_outside: Accept an initial coefficient outside the bounds, 0.0 included, and keep
///         it until the window is full.
///     min_value: Smallest coefficient, above 0.
///     max_value: Largest coefficient.
///     unit: What divergences are measured in: "nats/token", "nats/sequence" or "nats/step".
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or init_kl_coef outside the bounds.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct ThresholdKLController;

#[pymethods]
impl ThresholdKLController {
    #[new]
    #[pyo3(
        signature = (
            init_kl_coef, target, *, window=Named::Default(10), high=Named::Default(1.5),
            low=Named::Default(0.5), increase_factor=Named::Default(1.5),
            decrease_factor=Named::Default(0.8), min_value=Named::Default(0.01),
            max_value=Named::Default(1.0), unit=Named::Default(Word::Known("nats/token")),
            keep_outside=Named::Default(false)
        ),
        text_signature = "(init_kl_coef, target, *, window=10, high=1.5, low=0.5, \
            increase_factor=1.5, decrease_factor=0.8, min_value=0.01, max_value=1.0, \
            unit='nats/token', keep_outside=False)"
    )]
    fn new(
        init_kl_coef: Named<'_, '_, f64>,
        target: Named<'_, '_, f64>,
        window: Named<'_, '_, u64>,
        high: Named<'_, '_, f64>,
        low: Named<'_, '_, f64>,
        increase_factor: Named<'_, '_, f64>,
        decrease_factor: Named<'_, '_, f64>,
        min_value: Named<'_, '_, f64>,
        max_value: Named<'_, '_, f64>,
        unit: Named<'_, '_, Word>,
        keep_outside: Named<'_, '_, bool>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rule = core::Threshold::new(ThresholdParameters {
            target: target.get("target")?,
            window: window.get("window")?,
            high: high.get("high")?,
            low: low.get("low")?,
            increase_factor: increase_factor.get("increase_factor")?,
            decrease_factor: decrease_factor.get("decrease_factor")?,
            keep_outside: keep_outside.get("keep_outside")?,
        })?;
        let init = init_kl_coef.get("init_kl_coef")?;
        let core = core::Controller::threshold(init, rule, limits(min_value, max_value, unit)?)?;
        Ok(wrapped(core).add_subclass(Self))
    }
}

/// A PID rule on the logarithm of the coefficient.
///
/// With e = clip(KL/target - 1, -clip, clip), dt = n_steps / horizon, and I the integral of e::
///
///     log coef += kp e dt + ki (integral of I over dt) + kd (e - previous e)
///
/// The coefficient itself accumulates, so kp alone has no lasting error: it is
/// `AdaptiveKLController` in exponential form, which no n_steps turns negative. kd damps the
/// swing that a policy which answers late causes; ki removes the lasting error under a pressure
/// that keeps growing. I stays within kp clip / (4 ki), where its term is a quarter of that of kp at
/// full clip (without kp: where it crosses the whole range in a horizon), and does not grow outwards
/// while a bound holds the coefficient and the error pushes there. While e stays the same, or with
/// ki = 0, steps are additive: one update of 512 is two of 256, up to rounding.
///
/// Source: the proportional term and the clip are those of Ziegler et al. 2019, arXiv:1909.08593,
/// section 2.2. The other terms follow Stooke et al. 2020, arXiv:2007.03964, who call the update
/// that accumulates (here kp) integral control, and damp it with what is kd here. The default kd
/// and ki are derived, not published: near the optimum KL goes as coef^-2, which makes the loop
/// gain g = 2; if the policy follows with a lag of T = 1 horizon, the damping ratio is
/// (1 + g kd) / (2 sqrt(g kp T)), 0.35 without kd and 1/sqrt(2) with kd = 0.5, and
/// ki < kp (1 + g kd) / T = 2 is stable, of which 0.2 is a tenth.
///
/// Args:
///     init_kl_coef: The coefficient to begin with, within the bounds.
///     target: The divergence aimed at, in `unit`, above 0.
///     horizon: Steps that make one unit of time, above 0.
///     kp: Gain of the error, from 0 to 1e6.
///     ki: Gain of its integral, from 0 to 1e6.
///     kd: Gain of its change, from 0 to 1e6.
///     clip: Largest relative error that counts, above 0, at most 1e6.
///     min_value: Smallest coefficient, above 0.
///     max_value: Largest coefficient.
///     unit: What divergences are measured in: "nats/token", "nats/sequence" or "nats/step".
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or init_kl_coef outside the bounds.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct PIDKLController;

#[pymethods]
impl PIDKLController {
    #[new]
    #[pyo3(
        signature = (
            init_kl_coef, target, horizon, *, kp=Named::Default(1.0), ki=Named::Default(0.2),
            kd=Named::Default(0.5), clip=Named::Default(0.2),
            min_value=Named::Default(1e-8), max_value=Named::Default(1e4),
            unit=Named::Default(Word::Known("nats/token"))
        ),
        text_signature = "(init_kl_coef, target, horizon, *, kp=1.0, ki=0.2, kd=0.5, clip=0.2, \
            min_value=1e-8, max_value=1e4, unit='nats/token')"
    )]
    fn new(
        init_kl_coef: Named<'_, '_, f64>,
        target: Named<'_, '_, f64>,
        horizon: Named<'_, '_, f64>,
        kp: Named<'_, '_, f64>,
        ki: Named<'_, '_, f64>,
        kd: Named<'_, '_, f64>,
        clip: Named<'_, '_, f64>,
        min_value: Named<'_, '_, f64>,
        max_value: Named<'_, '_, f64>,
        unit: Named<'_, '_, Word>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rule = core::Pid::new(PidParameters {
            target: target.get("target")?,
            horizon: horizon.get("horizon")?,
            kp: kp.get("kp")?,
            ki: ki.get("ki")?,
            kd: kd.get("kd")?,
            clip: clip.get("clip")?,
        })?;
        let init = init_kl_coef.get("init_kl_coef")?;
        let core = core::Controller::pid(init, rule, limits(min_value, max_value, unit)?)?;
        Ok(wrapped(core).add_subclass(Self))
    }

    /// Steps that make one unit of time.
    #[getter]
    fn horizon(slf: PyRef<'_, Self>) -> f64 {
        match slf.as_super().lock().rule() {
            Rule::Pid(rule) => rule.parameters().horizon,
            _ => 0.0,
        }
    }
}

/// A ramp into another controller, or into a constant.
///
/// For `warmup_steps` the coefficient goes from `start` to that of the controller; the steps
/// are the sum of n_steps, so a ramp in one update is the ramp in many. What is measured
/// meanwhile does not reach the controller: it came about under another coefficient. An update
/// that crosses the end of the ramp belongs to it as a whole; from the next one on the
/// controller adapts.
///
/// Args:
///     controller: Any other controller of this module, of which a copy is taken, or the number
///         of a constant coefficient.
///     warmup_steps: Length of the ramp in the unit of n_steps; 0 for none.
///     start: The coefficient at the start, within the bounds; None for `min_value`.
///     shape: "linear", or "cosine" for a ramp without a corner at either end.
///     min_value: Smallest coefficient (default 1e-8), where `controller` is a number.
///     max_value: Largest coefficient (default 1e4), where `controller` is a number.
///     unit: As elsewhere (default "nats/token"), where `controller` is a number.
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, the controller has a schedule itself, or
///         bounds or a unit are given for a controller that has its own.
#[pyclass(frozen, extends = CoefficientController, module = "kl_proteus._core")]
pub(crate) struct ScheduledKLController;

#[pymethods]
impl ScheduledKLController {
    #[new]
    #[pyo3(
        signature = (
            controller: "CoefficientController | float", warmup_steps, *,
            start: "float | None" = None, shape=Named::Default(Word::Known("linear")),
            min_value: "float | None" = None, max_value: "float | None" = None,
            unit: "str | None" = None
        ),
        text_signature = "(controller, warmup_steps, *, start=None, shape='linear', \
            min_value=None, max_value=None, unit=None)"
    )]
    fn new(
        controller: &Bound<'_, PyAny>,
        warmup_steps: Named<'_, '_, u64>,
        start: Option<Named<'_, '_, f64>>,
        shape: Named<'_, '_, Word>,
        min_value: Option<Named<'_, '_, f64>>,
        max_value: Option<Named<'_, '_, f64>>,
        unit: Option<Named<'_, '_, Word>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let inner = if let Ok(given) = controller.cast::<CoefficientController>() {
            if min_value.is_some() || max_value.is_some() || unit.is_some() {
                return Err(PyValueError::new_err(
                    "min_value, max_value and unit must be None where controller is a controller, \
                     which has its own",
                ));
            }
            given.get().lock().clone()
        } else {
            let kl_coef = f64::read("controller", controller).map_err(|error| {
                if error.is_instance_of::<PyTypeError>(controller.py()) {
                    PyTypeError::new_err(format!(
                        "controller must be a controller of kl_proteus or a number, got {}",
                        shown(controller)
                    ))
                } else {
                    error
                }
            })?;
            let defaults = Limits::default();
            let limits = limits(
                min_value.unwrap_or(Named::Default(defaults.min_value)),
                max_value.unwrap_or(Named::Default(defaults.max_value)),
                unit.unwrap_or(Named::Default(Word::Known(defaults.unit.name()))),
            )?;
            core::Controller::fixed(kl_coef, limits)?
        };
        let core = core::Controller::scheduled(
            inner,
            warmup_steps.get("warmup_steps")?,
            start.map(|start| start.get("start")).transpose()?,
            shape.get("shape")?.as_str().parse()?,
        )?;
        Ok(wrapped(core).add_subclass(Self))
    }

    /// A copy of the controller behind the ramp.
    #[getter]
    fn controller<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, CoefficientController>> {
        let inner = match slf.as_super().get().lock().rule() {
            Rule::Scheduled(rule) => rule.controller().clone(),
            _ => return Err(PyTypeError::new_err("not a scheduled controller")),
        };
        into_python(slf.py(), inner)
    }

    /// Steps of the ramp that are done, at most `warmup_steps`.
    #[getter]
    fn steps(slf: PyRef<'_, Self>) -> u64 {
        match slf.as_super().lock().rule() {
            Rule::Scheduled(rule) => rule.steps(),
            _ => 0,
        }
    }

    /// Length of the ramp.
    #[getter]
    fn warmup_steps(slf: PyRef<'_, Self>) -> u64 {
        match slf.as_super().lock().rule() {
            Rule::Scheduled(rule) => rule.warmup_steps(),
            _ => 0,
        }
    }
}
