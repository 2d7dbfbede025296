//! Batches of sequences: arrays, lists, lists of lists or of arrays, and masks over them.

#![allow(clippy::inline_always)] // What is not inlined does not get wide registers.

use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple, PyTupleMethods};

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};

use super::arguments::is_unreal;
use super::arrays::{self, Grid, GridView, Role, Strip, as_array, changed, shape_text, type_name};
use crate::error::Error;
use crate::reduction::{Tokens, place};

/// The numbers or flags of one sequence.
pub(super) enum Row<'py> {
    /// With its length when it was checked, so that a change meanwhile does not go unnoticed.
    List(Bound<'py, PyList>, usize),
    /// Read already; flags are 0.0 and 1.0.
    Values(Vec<f64>),
    Array(Grid<'py>),
}

impl<'py> Row<'py> {
    fn of_list(list: Bound<'py, PyList>) -> Self {
        let length = list.len();
        Self::List(list, length)
    }

    fn open(&self, name: &str) -> PyResult<Reader<'_>> {
        Ok(match self {
            Self::List(list, length) => Reader::List(list, *length),
            Self::Values(values) => Reader::Strip(Strip::of(values)),
            Self::Array(grid) => Reader::Strip(grid.view(name)?.row(0)),
        })
    }

    /// Reads a list, where `keep` is true, with whatever Python code its items run.
    fn settle(
        &mut self,
        (name, sequence): (&str, Option<usize>),
        role: Role,
        keep: impl FnOnce(&mut [bool]) -> PyResult<()>,
    ) -> PyResult<()> {
        let Self::List(list, length) = self else {
            return Ok(());
        };
        let mut flags = vec![true; *length];
        let mut values = vec![0.0; *length];
        if role == Role::Mask {
            let known = zero_and_one(list.py());
            arrays::list_flags(list, 0, &mut flags, known, |item, token| {
                flag(item, || place(name, sequence, token))
            })?;
            for (value, flag) in values.iter_mut().zip(flags) {
                *value = f64::from(u8::from(flag));
            }
        } else {
            keep(&mut flags)?;
            arrays::list_numbers(list, 0, &flags, &mut values, |item, token| {
                number(item, "a real number", || place(name, sequence, token))
            })?;
        }
        *self = Self::Values(values);
        Ok(())
    }
}

