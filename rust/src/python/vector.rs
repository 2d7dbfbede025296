//! The tracker of the rows that the vector environment wrappers step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use numpy::PyArray1;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use super::arrays::{self, Batch};
use super::detector::{self, DriftDetector};
use super::layout::Layout;
use super::tracker::{axis_moves, by_name, config, frozen, keywords, observed, refusal, which};
use crate::drift::Report;
use crate::error;
use crate::layout::Key;
use crate::row::Row;
use crate::tracker::Observed;
use crate::vector::{self as core, Next};

/// Row, key, flow, and the histogram bin of each axis.
type Chosen = (usize, Key, bool, Row);
type Columns<'py> = Vec<Bound<'py, PyArray1<f64>>>;
type Masks<'py> = Vec<Bound<'py, PyArray1<bool>>>;

/// Counts the (observation, action) pairs of the rows of a batch: each row as a `PairTracker` of its
/// own would, or all rows in one distribution.
///
/// Batches are arrays whose first axis is the row, for spaces that are one array; else lists of one
/// value a row. Arrays are read without the interpreter's lock.
///
/// Args:
///     observation: Axes of the observation; None where a named encoder decides them later.
///     action: Axes of the action.
///     rows: Number of rows.
///     pooled: One distribution for all rows, entered in their order, with one value a step;
///         `window`, `lag` and `min_window` then count steps of all rows.
///     window: As the arguments below, see `PairTracker`.
///     lag: See there.
///     reference: See there.
///     encoder: See there.
///     epsilon: See there.
///     history_size: See there.
///     min_window: See there.
///     axis_histograms: See there.
///
/// Raises:
///     TypeError: An argument is of another type.
///     ValueError: An argument is out of its range, or the reference has other axes.
#[pyclass(frozen, module = "kl_proteus._core")]
pub(crate) struct VectorTracker {
    /// Set once; read without the lock while Python values are walked.
    observation: OnceLock<Layout>,
    action: Layout,
    reference: Option<String>,
    rows: usize,
    /// Whether histograms of the axes are kept; read without the lock.
    keeps_rows: AtomicBool,
    state: Mutex<core::VectorTracker>,
}

/// The observations of all rows, before or after they have been encoded.
enum Taken<'py> {
    Batch(Batch<'py>),
    Rows(Vec<Next>),
}

