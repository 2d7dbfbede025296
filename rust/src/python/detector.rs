//! The drift detector, on its own or as it watches a tracker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::arguments::{number, whole};
use super::arrays::{Sink, as_array, scalars, shape_text};
use super::named::shown;
use super::tracker::PairTracker;
use super::vector::VectorTracker;
use crate::detector::{self as core, Detector, DetectorConfig, Part, PerPart};
use crate::drift::LONGEST;
use crate::error::{self, Error};
use crate::layout::Key;
use crate::snapshot::Snapshot;
use crate::tracker::PairTracker as CoreTracker;

/// Where a detector lives.
enum Home {
    Own(Box<Detector>),
    /// In the tracker that feeds it.
    Tracker(Py<PairTracker>),
    /// In the tracker of a row of the batch that feeds it, or in that of all rows.
    Row(Py<VectorTracker>, usize),
}

/// Watches a stream of pairs for a change of behaviour.
///
/// Args:
///     false_alarm_every: How many pairs should lie between two false alarms.
///     window: Newest pairs that are compared with the reference.
///     reference: A snapshot (JSON) in place of the first pairs.
///     reference_windows: Windows that make up the reference otherwise.
///     calibration_windows: Windows after it that the level without change is learned from.
///     parts: What is watched.
///     every: Pairs between two comparisons; None is a fortieth of the window.
///     fast: Whether the likelihood-ratio CUSUM watches as well.
///     epsilon: Pseudocount of each occupied cell.
///     max_alarms: How many alarms are remembered.
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or the reference cannot be used.
#[pyclass(frozen, module = "kl_proteus._core")]
pub(crate) struct DriftDetector(Mutex<Home>);

impl DriftDetector {
    fn lock(&self) -> MutexGuard<'_, Home> {
        // A poisoned lock means a panic elsewhere; the counts behind it are whole numbers still.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f`, which must run no Python, with the detector.
    fn with<R>(&self, f: impl FnOnce(&mut Detector) -> R) -> PyResult<R> {
        match &mut *self.lock() {
            Home::Own(detector) => Ok(f(detector)),
            Home::Tracker(tracker) => match tracker.get().lock().detector_mut() {
                Some(detector) => Ok(f(detector)),
                None => Err(missing()),
            },
            Home::Row(tracker, row) => match tracker.get().lock().detector_mut(*row) {
                Some(detector) => Ok(f(detector)),
                None => Err(missing()),
            },
        }
    }

    /// Calls `f`, which must run no Python, with a detector that nothing else feeds.
    fn with_own<R>(&self, f: impl FnOnce(&mut Detector) -> R) -> PyResult<R> {
        match &mut *self.lock() {
            Home::Own(detector) => Ok(f(detector)),
            Home::Tracker(_) | Home::Row(..) => Err(attached()),
        }
    }

    /// Moves the detector into a tracker, which feeds it from then on.
    pub(super) fn attach_to(&self, tracker: Py<PairTracker>) -> PyResult<()> {
        let mut home = self.lock();
        let Home::Own(detector) = &*home else {
            return Err(attached());
        };
        tracker.get().lock().check_detector(detector)?;
        if let Home::Own(detector) = std::mem::replace(&mut *home, Home::Tracker(tracker))
            && let Home::Tracker(tracker) = &*home
        {
            tracker.get().lock().attach(detector)?;
        }
        Ok(())
    }

    /// Copies the detector into the tracker of each row. Where all rows are in one, it lives there.
    pub(super) fn attach_to_rows(&self, tracker: Py<VectorTracker>) -> PyResult<()> {
        let mut home = self.lock();
        let Home::Own(detector) = &*home else {
            return Err(attached());
        };
        let pooled = {
            let mut state = tracker.get().lock();
            state.attach(detector)?;
            state.pooled()
        };
        if pooled {
            *home = Home::Row(tracker, 0);
        }
        Ok(())
    }
}

fn attached() -> PyErr {
    PyValueError::new_err(
        "the drift detector is attached to a wrapper, which feeds it; make another one",
    )
}

fn missing() -> PyErr {
    PyValueError::new_err("the tracker has no drift detector")
}

/// Takes keys; remembers the first scalar that is none.
struct Keys {
    keys: Vec<Key>,
    wrong: Option<String>,
}

impl Sink for Keys {
    fn real(&mut self, x: f64) -> error::Result<()> {
        self.wrong.get_or_insert_with(|| format!("{x:?}"));
        Ok(())
    }