/// The sequences of one argument.
pub(super) enum Batch<'py> {
    /// A single one: rank 1.
    One(Row<'py>),
    /// Each of its own length.
    Many(Vec<Row<'py>>),
    /// The rows of an array of rank 2.
    Grid(Grid<'py>),
}

impl<'py> Batch<'py> {
    /// Reads how an argument is laid out, not yet its values.
    pub(super) fn new(name: &'static str, value: &Bound<'py, PyAny>, role: Role) -> PyResult<Self> {
        if let Some(list) = as_list(value) {
            return Self::of_list(name, list, role);
        }
        let array = to_array(name, value)?;
        if array.dtype().kind() == b'O' {
            let plain = array.call_method0("tolist")?;
            return match plain.cast_into::<PyList>() {
                Ok(list) => Self::of_list(name, list, role),
                Err(_) => Err(PyTypeError::new_err(format!(
                    "{name} is of type {}; expected an array, or lists of numbers",
                    type_name(value)
                ))),
            };
        }
        let grid = Grid::new(name, array, role)?;
        match grid.shape().len() {
            1 => Ok(Self::One(Row::Array(grid))),
            2 => Ok(Self::Grid(grid)),
            _ => Err(PyValueError::new_err(format!(
                "{name} has shape {}; expected (tokens,) or (sequences, tokens)",
                shape_text(grid.shape())
            ))),
        }
    }

    fn of_list(name: &str, list: Bound<'py, PyList>, role: Role) -> PyResult<Self> {
        let nested = match list.get_item(0) {
            Ok(first) => is_sequence(&first)?,
            Err(_) => false,
        };
        if !nested {
            return Ok(Self::One(Row::of_list(list)));
        }
        let rows = list.iter().enumerate();
        let rows = rows.map(|(i, item)| row_of(&format!("{name}[{i}]"), &item, role));
        Ok(Self::Many(rows.collect::<PyResult<_>>()?))
    }

    /// Takes hold of lists and memory. No Python code may run while the result is in use.
    fn open(&self, name: &str) -> PyResult<Opened<'_>> {
        Ok(match self {
            Self::One(row) => Opened::One(row.open(name)?),
            Self::Many(rows) => {
                let rows = rows.iter().map(|row| row.open(name));
                Opened::Many(rows.collect::<PyResult<_>>()?)
            }
            Self::Grid(grid) => Opened::Grid(grid.view(name)?),
        })
    }

    /// Reads all lists, so that no item is left that could run Python code; numbers only where the
    /// mask, which is settled itself, keeps them.
    fn settle(&mut self, name: &str, role: Role, mask: Option<&Self>) -> PyResult<()> {
        let keep = |sequence: usize, keep: &mut [bool]| {
            let Some(mask) = mask else {
                return Ok(());
            };
            let reader = match mask {
                Self::One(row) => row.open("mask")?,
                Self::Many(rows) => rows[sequence].open("mask")?,
                Self::Grid(grid) => {
                    let view = grid.view("mask")?;
                    if sequence >= view.rows() {
                        return Err(changed("mask"));
                    }
                    Reader::Strip(view.row(sequence))
                }
            };
            let named = !matches!(mask, Self::One(_));
            match reader {
                Reader::Strip(strip) if strip.len() == keep.len() => {
                    strip.keep(0, keep).map_err(|(token, value)| {
                        mask_error("mask", named.then_some(sequence), token, value).into()
                    })
                }
                _ => Err(changed("mask")),
            }
        };
        match self {
            Self::One(row) => row.settle((name, None), role, |flags| keep(0, flags)),
            Self::Many(rows) => rows.iter_mut().enumerate().try_for_each(|(sequence, row)| {
                row.settle((name, Some(sequence)), role, |flags| keep(sequence, flags))
            }),
            Self::Grid(_) => Ok(()),
        }
    }
}

/// Opens batches that must be alike, and gives them to `run`, which must run no Python code.
///
/// Python code could free the memory that is being read. Where it takes some to read an item of a
/// list, all lists are read beforehand, and everything is opened and compared again.
pub(super) fn with_opened<'py, const N: usize, T>(
    mut batches: [(&'static str, Batch<'py>); N],
    mut mask: Option<Batch<'py>>,
    run: impl Fn([&Opened<'_>; N], Option<&Opened<'_>>) -> Result<T, Stop>,
) -> PyResult<T> {
    let attempt = |batches: &[(&'static str, Batch<'py>); N], mask: Option<&Batch<'py>>| {
        let opened = batches.iter().map(|(name, batch)| batch.open(name));
        let opened = opened.collect::<PyResult<Vec<_>>>()?;
        let mask = mask.map(|mask| mask.open("mask")).transpose()?;
        let name = batches[0].0;
        for (other, (other_name, _)) in opened.iter().zip(batches).skip(1) {
            opened[0].check_alike(name, other, other_name)?;
        }
        if let Some(mask) = &mask {
            opened[0].check_alike(name, mask, "mask")?;
        }
        run(std::array::from_fn(|i| &opened[i]), mask.as_ref())
    };
    match attempt(&batches, mask.as_ref()) {
        Ok(value) => return Ok(value),
        Err(Stop::Error(error)) => return Err(error),
        Err(Stop::NotPlain) => {}
    }
    if let Some(mask) = &mut mask {
        mask.settle("mask", Role::Mask, None)?;
    }
    for (name, batch) in &mut batches {
        batch.settle(name, Role::Numbers, mask.as_ref())?;
    }
    attempt(&batches, mask.as_ref()).map_err(|stop| match stop {
        Stop::Error(error) => error,
        Stop::NotPlain => changed(batches[0].0),
    })
}

/// Why reading ended early.
pub(super) enum Stop {
    Error(PyErr),
    /// At an item of a list that is not plain: reading it may run Python code, or fail.
    NotPlain,
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Error(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error.into())
    }
}

