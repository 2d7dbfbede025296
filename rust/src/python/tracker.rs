//! The tracker of pairs that the environment wrappers step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use super::arguments::{number, whole};
use super::detector::{self, DriftDetector};
use super::layout::Layout;
use crate::axis_moves::AxisMove;
use crate::detector::Detector;
use crate::drift::LONGEST;
use crate::drift::{Config, Report, Which};
use crate::error::Error;
use crate::history::MOST_VALUES;
use crate::layout::Key;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::tracker::{self as core, Observed, Statistics};

type Numbers = (f64, f64, f64, f64, f64, f64, f64);

fn numbers(report: &Report) -> Numbers {
    report.numbers().into()
}

/// Counts (observation, action) pairs and keeps the divergence of the newest from earlier ones.
///
/// Args:
///     observation: Axes of the observation; None where a named encoder decides them later.
///     action: Axes of the action.
///     window: Pairs in each window; None counts every pair.
///     lag: How many pairs the previous window lies back; None puts it next to the current one.
///     reference: A snapshot (JSON) that freezes the previous distribution.
///     encoder: The name of the encoder whose results are observed.
///     epsilon: Pseudocount of each occupied cell.
///     history_size: Number of reported values for mean, std, min and max.
///     min_window: Fewer pairs than this on a side report 0.0.
///     axis_histograms: Whether to keep the histogram of each axis; None keeps them for up to 64.
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or the reference has other axes.
#[pyclass(frozen, module = "kl_proteus._core")]
pub(crate) struct PairTracker {
    /// Set once; read without the lock while Python values are walked.
    observation: OnceLock<Layout>,
    action: Layout,
    reference: Option<String>,
    /// Whether histograms are kept; read without the lock while Python values are walked.
    rows: AtomicBool,
    state: Mutex<core::PairTracker>,
}

impl PairTracker {
    pub(super) fn lock(&self) -> MutexGuard<'_, core::PairTracker> {
        // A poisoned lock means a panic elsewhere; the counts behind it are whole numbers still.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode(
        &self,
        layout: &Layout,
        value: &Bound<'_, PyAny>,
        row: &mut Row,
    ) -> PyResult<(Key, bool)> {
        if self.rows.load(Ordering::Relaxed) {
            layout.encode_row(value, row)
        } else {
            layout.encode(value)
        }
    }

    fn encoded(&self, observation: &Bound<'_, PyAny>) -> PyResult<Observed> {
        let Some(layout) = self.observation.get() else {
            return Err(PyValueError::new_err(
                "the observation axes are not defined yet; call define_observation first",
            ));
        };
        let mut row = Row::new();
        let encoded = self.encode(layout, observation, &mut row);
        observed(observation.py(), encoded, row)
    }
}

/// What an encoded observation is; a fault of its value waits for the step that would count it.
pub(super) fn observed(
    py: Python<'_>,
    encoded: PyResult<(Key, bool)>,
    row: Row,
) -> PyResult<Observed> {
    match encoded {
        Ok((key, flow)) => Ok(Observed::Cell { key, flow, row }),
        Err(error) => {
            let wrong_type = error.is_instance_of::<PyTypeError>(py);
            if wrong_type || error.is_instance_of::<PyValueError>(py) {
                let message = error.value(py).str()?.to_string();
                Ok(Observed::Refused {
                    message,
                    wrong_type,
                })
            } else {
                Err(error)
            }
        }
    }
}

/// What [`observed`] kept as it was raised.
pub(super) fn refusal(message: String, wrong_type: bool) -> PyErr {
    if wrong_type {
        PyTypeError::new_err(message)
    } else {
        PyValueError::new_err(message)
    }
}