    fn integer(&mut self, x: i128) -> error::Result<()> {
        match u128::try_from(x) {
            Ok(key) => self.keys.push(Key(key)),
            Err(_) => {
                self.wrong.get_or_insert_with(|| x.to_string());
            }
        }
        Ok(())
    }

    fn content(&mut self, hash: u128) -> error::Result<()> {
        self.keys.push(Key(hash));
        Ok(())
    }
}

/// The keys in a 1-D array of integers.
fn keys(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    let array = as_array(value)?;
    let expected = "a 1-D array of integers of at least 0";
    if array.shape().len() != 1 {
        let shape = shape_text(array.shape());
        return Err(PyValueError::new_err(format!(
            "{name} must be {expected}, got one of shape {shape}"
        )));
    }
    let mut sink = Keys {
        keys: Vec::with_capacity(array.len()),
        wrong: None,
    };
    let refused = |got: String| format!("{name} must be {expected}, got {got}");
    let kind = array.dtype().kind();
    let is_empty_list = array.len() == 0;
    if !(matches!(kind, b'i' | b'u' | b'b') || is_empty_list) || !scalars(&array, &mut sink)? {
        let got = format!("dtype {}", array.dtype());
        return Err(PyTypeError::new_err(refused(got)));
    }
    match sink.wrong {
        None => Ok(sink.keys),
        Some(value) => Err(PyValueError::new_err(refused(value))),
    }
}

/// Pairs of keys, read from two arrays of integers.
#[pyclass(frozen, module = "kl_proteus._core")]
pub(crate) struct KeyPairs {
    observations: Vec<Key>,
    actions: Vec<Key>,
}

#[pymethods]
impl KeyPairs {
    #[new]
    fn new(observation_keys: &Bound<'_, PyAny>, action_keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        let observations = keys("observation_keys", observation_keys)?;
        let actions = keys("action_keys", action_keys)?;
        if observations.len() != actions.len() {
            return Err(Error::Length {
                place: "action_keys".into(),
                expected: observations.len(),
                got: actions.len(),
            }
            .into());
        }
        Ok(Self {
            observations,
            actions,
        })
    }

    fn __len__(&self) -> usize {
        self.observations.len()
    }
}

type Values = (f64, f64, f64);

fn values(values: PerPart<f64>) -> Values {
    (values.observation, values.policy, values.joint)
}

fn key(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Key> {
    if let Ok(key) = value.extract::<u128>() {
        return Ok(Key(key));
    }
    let message = format!(
        "{name} must be an integer from 0 to 2^128 - 1, got {}",
        shown(value)
    );
    Err(if value.hasattr("__index__")? {
        PyValueError::new_err(message)
    } else {
        PyTypeError::new_err(message)
    })
}

/// The words of the watched parts.
fn parts(value: &Bound<'_, PyAny>) -> PyResult<Vec<Part>> {
    let wrong = || {
        PyTypeError::new_err(format!(
            "parts must be a sequence of str, got {}",
            shown(value)
        ))
    };
    // A str would be taken for its letters.
    let words: Vec<String> = value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyException>(value.py()) {
            wrong()
        } else {
            error
        }
    })?;
    let read = |word: &String| word.parse::<Part>().map_err(PyErr::from);
    words.iter().map(read).collect()
}

fn snapshot(reference: Option<&str>) -> PyResult<Option<Arc<Snapshot>>> {
    let read = |text| {
        Snapshot::from_json(text)
            .map(Arc::new)
            .map_err(|error| PyValueError::new_err(format!("reference: {error}")))
    };
    reference.map(read).transpose()
}