/// The sequences of one argument, in memory that stays as it is until Python code runs.
pub(super) enum Opened<'a> {
    One(Reader<'a>),
    Many(Vec<Reader<'a>>),
    Grid(GridView<'a>),
}

impl<'a> Opened<'a> {
    /// The number of sequences.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(rows) => rows.len(),
            Self::Grid(grid) => grid.rows(),
        }
    }

    /// Whether it is one sequence, and not a batch of one.
    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Reads one sequence.
    pub(super) fn reader(&self, sequence: usize) -> Reader<'a> {
        match self {
            Self::One(row) => *row,
            Self::Many(rows) => rows[sequence],
            Self::Grid(grid) => Reader::Strip(grid.row(sequence)),
        }
    }

    /// The memory, where it is a single block.
    pub(super) fn view(&self) -> Option<GridView<'a>> {
        match self {
            Self::One(Reader::Strip(strip)) => Some(strip.as_grid()),
            Self::Grid(grid) => Some(*grid),
            Self::One(Reader::List(..)) | Self::Many(_) => None,
        }
    }

    /// Refuses another argument that has not as many sequences with as many tokens.
    pub(super) fn check_alike(&self, name: &str, other: &Self, other_name: &str) -> PyResult<()> {
        if self.is_one() != other.is_one() || self.len() != other.len() {
            let text = |batch: &Self| match batch {
                Self::One(row) => format!("one sequence of {} tokens", row.len()),
                _ => format!("{} sequences", batch.len()),
            };
            return Err(PyValueError::new_err(format!(
                "{other_name} has {}, and {name} {}; expected the same shape",
                text(other),
                text(self)
            )));
        }
        // Without rows, none would show that they differ.
        if let (Self::Grid(own), Self::Grid(others)) = (self, other)
            && own.rows() == 0
            && own.columns() != others.columns()
        {
            return Err(PyValueError::new_err(format!(
                "{other_name} has shape (0, {}), and {name} (0, {}); expected the same shape",
                others.columns(),
                own.columns()
            )));
        }
        for sequence in 0..self.len() {
            let (got, expected) = (other.reader(sequence).len(), self.reader(sequence).len());
            if got != expected {
                let index = if self.is_one() {
                    String::new()
                } else {
                    format!("[{sequence}]")
                };
                return Err(PyValueError::new_err(format!(
                    "{other_name}{index} has {got} tokens, and {name}{index} {expected}; expected \
                     as many"
                )));
            }
        }
        Ok(())
    }
}

/// A list, or a tuple as a list.
fn as_list<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyList>> {
    if let Ok(list) = value.cast::<PyList>() {
        return Some(list.clone());
    }
    value.cast::<PyTuple>().ok().map(PyTupleMethods::to_list)
}

/// Whether an item of a list is a sequence of its own, and not a number.
fn is_sequence(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    if item.is_instance_of::<PyFloat>() || item.is_instance_of::<PyInt>() || item.is_none() {
        return Ok(false);
    }
    if item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>() {
        return Ok(true);
    }
    if item.is_instance_of::<PyString>() || item.is_instance_of::<PyBytes>() {
        return Ok(false);
    }
    match as_array(item) {
        Ok(array) => Ok(array.ndim() > 0),
        Err(error) if error.is_instance_of::<PyException>(item.py()) => Ok(false),
        Err(error) => Err(error),
    }
}

fn row_of<'py>(name: &str, item: &Bound<'py, PyAny>, role: Role) -> PyResult<Row<'py>> {
    if let Some(list) = as_list(item) {
        return Ok(Row::of_list(list));
    }
    if !is_sequence(item)? {
        return Err(PyTypeError::new_err(format!(
            "{name} is of type {}; expected a sequence, as the first item is",
            type_name(item)
        )));
    }
    let array = to_array(name, item)?;
    if array.ndim() != 1 {
        return Err(PyValueError::new_err(format!(
            "{name} has shape {}; expected (tokens,)",
            shape_text(array.shape())
        )));
    }
    if array.dtype().kind() == b'O' {
        let plain = array.call_method0("tolist")?;
        return Ok(Row::of_list(plain.cast_into::<PyList>()?));
    }
    Ok(Row::Array(Grid::new(name, array, role)?))
}