impl VectorTracker {
    pub(super) fn lock(&self) -> MutexGuard<'_, core::VectorTracker> {
        // A poisoned lock means a panic elsewhere; the counts behind it are whole numbers still.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode(
        &self,
        layout: &Layout,
        value: &Bound<'_, PyAny>,
        row: &mut Row,
    ) -> PyResult<(Key, bool)> {
        if self.keeps_rows.load(Ordering::Relaxed) {
            layout.encode_row(value, row)
        } else {
            layout.encode(value)
        }
    }

    /// What the rows are to observe. Faults of a value wait for the step that would count it.
    fn take<'py>(&self, observations: &Bound<'py, PyAny>) -> PyResult<Taken<'py>> {
        let py = observations.py();
        let undefined = || {
            PyValueError::new_err(
                "the observation axes are not defined yet; call define_observation first",
            )
        };
        if let Ok(list) = observations.cast::<PyList>() {
            if list.len() != self.rows {
                return Err(self.wrong_length("observations", list.len()));
            }
            let encodes = self.lock().encoder().is_some();
            let next = |value: Bound<'py, PyAny>| {
                if encodes && value.is_none() {
                    return Ok(Next::Nothing); // its encoder failed
                }
                let layout = self.observation.get().ok_or_else(undefined)?;
                let mut row = Row::new();
                let encoded = self.encode(layout, &value, &mut row);
                Ok(Next::Observed(observed(py, encoded, row)?))
            };
            return Ok(Taken::Rows(list.iter().map(next).collect::<PyResult<_>>()?));
        }
        let layout = self.observation.get().ok_or_else(undefined)?;
        let leaf = only_leaf(layout, "observations")?;
        match Batch::new(observations, self.rows, leaf) {
            Ok(batch) => Ok(Taken::Batch(batch)),
            Err(error) => {
                let refused = observed(py, Err(error), Row::new())?;
                Ok(Taken::Rows(vec![Next::Observed(refused); self.rows]))
            }
        }
    }

    fn wrong_length(&self, name: &str, got: usize) -> PyErr {
        PyValueError::new_err(format!(
            "{name} has {got} rows; expected {} of them",
            self.rows
        ))
    }

    /// Calls `work` without the interpreter's lock, with a function that says what a row observes.
    fn with_next<R: Send>(
        &self,
        py: Python<'_>,
        taken: &Taken<'_>,
        work: impl FnOnce(&mut core::VectorTracker, &NextOf<'_>) -> R + Send,
    ) -> R {
        match (taken, self.observation.get()) {
            (Taken::Batch(batch), Some(layout)) => {
                let (view, core) = (batch.view(), &layout.core);
                py.detach(|| {
                    let keeps_rows = self.keeps_rows.load(Ordering::Relaxed);
                    work(&mut self.lock(), &|row, scratch| {
                        let mut bins = Row::new();
                        let encoded = if keeps_rows {
                            let mut encoding = core.encode_row(scratch, &mut bins);
                            let read = view.read(row, &mut encoding);
                            read.and_then(|()| encoding.finish())
                        } else {
                            let mut encoding = core.encode(scratch);
                            let read = view.read(row, &mut encoding);
                            read.and_then(|()| encoding.finish())
                        };
                        match encoded {
                            Ok((key, flow)) => Next::Observed(Observed::Cell {
                                key,
                                flow,
                                row: bins,
                            }),
                            Err(error) => Next::Observed(Observed::Refused {
                                message: error.to_string(),
                                wrong_type: false,
                            }),
                        }
                    })
                })
            }
            (Taken::Rows(rows), _) => work(&mut self.lock(), &|row, _| rows[row].clone()),
            (Taken::Batch(_), None) => work(&mut self.lock(), &|_, _| Next::Nothing),
        }
    }

    /// The keys of the actions of the rows that wait for one; the error is that of the first row.
    fn encode_actions(&self, actions: &Bound<'_, PyAny>, waits: &[bool]) -> PyResult<Vec<Chosen>> {
        let mut chosen = Vec::with_capacity(self.rows);
        if let Ok(list) = actions.cast::<PyList>() {
            if list.len() != self.rows {
                return Err(self.wrong_length("actions", list.len()));
            }
            for (row, (value, _)) in list.iter().zip(waits).enumerate().filter(|x| *x.1.1) {
                let mut bins = Row::new();
                let encoded = self.encode(&self.action, &value, &mut bins);
                let (key, flow) = encoded.map_err(|error| at_row(actions.py(), row, error))?;
                chosen.push((row, key, flow, bins));
            }
            return Ok(chosen);
        }
        let leaf = only_leaf(&self.action, "actions")?;
        let batch = Batch::new(actions, self.rows, leaf)?;
        let (view, core) = (batch.view(), &self.action.core);
        let keeps_rows = self.keeps_rows.load(Ordering::Relaxed);
        let read = actions.py().detach(|| {
            let mut scratch = Vec::new();
            for row in (0..self.rows).filter(|&row| waits[row]) {
                let mut bins = Row::new();
                let encoded = if keeps_rows {
                    let mut encoding = core.encode_row(&mut scratch, &mut bins);
                    let read = view.read(row, &mut encoding);
                    read.and_then(|()| encoding.finish())
                } else {
                    let mut encoding = core.encode(&mut scratch);
                    let read = view.read(row, &mut encoding);
                    read.and_then(|()| encoding.finish())
                };
                let (key, flow) = encoded.map_err(|error| (row, error))?;
                chosen.push((row, key, flow, bins));
            }
            Ok::<_, (usize, error::Error)>(chosen)
        });
        read.map_err(|(row, error)| at_row(actions.py(), row, error.into()))
    }
}

type NextOf<'a> = dyn Fn(usize, &mut Vec<u8>) -> Next + Sync + 'a;

fn only_leaf<'a>(layout: &'a Layout, name: &str) -> PyResult<&'a crate::layout::Leaf> {
    layout.only_leaf().ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name} must be a list of one value a row, since their space is not one array"
        ))
    })
}

/// A refusal that says which row it is about; other errors as they are.
fn at_row(py: Python<'_>, row: usize, error: PyErr) -> PyErr {
    match observed(py, Err(error), Row::new()) {
        Ok(Observed::Refused {
            message,
            wrong_type,
        }) => refusal(format!("sub-environment {row}: {message}"), wrong_type),
        Ok(Observed::Cell { .. }) => PyValueError::new_err("an error without a message"),
        Err(error) => error,
    }
}