#[pymethods]
impl DriftDetector {
    #[new]
    #[pyo3(signature = (
        *, false_alarm_every=None, window=None, reference=None, reference_windows=None,
        calibration_windows=None, parts=None, every=None, fast=false, epsilon=None, max_alarms=None
    ))]
    fn new(
        false_alarm_every: Option<&Bound<'_, PyAny>>,
        window: Option<&Bound<'_, PyAny>>,
        reference: Option<String>,
        reference_windows: Option<&Bound<'_, PyAny>>,
        calibration_windows: Option<&Bound<'_, PyAny>>,
        parts: Option<&Bound<'_, PyAny>>,
        every: Option<&Bound<'_, PyAny>>,
        fast: bool,
        epsilon: Option<&Bound<'_, PyAny>>,
        max_alarms: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let defaults = DetectorConfig::default();
        let size = |name: &str, value: Option<&Bound<'_, PyAny>>, default: u64| {
            // The ranges are those of the core, which has the last word.
            let expected = format!("an integer from 1 to {LONGEST}");
            value.map_or(Ok(default), |value| whole(name, &expected, value))
        };
        let config = DetectorConfig {
            false_alarm_every: false_alarm_every
                .map_or(Ok(defaults.false_alarm_every), |value| {
                    number("false_alarm_every", value)
                })?,
            window: size("window", window, defaults.window)?,
            reference_windows: size(
                "reference_windows",
                reference_windows,
                defaults.reference_windows,
            )?,
            calibration_windows: size(
                "calibration_windows",
                calibration_windows,
                defaults.calibration_windows,
            )?,
            parts: parts.map_or(Ok(defaults.parts), self::parts)?,
            every: every
                .map(|value| whole("every", "None or an integer from 1 to the window", value))
                .transpose()?,
            fast,
            epsilon: epsilon.map_or(Ok(defaults.epsilon), |value| number("epsilon", value))?,
            max_alarms: size("max_alarms", max_alarms, defaults.max_alarms)?,
        };
        let detector = Detector::new(config, snapshot(reference.as_deref())?)?;
        Ok(Self(Mutex::new(Home::Own(Box::new(detector)))))
    }

    /// Counts one pair of keys; whether it raises an alarm.
    fn update(&self, observation: &Bound<'_, PyAny>, action: &Bound<'_, PyAny>) -> PyResult<bool> {
        let observation = key("observation_key", observation)?;
        let action = key("action_key", action)?;
        Ok(self.with_own(|detector| detector.update(observation, action))??)
    }

    /// Counts pairs from `start` on in order, without the global lock; returns where it has stopped,
    /// which is at the end, or behind the first that raises an alarm.
    fn update_many(
        &self,
        py: Python<'_>,
        pairs: PyRef<'_, KeyPairs>,
        start: usize,
        stop_at_alarm: bool,
    ) -> PyResult<usize> {
        let (observations, actions) = (&pairs.observations, &pairs.actions);
        let count = |detector: &mut Detector| {
            for i in start..observations.len() {
                if detector.update(observations[i], actions[i])? && stop_at_alarm {
                    return Ok(i + 1);
                }
            }
            Ok::<_, Error>(observations.len())
        };
        // The detector's lock is free again before the global one is taken.
        Ok(py.detach(|| self.with_own(count))??)
    }

    /// The smallest p-value of the watched parts times their number; 1.0 until it is compared.
    #[getter]
    fn pvalue(&self) -> PyResult<f64> {
        self.with(|detector| detector.pvalue())
    }

    /// What the p-value must fall below.
    #[getter]
    fn threshold(&self) -> PyResult<f64> {
        self.with(|detector| detector.threshold())
    }

    /// The watched part that lies furthest above its level; None until it is compared.
    #[getter]
    fn part(&self) -> PyResult<Option<&'static str>> {
        self.with(|detector| detector.part().map(Part::name))
    }

    /// Whether the window is compared with the reference.
    #[getter]
    fn ready(&self) -> PyResult<bool> {
        self.with(|detector| detector.ready())
    }

    /// "reference", "calibration" or "watching".
    #[getter]
    fn phase(&self) -> PyResult<&'static str> {
        self.with(|detector| detector.phase().name())
    }

    /// Pairs counted.
    #[getter]
    fn steps(&self) -> PyResult<u64> {
        self.with(|detector| detector.steps())
    }

    /// Pairs until it is ready.
    #[getter]
    fn steps_until_ready(&self) -> PyResult<u64> {
        self.with(|detector| detector.steps_until_ready())
    }

    /// Whether the newest pair raised an alarm.
    #[getter]
    fn alarmed(&self) -> PyResult<bool> {
        self.with(|detector| detector.alarmed())
    }

    /// Alarms so far, forgotten ones included.
    #[getter]
    fn alarm_count(&self) -> PyResult<u64> {
        self.with(|detector| detector.alarm_count())
    }

    /// Evidence of the likelihood-ratio CUSUM, in nats.
    #[getter]
    fn log_likelihood_ratio(&self) -> PyResult<f64> {
        self.with(|detector| detector.log_likelihood_ratio())
    }

    /// The p-value of the observation, the policy and the joint part.
    fn pvalues(&self) -> PyResult<Values> {
        self.with(|detector| values(detector.pvalues()))
    }

    /// The divergence of the same parts when they were last compared, in nats.
    fn divergence(&self) -> PyResult<Values> {
        self.with(|detector| values(detector.divergence()))
    }

    /// The divergence of the same parts without change, in nats; None until it is known.
    fn expected(&self) -> PyResult<Option<Values>> {
        self.with(|detector| detector.expected().map(values))
    }

    /// The newest alarms as JSON, oldest first, at most `most`.
    #[pyo3(signature = (most=None))]
    fn alarms_json(&self, most: Option<usize>) -> PyResult<String> {
        let alarms: Vec<core::Alarm> = self.with(|detector| {
            let count = detector.alarms().count();
            let skipped = count - most.unwrap_or(count).min(count);
            detector.alarms().skip(skipped).cloned().collect()
        })?;
        serde_json::to_string(&alarms).map_err(|error| Error::malformed("the alarms", error).into())
    }

    /// Takes the next pairs as a new reference.
    fn rebase(&self) -> PyResult<()> {
        self.with(Detector::rebase)
    }

    /// The reference and its calibration as a snapshot in JSON.
    fn reference_json(&self) -> PyResult<String> {
        let snapshot = match &*self.lock() {
            Home::Own(detector) => detector.reference(),
            Home::Tracker(tracker) => tracker.get().lock().detector_reference(),
            Home::Row(tracker, row) => {
                let state = tracker.get().lock();
                state
                    .tracker(*row)
                    .and_then(CoreTracker::detector_reference)
            }
        };
        let snapshot = snapshot.ok_or_else(|| {
            PyValueError::new_err("the reference is not complete yet; see steps_until_ready")
        })?;
        Ok(snapshot.to_json()?)
    }

    /// The whole state as JSON; equal runs give equal text.
    fn state_json(&self) -> PyResult<String> {
        Ok(self.with(|detector| detector.state_json())??)
    }

    /// Continues from a state of a detector with the same parameters and reference.
    fn load_state_json(&self, text: &str) -> PyResult<()> {
        Ok(self.with(|detector| detector.load_state_json(text))??)
    }

    /// The view of the detector that watches a tracker.
    #[staticmethod]
    fn of_tracker(tracker: Py<PairTracker>) -> PyResult<Self> {
        if tracker.get().lock().detector().is_none() {
            return Err(missing());
        }
        Ok(Self(Mutex::new(Home::Tracker(tracker))))
    }

    /// The view of the detector that watches a row of a batch.
    #[staticmethod]
    fn of_row(tracker: Py<VectorTracker>, row: usize) -> PyResult<Self> {
        if tracker.get().lock().detector(row).is_none() {
            return Err(missing());
        }
        Ok(Self(Mutex::new(Home::Row(tracker, row))))
    }

    #[classmethod]
    fn _restore(
        _cls: &Bound<'_, PyType>,
        config: &str,
        reference: Option<&str>,
        state: &str,
    ) -> PyResult<Self> {
        let mut detector = from_json(config, reference)?;
        detector.load_state_json(state)?;
        Ok(Self(Mutex::new(Home::Own(detector))))
    }

    #[pyo3(signature = () -> "tuple[Any, tuple[Any, ...]]")]
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let py = slf.py();
        let (function, arguments) = match &*slf.get().lock() {
            Home::Own(detector) => {
                let (config, reference) = to_json(detector)?;
                let arguments = (config, reference, detector.state_json()?).into_pyobject(py)?;
                ("_restore", arguments.into_any())
            }
            Home::Tracker(tracker) => {
                let arguments = (tracker.clone_ref(py),).into_pyobject(py)?;
                ("of_tracker", arguments.into_any())
            }
            Home::Row(tracker, row) => {
                let arguments = (tracker.clone_ref(py), *row).into_pyobject(py)?;
                ("of_row", arguments.into_any())
            }
        };
        Ok((slf.get_type().getattr(function)?, arguments))
    }
}

/// The parameters and the given reference of a detector, as texts.
pub(super) fn to_json(detector: &Detector) -> error::Result<(String, Option<String>)> {
    let config = serde_json::to_string(detector.config())
        .map_err(|error| Error::malformed("the drift detector", error))?;
    let reference = detector.given_reference();
    let reference = reference.map(|snapshot| snapshot.to_json()).transpose()?;
    Ok((config, reference))
}

/// A detector before its first pair, from what [`to_json`] returned.
pub(super) fn from_json(config: &str, reference: Option<&str>) -> PyResult<Box<Detector>> {
    let config = serde_json::from_str(config)
        .map_err(|error| Error::malformed("the drift detector", error))?;
    Ok(Box::new(Detector::new(config, snapshot(reference)?)?))
}