/// The parameters of a tracker; the ranges are those of the core, which has the last word.
pub(super) fn config(
    window: Option<&Bound<'_, PyAny>>,
    lag: Option<&Bound<'_, PyAny>>,
    epsilon: Option<&Bound<'_, PyAny>>,
    history_size: Option<&Bound<'_, PyAny>>,
    min_window: Option<&Bound<'_, PyAny>>,
    axis_histograms: Option<bool>,
) -> PyResult<Config> {
    let defaults = Config::default();
    let length = format!("None or an integer from 1 to {LONGEST}");
    let size = format!("an integer from 1 to {MOST_VALUES}");
    let pairs = "an integer from 1 to 2^64 - 1";
    Ok(Config {
        window: window
            .map(|value| whole("window", &length, value))
            .transpose()?,
        lag: lag.map(|value| whole("lag", &length, value)).transpose()?,
        epsilon: epsilon.map_or(Ok(defaults.epsilon), |value| number("epsilon", value))?,
        history_size: history_size.map_or(Ok(defaults.history_size), |value| {
            whole("history_size", &size, value)
        })?,
        min_window: min_window.map_or(Ok(defaults.min_window), |value| {
            whole("min_window", pairs, value)
        })?,
        axis_histograms,
    })
}

/// The snapshot of a `reference` argument.
pub(super) fn frozen(reference: Option<&str>) -> PyResult<Option<Arc<Snapshot>>> {
    let snapshot = reference.map(|text| Snapshot::from_json(text).map_err(named));
    Ok(snapshot.transpose()?.map(Arc::new))
}

/// The arguments that give a tracker these parameters.
pub(super) fn keywords<'py>(
    py: Python<'py>,
    config: &Config,
    reference: Option<&str>,
    encoder: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let arguments = PyDict::new(py);
    arguments.set_item("window", config.window)?;
    arguments.set_item("lag", config.lag)?;
    arguments.set_item("reference", reference)?;
    arguments.set_item("encoder", encoder)?;
    arguments.set_item("epsilon", config.epsilon)?;
    arguments.set_item("history_size", config.history_size)?;
    arguments.set_item("min_window", config.min_window)?;
    arguments.set_item("axis_histograms", config.axis_histograms)?;
    Ok(arguments)
}

/// Statistics by name.
pub(super) fn by_name<'py>(
    py: Python<'py>,
    statistics: &Statistics,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("current", statistics.current)?;
    dict.set_item("mean", statistics.mean)?;
    dict.set_item("std", statistics.std)?;
    dict.set_item("min", statistics.min)?;
    dict.set_item("max", statistics.max)?;
    dict.set_item("count", statistics.count)?;
    dict.set_item("observation_mean", statistics.observation_mean)?;
    dict.set_item("policy_mean", statistics.policy_mean)?;
    dict.set_item("cells", statistics.cells)?;
    dict.set_item("steps", statistics.steps)?;
    dict.set_item("flow", statistics.flow)?;
    dict.set_item("ready", statistics.ready)?;
    dict.set_item("floor_available", statistics.floor_available)?;
    dict.set_item("kl_noise_floor", statistics.noise_floor)?;
    dict.set_item("kl_excess", statistics.excess)?;
    dict.set_item("kl_expected", statistics.expected)?;
    dict.set_item("kl_pvalue", statistics.pvalue)?;
    let blindness = &statistics.blindness;
    dict.set_item("kl_policy_floor", blindness.policy_floor)?;
    dict.set_item("kl_policy_excess", blindness.policy_excess)?;
    dict.set_item("kl_policy_z", blindness.policy_z)?;
    dict.set_item("kl_policy_pvalue", blindness.policy_pvalue)?;
    dict.set_item("coverage", blindness.coverage)?;
    dict.set_item("support", blindness.support)?;
    dict.set_item("kl_detectable", blindness.detectable)?;
    dict.set_item("episodes_in_window", statistics.episodes_in_window)?;
    Ok(dict)
}

/// A dict for each of the first axes.
pub(super) fn axis_moves<'py>(
    py: Python<'py>,
    moves: &[AxisMove],
    most: Option<usize>,
) -> PyResult<Bound<'py, PyList>> {
    let first = moves.iter().take(most.unwrap_or(usize::MAX));
    let dicts = first.map(|moved| axis_move(py, moved));
    PyList::new(py, dicts.collect::<PyResult<Vec<_>>>()?)
}