/// One column a number of a report, for each row.
fn columns(rows: usize) -> [Vec<f64>; Report::WIDTH] {
    std::array::from_fn(|_| vec![0.0; rows])
}

fn slices(columns: &mut [Vec<f64>; Report::WIDTH]) -> [&mut [f64]; Report::WIDTH] {
    columns.each_mut().map(Vec::as_mut_slice)
}

fn arrays_of(py: Python<'_>, columns: [Vec<f64>; Report::WIDTH]) -> Columns<'_> {
    let arrays = columns
        .into_iter()
        .map(|column| PyArray1::from_vec(py, column));
    arrays.collect()
}

#[pymethods]
impl VectorTracker {
    #[new]
    #[pyo3(signature = (
        observation, action, rows, *, pooled=false, window=None, lag=None, reference=None,
        encoder=None, epsilon=None, history_size=None, min_window=None, axis_histograms=None
    ))]
    fn new(
        observation: Option<PyRef<'_, Layout>>,
        action: PyRef<'_, Layout>,
        rows: usize,
        pooled: bool,
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
        let observation = observation.map(|layout| layout.clone());
        let state = core::VectorTracker::new(
            rows,
            pooled,
            observation.as_ref().map(|layout| layout.core.clone()),
            action.core.clone(),
            encoder,
            config,
            frozen(reference.as_deref())?,
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
            rows,
            keeps_rows: AtomicBool::new(state.keeps_rows()),
            state: Mutex::new(state),
        })
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.rows
    }

    /// Whether all rows are in one distribution.
    #[getter]
    fn pooled(&self) -> bool {
        self.lock().pooled()
    }

    /// Whether the observations of all rows are one array.
    #[getter]
    fn observes_arrays(&self) -> bool {
        let layout = self.observation.get();
        layout.is_some_and(|layout| layout.only_leaf().is_some())
    }

    /// Whether the actions of all rows are one array.
    #[getter]
    fn chooses_arrays(&self) -> bool {
        self.action.only_leaf().is_some()
    }

    /// Sets the axes that an encoder's first result decides.
    fn define_observation(&self, layout: PyRef<'_, Layout>) -> PyResult<()> {
        let mut state = self.lock();
        state.define_observation(&layout.core)?;
        self.keeps_rows.store(state.keeps_rows(), Ordering::Relaxed);
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

    /// Takes the observations that the next actions answer.
    ///
    /// Args:
    ///     observations: Of all rows; None in place of one whose encoder failed.
    ///     mask: The rows to take it for; None for all of them.
    ///     ended: Rows that have ended and whose next action the environment ignores.
    #[pyo3(signature = (observations, mask=None, ended=None))]
    fn observe(
        &self,
        observations: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        ended: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mask = mask
            .map(|mask| arrays::flags("mask", mask, self.rows))
            .transpose()?;
        let ended = ended
            .map(|ended| arrays::flags("ended", ended, self.rows))
            .transpose()?;
        let taken = self.take(observations);
        let among = |row: usize| mask.as_ref().is_none_or(|mask| mask[row]);
        match taken {
            Ok(taken) => self.with_next(observations.py(), &taken, |state, next| {
                let mut scratch = Vec::new();
                for row in (0..self.rows).filter(|&row| among(row)) {
                    let next = match &ended {
                        Some(ended) if ended[row] => Next::Ended,
                        _ => next(row, &mut scratch),
                    };
                    state.observe(row, next);
                }
            }),
            Err(error) => {
                let mut state = self.lock();
                for row in (0..self.rows).filter(|&row| among(row)) {
                    state.observe(row, Next::Nothing);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The next pair of each row of a mask is the first of an episode.
    fn begin_episodes(&self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let begins = arrays::flags("rows", rows, self.rows)?;
        let rows = begins.iter().enumerate().filter(|(_, begins)| **begins);
        self.lock().begin_episodes(rows.map(|(row, _)| row));
        Ok(())
    }

    /// Takes the actions on the waiting observations, of all rows or of none.
    ///
    /// Raises:
    ///     TypeError: An observation or action is not made of real numbers.
    ///     ValueError: One of them has a NaN, a wrong shape or a value outside its space.
    fn choose(&self, actions: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut waits = vec![false; self.rows];
        {
            let state = self.lock();
            for (row, waits) in waits.iter_mut().enumerate() {
                match state.observed(row) {
                    Some(Observed::Refused {
                        message,
                        wrong_type,
                    }) => {
                        let message = format!("sub-environment {row}: {message}");
                        return Err(refusal(message, *wrong_type));
                    }
                    observed => *waits = observed.is_some(),
                }
            }
        }
        if waits.contains(&true) {
            // Encoded without the lock, because it may run Python code.
            let chosen = self.encode_actions(actions, &waits)?;
            self.lock().choose(chosen);
        }
        Ok(())
    }

    /// Counts the waiting pairs and takes the next observations.
    ///
    /// Args:
    ///     observations: As in `observe`.
    ///     ended: Rows that have ended and whose next action the environment ignores.
    ///     every: Report for rows too whose action was ignored.
    ///
    /// Returns:
    ///     For each number of a report, in the order of `PairTracker.advance`, a fresh float64 array
    ///     of one value a row, then 1.0 for the alarms of a drift detector if one is attached, and
    ///     after all of them as many masks of the rows that report; the others hold 0.0.
    #[pyo3(signature = (observations, ended=None, *, every=false))]
    fn advance<'py>(
        &self,
        observations: &Bound<'py, PyAny>,
        ended: Option<&Bound<'py, PyAny>>,
        every: bool,
    ) -> PyResult<(Columns<'py>, Masks<'py>)> {
        let py = observations.py();
        let ended = ended
            .map(|ended| arrays::flags("ended", ended, self.rows))
            .transpose()?;
        // Where reading fails for good, the pairs have happened all the same, and nothing waits.
        let (taken, failure) = match self.take(observations) {
            Ok(taken) => (taken, None),
            Err(error) => (Taken::Rows(vec![Next::Nothing; self.rows]), Some(error)),
        };
        let mut columns = columns(self.rows);
        let mut reports = vec![true; self.rows];
        let alarms = self.with_next(py, &taken, |state, next| {
            if !every && !state.pooled() {
                for (row, reports) in reports.iter_mut().enumerate() {
                    *reports = !state.ended(row);
                }
            }
            let next = |row: usize, scratch: &mut Vec<u8>| match &ended {
                Some(ended) if ended[row] => Next::Ended,
                _ => next(row, scratch),
            };
            state.advance(next, every, &mut slices(&mut columns))?;
            Ok::<_, error::Error>(state.alarms())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        let mut arrays = arrays_of(py, columns);
        arrays.extend(alarms.map(|alarms| {
            let numbers = alarms
                .into_iter()
                .map(|alarmed| f64::from(u8::from(alarmed)));
            PyArray1::from_iter(py, numbers)
        }));
        let masks = arrays.iter().map(|_| PyArray1::from_slice(py, &reports));
        let masks = masks.collect();
        Ok((arrays, masks))
    }

    /// Forgets what waits, so that the next actions make no pairs.
    fn forget(&self) {
        self.lock().forget();
    }

    /// What the newest pairs reported; the form is that of the arrays of `advance`, without alarms.
    fn report<'py>(&self, py: Python<'py>) -> Columns<'py> {
        let mut columns = columns(self.rows);
        self.lock().report(&mut slices(&mut columns));
        arrays_of(py, columns)
    }

    /// From now on a copy of the detector counts the pairs of each row, and lives here; where all
    /// rows are in one distribution, the detector itself counts them.
    ///
    /// Raises:
    ///     ValueError: There are detectors already, it feeds on another tracker, or its reference
    ///         has other axes.
    fn attach(slf: Py<Self>, detector: PyRef<'_, DriftDetector>) -> PyResult<()> {
        detector.attach_to_rows(slf)
    }

    /// The keys of the waiting observation and action of each row; None where there is none.
    fn waiting(&self) -> Vec<(Option<u128>, Option<u128>)> {
        let state = self.lock();
        let waits = |row| {
            let observation = match state.observed(row) {
                Some(Observed::Cell { key, .. }) => Some(key.0),
                _ => None,
            };
            (observation, state.chosen(row).map(|key| key.0))
        };
        (0..self.rows).map(waits).collect()
    }

    /// The rows that have ended and whose next action the environment ignores.
    fn ended<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        let state = self.lock();
        let ended = (0..self.rows).map(|row| state.ended(row)).collect();
        PyArray1::from_vec(py, ended)
    }

    /// Current value, moments, counts and readiness by name, for each row or once for all.
    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let statistics = self.lock().statistics();
        statistics.iter().map(|one| by_name(py, one)).collect()
    }

    /// Whether the windows are full, and whether the newest value is reported: for each row, the
    /// same for all where they are pooled.
    fn evidence<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyArray1<bool>>, Bound<'py, PyArray1<bool>>) {
        let state = self.lock();
        let drifts = (0..self.rows).filter_map(|row| state.tracker(row));
        let (ready, reported) = drifts
            .map(|tracker| (tracker.drift().ready(), tracker.drift().reported()))
            .unzip();
        (
            PyArray1::from_vec(py, ready),
            PyArray1::from_vec(py, reported),
        )
    }

    /// The reported values, newest last, in nats, for each row or once for all.
    fn histories(&self) -> Vec<Vec<f64>> {
        let state = self.lock();
        let histories = state.drifts().map(|drift| drift.history().values());
        histories.map(Iterator::collect).collect()
    }

    /// Forgets pairs and values; keeps the reference and waiting observations.
    fn reset(&self) -> PyResult<()> {
        let mut state = self.lock();
        state.reset()?;
        self.keeps_rows.store(state.keeps_rows(), Ordering::Relaxed);
        Ok(())
    }

    /// How each axis differs between the two distributions, as in `PairTracker.axis_moves`: a list
    /// for each row, or one for all rows.
    #[pyo3(signature = (most=None) -> "list[list[dict[str, Any]]]")]
    fn axis_moves<'py>(
        &self,
        py: Python<'py>,
        most: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let moves = self.lock().axis_moves();
        let lists = moves.iter().map(|moves| axis_moves(py, moves, most));
        PyList::new(py, lists.collect::<PyResult<Vec<_>>>()?)
    }

    /// One distribution as a snapshot in JSON: of a row, or of all rows.
    #[pyo3(signature = (which="current", row=None))]
    fn snapshot_json(&self, which: &str, row: Option<usize>) -> PyResult<String> {
        let which = self::which(which)?;
        let state = self.lock();
        let snapshot = match row.map(|row| state.tracker(row)) {
            None => state.snapshot(which)?,
            Some(Some(tracker)) => tracker.snapshot(which),
            Some(None) => return Err(PyValueError::new_err("there is no such row")),
        };
        Ok(snapshot.to_json()?)
    }

    /// The whole state as JSON; equal runs give equal text.
    fn state_json(&self) -> PyResult<String> {
        Ok(self.lock().state_json()?)
    }

    /// Continues from a state of a tracker with the same rows, parameters, axes and reference.
    ///
    /// Raises:
    ///     ValueError: It is another tracker's state, or none at all; nothing is changed then.
    fn load_state_json(&self, text: &str) -> PyResult<()> {
        let mut state = self.lock();
        state.load_state_json(text)?;
        self.keeps_rows.store(state.keeps_rows(), Ordering::Relaxed);
        if self.observation.get().is_none()
            && let Some(core) = state.observation()
        {
            drop(self.observation.set(Layout::of_one_leaf(core.clone())));
        }
        Ok(())
    }

    #[classmethod]
    #[pyo3(signature = (
        observation, action, rows, arguments: "dict[str, Any]", state, detector=None
    ) -> "VectorTracker")]
    fn _restore(
        cls: &Bound<'_, PyType>,
        observation: Option<PyRef<'_, Layout>>,
        action: PyRef<'_, Layout>,
        rows: usize,
        arguments: &Bound<'_, PyDict>,
        state: &str,
        detector: Option<(String, Option<String>)>,
    ) -> PyResult<Py<PyAny>> {
        let tracker = cls.call((observation, action, rows), Some(arguments))?;
        if let Some((config, reference)) = detector {
            let detector = detector::from_json(&config, reference.as_deref())?;
            tracker.cast::<Self>()?.get().lock().attach(&detector)?;
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
            usize,
            Bound<'py, PyDict>,
            String,
            Option<(String, Option<String>)>,
        ),
    )> {
        let this = slf.get();
        let (config, pooled, encoder, text, detector) = {
            let state = this.lock();
            (
                state.config().clone(),
                state.pooled(),
                state.encoder().map(String::from),
                state.state_json()?,
                // Those of the other rows have the same parameters and reference.
                state.detector(0).map(detector::to_json).transpose()?,
            )
        };
        let reference = this.reference.as_deref();
        let arguments = keywords(slf.py(), &config, reference, encoder.as_deref())?;
        arguments.set_item("pooled", pooled)?;
        let restore = slf.get_type().getattr("_restore")?;
        Ok((
            restore,
            (
                this.observation(),
                this.action(),
                this.rows,
                arguments,
                text,
                detector,
            ),
        ))
    }
}