/// An argument as an array; a masked array is refused, because its mask would be lost.
pub(super) fn to_array<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    static MASKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    // `numpy.ma` is imported only where it can matter.
    if value.is_instance_of::<PyUntypedArray>()
        && !value.is_exact_instance_of::<PyUntypedArray>()
        && value.is_instance(MASKED.import(py, "numpy.ma", "MaskedArray")?)?
    {
        return Err(PyTypeError::new_err(format!(
            "{name} is a numpy.ma.MaskedArray; expected a plain array (pass its data, and the \
             negation of its mask as mask=)"
        )));
    }
    as_array(value).map_err(|error| unreadable(name, value, &error))
}

/// The error of an argument that NumPy cannot turn into an array.
fn unreadable(name: &str, value: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    let py = value.py();
    if !error.is_instance_of::<PyException>(py) {
        return error.clone_ref(py);
    }
    let message = format!(
        "{name} is of type {} and cannot be read as an array of numbers: {}",
        type_name(value),
        error.value(py)
    );
    if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(message)
    } else {
        PyTypeError::new_err(message)
    }
}

/// A number that is no plain float: an integer, a NumPy scalar, anything with `__float__`.
fn number(item: &Bound<'_, PyAny>, expected: &str, place: impl Fn() -> String) -> PyResult<f64> {
    if item.is_instance_of::<PyFloat>() {
        return item.extract();
    }
    let wrong_type = || {
        PyTypeError::new_err(format!(
            "{} is of type {}; expected {expected}",
            place(),
            type_name(item)
        ))
    };
    if is_unreal(item)? {
        return Err(wrong_type());
    }
    let py = item.py();
    item.extract::<f64>().map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type()
        } else if error.is_instance_of::<PyException>(py) {
            PyValueError::new_err(format!(
                "{} cannot be read as a number of 64 bits: {}",
                place(),
                error.value(py)
            ))
        } else {
            error
        }
    })
}

/// A number that is read without running Python code. The others, and those that are none, are left
/// to [`number`]. Not inlined, to keep the loops over plain floats short.
#[inline(never)]
fn plain_number(item: &Bound<'_, PyAny>) -> Result<f64, Stop> {
    // The float of a subtype is read as it is, whatever its `__float__` is.
    if item.is_instance_of::<PyFloat>() || item.is_exact_instance_of::<PyInt>() {
        return item.extract().map_err(|_| Stop::NotPlain);
    }
    Err(Stop::NotPlain)
}

fn flag(item: &Bound<'_, PyAny>, place: impl Fn() -> String) -> PyResult<bool> {
    static NUMPY_BOOL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let numpy_bool = NUMPY_BOOL.import(item.py(), "numpy", "bool")?;
    if item.is_instance_of::<PyBool>() || item.is_instance(numpy_bool)? {
        return item.is_truthy();
    }
    let value = number(item, "a bool, 0 or 1", &place)?;
    if value == 0.0 || value == 1.0 {
        return Ok(value == 1.0);
    }
    let value = if item.is_instance_of::<PyInt>() {
        item.str()?.to_string()
    } else {
        value.to_string()
    };
    let place = place();
    Err(Error::MaskValue { place, value }.into())
}

/// The integers that most masks consist of.
fn zero_and_one(py: Python<'_>) -> (&Bound<'_, PyInt>, &Bound<'_, PyInt>) {
    static NUMBERS: PyOnceLock<(Py<PyInt>, Py<PyInt>)> = PyOnceLock::new();
    let whole = |value: i32| {
        value
            .into_pyobject(py)
            .unwrap_or_else(|never| match never {})
    };
    let (zero, one) = NUMBERS.get_or_init(py, || (whole(0).unbind(), whole(1).unbind()));
    (zero.bind(py), one.bind(py))
}

/// Reads one sequence.
#[derive(Clone, Copy)]
pub(super) enum Reader<'a> {
    List(&'a Bound<'a, PyList>, usize),
    Strip(Strip<'a>),
}