/// The dict of one axis.
pub(super) fn axis_move<'py>(py: Python<'py>, moved: &AxisMove) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("axis", &moved.axis)?;
    dict.set_item("kl", moved.kl)?;
    dict.set_item("expected", moved.expected)?;
    dict.set_item("excess", moved.excess)?;
    dict.set_item("past", moved.past)?;
    dict.set_item("shift", moved.shift)?;
    let grown = moved.grown.as_ref().map(|bin| {
        let dict = PyDict::new(py);
        dict.set_item("low", bin.low)?;
        dict.set_item("high", bin.high)?;
        dict.set_item("before", bin.before)?;
        dict.set_item("now", bin.now)?;
        PyResult::Ok(dict)
    });
    dict.set_item("grown", grown.transpose()?)?;
    dict.set_item("flow", moved.flow)?;
    dict.set_item("fullest", moved.fullest)?;
    Ok(dict)
}

/// The error of a snapshot, with the argument that brought it.
fn named(error: Error) -> PyErr {
    PyValueError::new_err(format!("reference: {error}"))
}

pub(super) fn which(name: &str) -> PyResult<Which> {
    match name {
        "current" => Ok(Which::Current),
        "previous" => Ok(Which::Previous),
        _ => Err(PyValueError::new_err(format!(
            "which must be 'current' or 'previous', got {name:?}"
        ))),
    }
}