impl Reader<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::List(_, length) => length,
            Self::Strip(strip) => strip.len(),
        }
    }

    /// Writes the numbers from `start` on; those of a list only where `keep` is true.
    pub(super) fn numbers(self, start: usize, keep: &[bool], out: &mut [f64]) -> Result<(), Stop> {
        match self {
            Self::Strip(strip) => strip.numbers(start, out),
            Self::List(list, _) => {
                arrays::list_numbers(list, start, keep, out, |item, _| plain_number(item))?;
            }
        }
        Ok(())
    }

    /// Writes which tokens from `start` on are kept.
    pub(super) fn flags(
        self,
        sequence: Option<usize>,
        start: usize,
        out: &mut [bool],
    ) -> Result<(), Stop> {
        match self {
            Self::Strip(strip) => strip
                .keep(start, out)
                .map_err(|(token, value)| mask_error("mask", sequence, token, value).into()),
            Self::List(list, _) => {
                let known = zero_and_one(list.py());
                arrays::list_flags(list, start, out, known, |item, _| {
                    match plain_number(item)? {
                        0.0 => Ok(false),
                        1.0 => Ok(true),
                        _ => Err(Stop::NotPlain),
                    }
                })
            }
        }
    }
}

fn mask_error(name: &str, sequence: Option<usize>, token: usize, value: String) -> Error {
    Error::MaskValue {
        place: place(name, sequence, token),
        value,
    }
}

/// The tokens of one sequence, from containers of any kind.
pub(super) struct MixedTokens<'a> {
    pub(super) policy: Reader<'a>,
    pub(super) reference: Reader<'a>,
    pub(super) mask: Option<Reader<'a>>,
    pub(super) sequence: Option<usize>,
}

impl Tokens for MixedTokens<'_> {
    type Error = Stop;

    fn len(&self) -> usize {
        self.policy.len()
    }

    fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    fn keep(&self, start: usize, keep: &mut [bool]) -> Result<(), Stop> {
        self.mask
            .map_or(Ok(()), |mask| mask.flags(self.sequence, start, keep))
    }

    fn log_ratios(&self, start: usize, keep: &[bool], log_ratios: &mut [f64]) -> Result<(), Stop> {
        let mut taken = [0.0; 128];
        for (part, (out, keep)) in log_ratios
            .chunks_mut(taken.len())
            .zip(keep.chunks(taken.len()))
            .enumerate()
        {
            let start = start + part * taken.len();
            let taken = &mut taken[..out.len()];
            self.policy.numbers(start, keep, out)?;
            self.reference.numbers(start, keep, taken)?;
            for (out, taken) in out.iter_mut().zip(taken) {
                *out -= *taken;
            }
        }
        Ok(())
    }

    fn pair(&self, token: usize) -> Result<(f64, f64), Stop> {
        let (mut policy, mut reference) = ([0.0], [0.0]);
        self.policy.numbers(token, &[true], &mut policy)?;
        self.reference.numbers(token, &[true], &mut reference)?;
        Ok((policy[0], reference[0]))
    }
}

/// The tokens of one sequence, all from arrays: no Python is needed to read them.
pub(super) struct ArrayTokens<'a> {
    pub(super) policy: Strip<'a>,
    pub(super) reference: Strip<'a>,
    pub(super) mask: Option<Strip<'a>>,
    pub(super) sequence: Option<usize>,
}

impl Tokens for ArrayTokens<'_> {
    type Error = Error;

    fn len(&self) -> usize {
        self.policy.len()
    }

    #[inline(always)]
    fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    #[inline(always)]
    fn keep(&self, start: usize, keep: &mut [bool]) -> Result<(), Error> {
        self.mask.map_or(Ok(()), |mask| {
            mask.keep(start, keep)
                .map_err(|(token, value)| mask_error("mask", self.sequence, token, value))
        })
    }

    #[inline(always)]
    fn log_ratios(&self, start: usize, _: &[bool], log_ratios: &mut [f64]) -> Result<(), Error> {
        self.policy.differences(self.reference, start, log_ratios);
        Ok(())
    }

    fn pair(&self, token: usize) -> Result<(f64, f64), Error> {
        let (mut policy, mut reference) = ([0.0], [0.0]);
        self.policy.numbers(token, &mut policy);
        self.reference.numbers(token, &mut reference);
        Ok((policy[0], reference[0]))
    }
}