#[pymethods]
impl PairTracker {
    #[new]
    #[pyo3(signature = (
        observation, action, *, window=None, lag=None, reference=None, encoder=None, epsilon=None,
        history_size=None, min_window=None, axis_histograms=None
    ))]
    fn new(
        observation: Option<PyRef<'_, Layout>>,
        action: PyRef<'_, Layout>,
        window: Option<&Bound<'_, PyAny>>,
        lag: Option<&Bound<'_, PyAny>>,
        reference: Option<String>,
        encoder: Option<String>,
        epsilon: Option<&Bound<'_, PyAny>>,
        history_size: Option<&Bound<'_, PyAny>>,
        min_window: Option<&Bound<'_, PyAny>>,
        axis_histograms: Option<bool>,
    ) -> PyResult<Self> {
        let config = config(
            window,
            lag,
            epsilon,
            history_size,
            min_window,
            axis_histograms,
        )?;
        let snapshot = frozen(reference.as_deref())?;
        let observation = observation.map(|layout| layout.clone());
        let state = core::PairTracker::new(
            observation.as_ref().map(|layout| layout.core.clone()),
            action.core.clone(),
            encoder,
            config,
            snapshot,
        )?;
        let known = OnceLock::new();
        if let Some(layout) = observation {
            // A fresh cell is empty, so this cannot fail.
            drop(known.set(layout));
        }
        Ok(Self {
            observation: known,
            action: action.clone(),
            reference,
            rows: AtomicBool::new(state.keeps_rows()),
            state: Mutex::new(state),
        })
    }

    /// Sets the axes that an encoder's first result decides.
    fn define_observation(&self, layout: PyRef<'_, Layout>) -> PyResult<()> {
        let mut state = self.lock();
        state.define_observation(layout.core.clone())?;
        self.rows.store(state.keeps_rows(), Ordering::Relaxed);
        drop(self.observation.set(layout.clone()));
        Ok(())
    }

    /// The axes of the observation; None until an encoder has decided them.
    #[getter]
    fn observation(&self) -> Option<Layout> {
        self.observation.get().cloned()
    }

    /// The name of the encoder; None where each scalar has an axis.
    #[getter]
    fn encoder(&self) -> Option<String> {
        self.lock().encoder().map(Into::into)
    }

    /// The axes of the action.
    #[getter]
    fn action(&self) -> Layout {
        self.action.clone()
    }

    /// Takes the observation that the next action answers.
    ///
    /// One that has no cell (a NaN, a wrong shape) is an error only for the `choose` that would
    /// count it: nobody acts on the last observation of an episode.
    fn observe(&self, observation: &Bound<'_, PyAny>) -> PyResult<()> {
        let observed = self.encoded(observation);
        let mut state = self.lock();
        state.forget();
        state.observe(observed?);
        Ok(())
    }

    /// The next pair is the first of an episode.
    fn begin_episode(&self) {
        self.lock().begin_episode();
    }

    /// Takes the action on the waiting observation; without one there will be no pair.
    ///
    /// Raises:
    ///     TypeError: The observation or action is not made of real numbers.
    ///     ValueError: One of them has a NaN, a wrong shape or a value outside its space.
    fn choose(&self, action: &Bound<'_, PyAny>) -> PyResult<()> {
        // Encoded before the lock is taken, because it may run Python code.
        let mut row = Row::new();
        let encoded = self.encode(&self.action, action, &mut row);
        let mut state = self.lock();
        match state.observed() {
            None => return Ok(()),
            Some(Observed::Refused {
                message,
                wrong_type,
            }) => {
                return Err(refusal(message.clone(), *wrong_type));
            }
            Some(Observed::Cell { .. }) => {}
        }
        let (key, flow) = encoded?;
        state.choose(key, flow, row);
        Ok(())
    }

    /// Counts the waiting pair and takes the next observation.
    ///
    /// Returns:
    ///     KL divergence, its mean and standard deviation over the history, its observation part
    ///     and its policy part, the noise floor, and the divergence beyond it, in nats.
    fn advance(&self, observation: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        // Encoded before the lock is taken, because it may run Python code. Where that fails for
        // good, the pair has happened all the same, and nothing waits.
        let observed = self.encoded(observation);
        let mut state = self.lock();
        let report = state.count()?;
        state.observe(observed?);
        Ok(numbers(&report))
    }

    /// Counts the waiting pair and waits for `observe`; returns what `advance` returns.
    fn count(&self) -> PyResult<Numbers> {
        Ok(numbers(&self.lock().count()?))
    }

    /// Forgets what waits, so that the next action makes no pair.
    fn forget(&self) {
        self.lock().forget();
    }

    /// Counts one pair at once; returns what `advance` returns.
    fn update(
        &self,
        observation: &Bound<'_, PyAny>,
        action: &Bound<'_, PyAny>,
    ) -> PyResult<Numbers> {
        let Some(layout) = self.observation.get() else {
            return Err(PyValueError::new_err(
                "the observation axes are not defined yet; call define_observation first",
            ));
        };
        let (mut row, mut action_row) = (Row::new(), Row::new());
        let (key, flow) = self.encode(layout, observation, &mut row)?;
        let (action, action_flow) = self.encode(&self.action, action, &mut action_row)?;
        let mut state = self.lock();
        state.observe(Observed::Cell { key, flow, row });
        state.choose(action, action_flow, action_row);
        Ok(numbers(&state.count()?))
    }

    /// The keys of the waiting observation and action; None where there is none.
    fn waiting(&self) -> (Option<u128>, Option<u128>) {
        let state = self.lock();
        let observation = match state.observed() {
            Some(Observed::Cell { key, .. }) => Some(key.0),
            _ => None,
        };
        (observation, state.chosen().map(|key| key.0))
    }

    /// What the newest pair reported; the form is that of `advance`.
    fn report(&self) -> Numbers {
        numbers(&self.lock().drift().report())
    }

    /// Current value, moments, counts and readiness by name.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.lock().statistics();
        by_name(py, &statistics)
    }

    /// Whether the windows are full.
    #[getter]
    fn ready(&self) -> bool {
        self.lock().drift().ready()
    }

    /// Whether the newest value is reported, and not 0.0 for want of evidence.
    #[getter]
    fn reported(&self) -> bool {
        self.lock().drift().reported()
    }

    /// From now on the detector counts every pair that this tracker counts, and lives here.
    ///
    /// Raises:
    ///     ValueError: There is a detector already, it feeds on another tracker, or its reference
    ///         has other axes.
    fn attach(slf: Py<Self>, detector: PyRef<'_, DriftDetector>) -> PyResult<()> {
        detector.attach_to(slf)
    }

    /// Whether the newest pair raised an alarm of the drift detector.
    #[getter]
    fn alarmed(&self) -> bool {
        self.lock().detector().is_some_and(Detector::alarmed)
    }

    /// The reported values, newest last, in nats.
    fn history(&self) -> Vec<f64> {
        self.lock().drift().history().values().collect()
    }

    /// How each axis differs between the two distributions, the largest excess first.
    ///
    /// Args:
    ///     most: At most this many axes; None for all of them.
    ///
    /// Returns:
    ///     A dict an axis with `axis` (its name), `kl` and `expected` (nats), `excess` (standard
    ///     deviations), `past` (earlier windows behind `expected`; 0 where independent pairs are
    ///     assumed), `shift` (of the mean, in units of the axis, or None), `grown` (the bin that has
    ///     grown most, as `low`, `high`, `before` and `now`, or None), `flow` and `fullest` (shares
    ///     of the newest pairs).
    #[pyo3(signature = (most=None) -> "list[dict[str, Any]]")]
    fn axis_moves<'py>(
        &self,
        py: Python<'py>,
        most: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let moves = self.lock().axis_moves();
        axis_moves(py, &moves, most)
    }

    /// Name, flow share and share of the fullest bin of the newest pairs, an axis an entry; empty
    /// where no histograms are kept.
    fn axis_shares(&self) -> Vec<(String, f64, f64)> {
        let shares = self.lock().axis_shares();
        let shares = shares.into_iter();
        shares
            .map(|share| (share.axis, share.flow, share.fullest))
            .collect()
    }

    /// Forgets pairs and values; keeps the reference and a waiting observation.
    fn reset(&self) -> PyResult<()> {
        let mut state = self.lock();
        state.reset()?;
        self.rows.store(state.keeps_rows(), Ordering::Relaxed);
        Ok(())
    }

    /// One distribution as a snapshot in JSON.
    #[pyo3(signature = (which="current"))]
    fn snapshot_json(&self, which: &str) -> PyResult<String> {
        let snapshot = self.lock().snapshot(self::which(which)?);
        Ok(snapshot.to_json()?)
    }

    /// The whole state as JSON; equal runs give equal text.
    fn state_json(&self) -> PyResult<String> {
        Ok(self.lock().state_json()?)
    }

    /// Continues from a state of a tracker with the same parameters, axes and reference.
    ///
    /// Raises:
    ///     ValueError: It is another tracker's state, or none at all; nothing is changed then.
    fn load_state_json(&self, text: &str) -> PyResult<()> {
        let mut state = self.lock();
        state.load_state_json(text)?;
        self.rows.store(state.keeps_rows(), Ordering::Relaxed);
        if self.observation.get().is_none()
            && let Some(core) = state.observation()
        {
            drop(self.observation.set(Layout::of_one_leaf(core.clone())));
        }
        Ok(())
    }

    #[classmethod]
    #[pyo3(signature = (
        observation, action, arguments: "dict[str, Any]", state, detector=None
    ) -> "PairTracker")]
    fn _restore(
        cls: &Bound<'_, PyType>,
        observation: Option<PyRef<'_, Layout>>,
        action: PyRef<'_, Layout>,
        arguments: &Bound<'_, PyDict>,
        state: &str,
        detector: Option<(String, Option<String>)>,
    ) -> PyResult<Py<PyAny>> {
        let tracker = cls.call((observation, action), Some(arguments))?;
        if let Some((config, reference)) = detector {
            let detector = detector::from_json(&config, reference.as_deref())?;
            tracker.cast::<Self>()?.get().lock().attach(detector)?;
        }
        tracker.call_method1("load_state_json", (state,))?;
        Ok(tracker.unbind())
    }

    #[pyo3(signature = () -> "tuple[Any, tuple[Any, ...]]")]
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(
        Bound<'py, PyAny>,
        (
            Option<Layout>,
            Layout,
            Bound<'py, PyDict>,
            String,
            Option<(String, Option<String>)>,
        ),
    )> {
        let this = slf.get();
        let (config, encoder, text, detector) = {
            let state = this.lock();
            (
                state.drift().config().clone(),
                state.encoder().map(String::from),
                state.state_json()?,
                state.detector().map(detector::to_json).transpose()?,
            )
        };
        let reference = this.reference.as_deref();
        let arguments = keywords(slf.py(), &config, reference, encoder.as_deref())?;
        let restore = slf.get_type().getattr("_restore")?;
        let layouts = (this.observation(), this.action());
        let parts = (layouts.0, layouts.1, arguments, text, detector);
        Ok((restore, parts))
    }
}
