//! Reads the scalars of a Python value: the only file that touches array memory.
#![allow(
    unsafe_code,
    clippy::inline_always, // What is not inlined does not get wide registers.
)]

use std::cell::Cell;
use std::marker::PhantomData;

use half::f16;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyFloat, PyInt, PyList};

use crate::error::Result;
use crate::layout::{Encoding, Leaf, TakeBin};

/// What takes the scalars of a value, in C order. It never calls Python.
pub(super) trait Sink {
    fn real(&mut self, x: f64) -> Result<()>;
    fn integer(&mut self, x: i128) -> Result<()>;
    /// The hash of a value that has no scalars.
    fn content(&mut self, hash: u128) -> Result<()>;
    /// All scalars at once, where they are bytes that lie one after the other.
    #[inline]
    fn bytes(&mut self, scalars: &[u8]) -> Result<()> {
        scalars.iter().try_for_each(|&x| self.integer(x.into()))
    }
    /// The value lies outside the range of what an encoder read.
    fn mark_flow(&mut self) {}
}

impl<R: TakeBin> Sink for Encoding<'_, R> {
    #[inline]
    fn real(&mut self, x: f64) -> Result<()> {
        Encoding::real(self, x).map(drop)
    }

    #[inline]
    fn integer(&mut self, x: i128) -> Result<()> {
        Encoding::integer(self, x).map(drop)
    }

    fn content(&mut self, hash: u128) -> Result<()> {
        Encoding::content(self, hash)
    }

    fn mark_flow(&mut self) {
        Encoding::mark_flow(self);
    }
}

/// Gives the scalars of `value`, which should have the leaf's shape, to `sink`.
pub(super) fn read(value: &Bound<'_, PyAny>, leaf: &Leaf, sink: &mut impl Sink) -> PyResult<()> {
    // The commonest values of one scalar first. `PyIndex_Check` asks for a slot of the type, where
    // `hasattr("__index__")` would search attributes by name.
    let one_scalar = leaf.scalars() == 1;
    if one_scalar && value.is_instance_of::<PyFloat>() {
        return Ok(sink.real(value.extract()?)?);
    }
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return read_array(array, leaf, sink);
    }
    // SAFETY: `value` is a live object, and the call only reads its type.
    if one_scalar && unsafe { ffi::PyIndex_Check(value.as_ptr()) } != 0 {
        match value.extract::<i64>() {
            Ok(x) => return Ok(sink.integer(x.into())?),
            Err(error) if !error.is_instance_of::<PyException>(value.py()) => return Err(error),
            Err(_) => {}
        }
        if value.is_instance_of::<PyInt>() {
            // One that no 128 bits hold lies outside every space all the same.
            let outside = if value.lt(0)? { i128::MIN } else { i128::MAX };
            return Ok(sink.integer(value.extract().unwrap_or(outside))?);
        }
    }
    let converted = as_array(value).map_err(|error| unreadable(value, leaf, error))?;
    read_array(&converted, leaf, sink)
}

/// Words the failure of `numpy.asarray`; an interrupt is no fault of the value.
fn unreadable(value: &Bound<'_, PyAny>, leaf: &Leaf, error: PyErr) -> PyErr {
    let py = value.py();
    if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(format!(
            "{} is no array of shape {}: {error}",
            leaf.name(),
            shape_text(leaf.shape())
        ))
    } else if error.is_instance_of::<PyException>(py) {
        refused_type(leaf, &format!("{} ({error})", type_name(value)))
    } else {
        error
    }
}

pub(super) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .name()
        .map_or_else(|_| "an object".into(), |name| name.to_string())
}

fn refused_type(leaf: &Leaf, got: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{} has values of type {got}; expected real numbers of shape {}",
        leaf.name(),
        shape_text(leaf.shape())
    ))
}

pub(super) fn shape_text(shape: &[usize]) -> String {
    if let [length] = shape {
        return format!("({length},)");
    }
    let lengths: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("({})", lengths.join(", "))
}

/// `numpy.asarray(value)`, for lists, scalars, and arrays of other libraries.
pub(super) fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let asarray = ASARRAY.import(py, "numpy", "asarray")?;
    Ok(asarray.call1((value,))?.cast_into::<PyUntypedArray>()?)
}

fn read_array(
    array: &Bound<'_, PyUntypedArray>,
    leaf: &Leaf,
    sink: &mut impl Sink,
) -> PyResult<()> {
    let dtype = array.dtype();
    if !matches!(dtype.kind(), b'f' | b'i' | b'u' | b'b') {
        return Err(refused_dtype(leaf, &dtype));
    }
    let one_scalar = array.len() == 1 && leaf.scalars() == 1;
    if array.shape() != leaf.shape() && !one_scalar {
        return Err(PyValueError::new_err(format!(
            "{} has shape {}; expected {}",
            leaf.name(),
            shape_text(array.shape()),
            shape_text(leaf.shape())
        )));
    }
    if scalars(array, sink)? {
        Ok(())
    } else {
        Err(refused_dtype(leaf, &dtype))
    }
}

/// Gives every element of an array to `sink`; false, and nothing given, where they are no real
/// numbers.
pub(super) fn scalars(array: &Bound<'_, PyUntypedArray>, sink: &mut impl Sink) -> PyResult<bool> {
    let dtype = array.dtype();
    if dtype.is_native_byteorder() == Some(false) || !array.is_aligned() {
        return scalars(&native(array)?, sink);
    }
    let done = match (dtype.kind(), dtype.itemsize()) {
        (b'f', 4) => each(array, |x: f32| sink.real(x.into())),
        (b'f', 8) => each(array, |x: f64| sink.real(x)),
        (b'f', 2) => each(array, |x: f16| sink.real(x.to_f64())),
        (b'b' | b'u', 1) => match contiguous(array) {
            Some(scalars) => sink.bytes(scalars),
            None => each(array, |x: u8| sink.integer(x.into())),
        },
        (b'u', 2) => each(array, |x: u16| sink.integer(x.into())),
        (b'u', 4) => each(array, |x: u32| sink.integer(x.into())),
        (b'u', 8) => each(array, |x: u64| sink.integer(x.into())),
        (b'i', 1) => each(array, |x: i8| sink.integer(x.into())),
        (b'i', 2) => each(array, |x: i16| sink.integer(x.into())),
        (b'i', 4) => each(array, |x: i32| sink.integer(x.into())),
        (b'i', 8) => each(array, |x: i64| sink.integer(x.into())),
        // Extended precision exists on some platforms only.
        (b'f', _) => return scalars(&converted(array, "float64")?, sink),
        _ => return Ok(false),
    };
    done?;
    Ok(true)
}

fn refused_dtype(leaf: &Leaf, dtype: &Bound<'_, PyArrayDescr>) -> PyErr {
    let name = dtype
        .str()
        .map_or_else(|_| "an unknown dtype".into(), |text| text.to_string());
    refused_type(leaf, &name)
}

/// A copy in native byte order and aligned memory.
fn native<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let dtype = array.dtype().call_method1("newbyteorder", ("=",))?;
    converted(array, dtype)
}

/// A copy with another dtype, in an array of NumPy's own: not by a method, which a subclass could
/// have overridden to return anything.
fn converted<'py>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let copy = ARRAY.import(array.py(), "numpy", "array")?;
    Ok(copy.call1((array, dtype))?.cast_into::<PyUntypedArray>()?)
}

/// The elements of an array of bytes in C order, where they lie so.
fn contiguous<'a>(array: &'a Bound<'_, PyUntypedArray>) -> Option<&'a [u8]> {
    if array.is_empty() || !array.is_c_contiguous() {
        return None;
    }
    // SAFETY: the array is alive for as long as the borrow; `len` elements of one byte lie at
    // `data`, and sinks call no Python, so nothing frees or resizes the array meanwhile.
    unsafe {
        let data = (*array.as_array_ptr()).fields.data.cast_const().cast();
        Some(std::slice::from_raw_parts(data, array.len()))
    }
}

/// Calls `take` with every element in C order. The caller has matched `T` to the dtype.
fn each<T: Copy>(
    array: &Bound<'_, PyUntypedArray>,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    // SAFETY: the array is alive for as long as its `Bound` is, and `data` is its first element.
    let data = unsafe { (*array.as_array_ptr()).fields.data }
        .cast_const()
        .cast::<T>();
    if array.is_empty() {
        return Ok(());
    }
    if array.is_c_contiguous() {
        // SAFETY: `len` elements of the matched type lie one after the other, aligned and in
        // native order (checked by the caller); `take` calls no Python, so nothing frees or
        // resizes the array meanwhile.
        let values = unsafe { std::slice::from_raw_parts(data, array.len()) };
        return values.iter().try_for_each(|&x| take(x));
    }
    let (shape, strides) = (array.shape(), array.strides());
    let mut index = vec![0; shape.len()];
    loop {
        let offset: isize = index
            .iter()
            .zip(strides)
            .map(|(&i, &stride): (&usize, &isize)| i.cast_signed() * stride)
            .sum();
        // SAFETY: the index is inside the shape, so the strides (in bytes) lead to an element of
        // the array; alignment, order and lifetime as above.
        take(unsafe { *data.byte_offset(offset) })?;
        let Some(axis) = (0..shape.len())
            .rev()
            .find(|&axis| index[axis] + 1 < shape[axis])
        else {
            return Ok(());
        };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// What the elements of an array are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Real numbers.
    Numbers,
    /// Whether to keep each token.
    Mask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    F16,
    F32,
    F64,
    Bool,
    U8,
    U64,
    I8,
    I32,
    I64,
}

impl Element {
    /// What the elements of an array are; `None` where they cannot be read in place. It runs no
    /// Python code.
    fn of(array: &Bound<'_, PyUntypedArray>) -> Option<Self> {
        let dtype = array.dtype();
        if dtype.is_native_byteorder() == Some(false) || !array.is_aligned() {
            return None;
        }
        match (dtype.kind(), dtype.itemsize()) {
            (b'f', 2) => Some(Self::F16),
            (b'f', 4) => Some(Self::F32),
            (b'f', 8) => Some(Self::F64),
            (b'b', 1) => Some(Self::Bool),
            (b'u', 1) => Some(Self::U8),
            (b'u', 8) => Some(Self::U64),
            (b'i', 1) => Some(Self::I8),
            (b'i', 4) => Some(Self::I32),
            (b'i', 8) => Some(Self::I64),
            _ => None,
        }
    }

    fn serves(self, role: Role) -> bool {
        role == Role::Mask || matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::U64 | Self::I64 => 8,
        }
    }
}

/// An array whose elements can be read in place.
pub(super) struct Grid<'py> {
    array: Bound<'py, PyUntypedArray>,
    /// As they were when it was checked: Python code that runs later may change both.
    element: Element,
    rank: usize,
}

impl<'py> Grid<'py> {
    /// Any array of real numbers, or of a mask; copied only where its elements are of a kind that
    /// is not read in place. `name` is how messages call it.
    pub(super) fn new(name: &str, array: Bound<'py, PyUntypedArray>, role: Role) -> PyResult<Self> {
        let rank = array.ndim();
        if let Some(element) = Element::of(&array).filter(|element| element.serves(role)) {
            return Ok(Self {
                array,
                element,
                rank,
            });
        }
        let dtype = array.dtype();
        if !(is_real(&dtype)? || role == Role::Mask && dtype.kind() == b'b') {
            let expected = match role {
                Role::Numbers => "real numbers",
                Role::Mask => "bools, 0 or 1",
            };
            return Err(PyTypeError::new_err(format!(
                "{name} has elements of type {}; expected {expected}",
                dtype.str()?
            )));
        }
        Ok(Self {
            array: converted(&array, "float64")?,
            element: Element::F64,
            rank,
        })
    }

    /// The lengths of the axes.
    pub(super) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The smallest relative step of the element type.
    pub(super) fn resolution(&self) -> f64 {
        match self.element {
            Element::F16 => f16::EPSILON.to_f64(),
            Element::F32 => f32::EPSILON.into(),
            _ => f64::EPSILON,
        }
    }

    /// Whether the array is still what it was when it was checked.
    fn check_unchanged(&self, name: &str) -> PyResult<()> {
        if Element::of(&self.array) == Some(self.element) && self.array.ndim() == self.rank {
            return Ok(());
        }
        Err(changed(name))
    }

    /// The memory of the array, which may be of rank 1 or 2. No Python code may run for as long as
    /// the view is in use: it could free that memory, or change the shape or the dtype.
    pub(super) fn view(&self, name: &str) -> PyResult<GridView<'_>> {
        self.check_unchanged(name)?;
        // SAFETY: the array is alive for as long as its `Bound` is, and `data` is its first element.
        let data = unsafe { (*self.array.as_array_ptr()).fields.data };
        let (rows, columns, row_stride, stride) = match (self.array.shape(), self.array.strides()) {
            (&[columns], &[stride]) => (1, columns, 0, stride),
            (&[rows, columns], &[row_stride, stride]) => (rows, columns, row_stride, stride),
            _ => (0, 0, 0, 0),
        };
        Ok(GridView {
            data: data.cast_const().cast(),
            element: self.element,
            rows,
            columns,
            row_stride,
            stride,
            memory: PhantomData,
        })
    }

    /// Every element in C order.
    pub(super) fn to_vec(&self, name: &str) -> PyResult<Vec<f64>> {
        self.check_unchanged(name)?;
        let mut values = Vec::with_capacity(self.array.len());
        let mut push = |x: f64| {
            values.push(x);
            Ok(())
        };
        match self.element {
            Element::F16 => each(&self.array, |x: f16| push(x.to_f64())),
            Element::F32 => each(&self.array, |x: f32| push(x.into())),
            Element::F64 => each(&self.array, push),
            // Only masks have the other elements, and nobody asks for their numbers.
            Element::Bool
            | Element::U8
            | Element::U64
            | Element::I8
            | Element::I32
            | Element::I64 => Ok(()),
        }?;
        Ok(values)
    }
}

/// An array that holds a value of a leaf for each of several rows.
pub(super) struct Batch<'py> {
    array: Bound<'py, PyUntypedArray>,
    element: Element,
}

impl<'py> Batch<'py> {
    /// An array of shape `(rows, *leaf.shape())`, or what NumPy makes one of; copied only where its
    /// elements are of a kind that is not read in place.
    pub(super) fn new(value: &Bound<'py, PyAny>, rows: usize, leaf: &Leaf) -> PyResult<Self> {
        let array = match value.cast::<PyUntypedArray>() {
            Ok(array) => array.clone(),
            Err(_) => as_array(value).map_err(|error| unreadable(value, leaf, error))?,
        };
        let dtype = array.dtype();
        if !matches!(dtype.kind(), b'f' | b'i' | b'u' | b'b') {
            return Err(refused_dtype(leaf, &dtype));
        }
        let one_scalar = leaf.axes().len() == 1 && array.len() == rows;
        let fits = match array.shape() {
            [length, shape @ ..] => *length == rows && (shape == leaf.shape() || one_scalar),
            [] => false,
        };
        if !fits {
            let expected: Vec<usize> = [rows].iter().chain(leaf.shape()).copied().collect();
            return Err(PyValueError::new_err(format!(
                "{} has shape {} for all rows; expected {}",
                leaf.name(),
                shape_text(array.shape()),
                shape_text(&expected)
            )));
        }
        if let Some(element) = Element::of(&array) {
            return Ok(Self { array, element });
        }
        let array = match dtype.kind() {
            b'f' => converted(&array, "float64")?,
            // Only the shorter unsigned integers are not read in place, and all of these fit.
            _ if dtype.itemsize() < 8 => converted(&array, "int64")?,
            _ => native(&array)?,
        };
        match Element::of(&array) {
            Some(element) => Ok(Self { array, element }),
            None => Err(refused_dtype(leaf, &dtype)),
        }
    }

    /// The memory of the array. Python code that runs for as long as the view is in use must not
    /// change the array's shape or dtype; what it writes is read as it comes.
    pub(super) fn view(&self) -> BatchView<'_> {
        // SAFETY: the array is alive for as long as its `Bound` is, and `data` is its first element.
        let data = unsafe { (*self.array.as_array_ptr()).fields.data };
        let (shape, strides) = (self.array.shape(), self.array.strides());
        let size = self.element.size();
        let (mut width, mut contiguous) = (1, true);
        for (&length, &stride) in shape[1..].iter().zip(&strides[1..]).rev() {
            contiguous &= length == 1 || stride == (width * size).cast_signed();
            width *= length;
        }
        BatchView {
            data: data.cast_const().cast(),
            element: self.element,
            rows: shape[0],
            row_stride: strides[0],
            width,
            scattered: (!contiguous).then(|| (shape[1..].to_vec(), strides[1..].to_vec())),
            memory: PhantomData,
        }
    }
}

/// The memory of a [`Batch`], to be read without the interpreter; as [`GridView`], an array that
/// another thread writes to meanwhile is read as it comes.
pub(super) struct BatchView<'a> {
    data: *const u8,
    element: Element,
    rows: usize,
    row_stride: isize,
    width: usize,
    /// Shape and strides of a row, where its elements do not lie one after the other.
    scattered: Option<(Vec<usize>, Vec<isize>)>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: the view only reads memory, which is alive for `'a`.
unsafe impl Send for BatchView<'_> {}
// SAFETY: as above.
unsafe impl Sync for BatchView<'_> {}

impl BatchView<'_> {
    /// Gives the scalars of a row to `sink`, in C order.
    #[inline]
    pub(super) fn read(&self, row: usize, sink: &mut impl Sink) -> Result<()> {
        match self.element {
            Element::F32 => self.each(row, |x: f32| sink.real(x.into())),
            Element::F64 => self.each(row, |x: f64| sink.real(x)),
            Element::F16 => self.each(row, |x: f16| sink.real(x.to_f64())),
            Element::Bool | Element::U8 => self.each(row, |x: u8| sink.integer(x.into())),
            Element::U64 => self.each(row, |x: u64| sink.integer(x.into())),
            Element::I8 => self.each(row, |x: i8| sink.integer(x.into())),
            Element::I32 => self.each(row, |x: i32| sink.integer(x.into())),
            Element::I64 => self.each(row, |x: i64| sink.integer(x.into())),
        }
    }

    /// Calls `take` with every element of a row. The caller has matched `T` to the element.
    #[inline]
    fn each<T: Copy>(&self, row: usize, mut take: impl FnMut(T) -> Result<()>) -> Result<()> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let first = self
            .data
            .wrapping_byte_offset(row.cast_signed() * self.row_stride)
            .cast::<T>();
        let Some((shape, strides)) = &self.scattered else {
            for i in 0..self.width {
                // SAFETY: the row is inside the array and its `width` elements of the matched type
                // lie one after the other, aligned and in native order (`Element::of`); the array
                // is alive for as long as the view is.
                take(unsafe { first.add(i).read() })?;
            }
            return Ok(());
        };
        for i in 0..self.width {
            let (mut rest, mut offset) = (i, 0);
            for (&length, &stride) in shape.iter().zip(strides).rev() {
                offset += (rest % length).cast_signed() * stride;
                rest /= length;
            }
            // SAFETY: as above, with the array's own strides.
            take(unsafe { first.byte_offset(offset).read() })?;
        }
        Ok(())
    }
}

/// Flags, one a row.
pub(super) fn flags(name: &str, value: &Bound<'_, PyAny>, rows: usize) -> PyResult<Vec<bool>> {
    let array = match value.cast::<PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) => as_array(value)?,
    };
    let grid = Grid::new(name, array, Role::Mask)?;
    if grid.shape() != [rows] {
        return Err(PyValueError::new_err(format!(
            "{name} has shape {}; expected ({rows},)",
            shape_text(grid.shape())
        )));
    }
    let mut flags = vec![false; rows];
    let read = grid.view(name)?.row(0).keep(0, &mut flags);
    read.map_err(|(row, value)| {
        PyValueError::new_err(format!("{name}[{row}] is {value}; expected a bool, 0 or 1"))
    })?;
    Ok(flags)
}

/// The error about an argument that Python code changed while others were read.
pub(super) fn changed(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} was changed while the arguments were read; expected it to stay as it is"
    ))
}

/// Whether all values of a dtype are real numbers that have a nearest float64.
fn is_real(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<bool> {
    match dtype.kind() {
        b'f' | b'u' | b'i' => Ok(true),
        // bfloat16 and its kin, which other libraries register with NumPy.
        b'V' if !dtype.has_fields() && !dtype.has_subarray() => {
            let numpy = dtype.py().import("numpy")?;
            numpy
                .call_method1("can_cast", (dtype, "float64"))?
                .extract()
        }
        _ => Ok(false),
    }
}

/// The memory of an array of rank 1 or 2, to be read without the interpreter.
///
/// As with NumPy's own functions that release the interpreter, an array that another thread writes
/// to meanwhile is read as it comes; the borrow keeps it alive, and `resize` refuses an array that is
/// referred to (with `refcheck=False` the caller vouches for that).
#[derive(Clone, Copy)]
pub(super) struct GridView<'a> {
    data: *const u8,
    element: Element,
    rows: usize,
    columns: usize,
    row_stride: isize,
    stride: isize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: the view only reads memory, which is alive for `'a`.
unsafe impl Send for GridView<'_> {}

impl<'a> GridView<'a> {
    pub(super) fn rows(self) -> usize {
        self.rows
    }

    pub(super) fn columns(self) -> usize {
        self.columns
    }

    /// One sequence.
    pub(super) fn row(self, row: usize) -> Strip<'a> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        Strip {
            data: self
                .data
                .wrapping_byte_offset(row.cast_signed() * self.row_stride),
            element: self.element,
            length: self.columns,
            stride: self.stride,
            memory: PhantomData,
        }
    }
}

/// The same as `f16::to_f64`, without branches, so that a loop can use vector registers.
#[inline(always)]
fn half_to_double(x: f16) -> f64 {
    let bits = u32::from(x.to_bits());
    let (sign, exponent, rest) = ((bits & 0x8000) << 16, bits & 0x7c00, (bits & 0x7fff) << 13);
    // The exponents are biased by 15 and by 127; subnormal numbers become normal in passing.
    let finite = f32::from_bits(rest) * f32::from_bits((127 + 127 - 15) << 23);
    let special = f32::from_bits(rest | 0x7f80_0000);
    let magnitude = if exponent == 0x7c00 { special } else { finite };
    f64::from(f32::from_bits(magnitude.to_bits() | sign))
}

/// Elements of one type at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    data: *const u8,
    element: Element,
    length: usize,
    stride: isize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Strip<'a> {
    /// Numbers that were read already.
    pub(super) fn of(values: &'a [f64]) -> Self {
        Self {
            data: values.as_ptr().cast(),
            element: Element::F64,
            length: values.len(),
            stride: size_of::<f64>().cast_signed(),
            memory: PhantomData,
        }
    }

    pub(super) fn len(self) -> usize {
        self.length
    }

    /// As the only row.
    pub(super) fn as_grid(self) -> GridView<'a> {
        GridView {
            data: self.data,
            element: self.element,
            rows: 1,
            columns: self.length,
            row_stride: 0,
            stride: self.stride,
            memory: PhantomData,
        }
    }

    fn is_contiguous(self) -> bool {
        self.stride == self.element.size().cast_signed()
    }

    /// Converts the elements from `start` on. The caller has matched `T` to the element.
    #[inline(always)]
    fn gather<T: Copy, O>(self, start: usize, out: &mut [O], convert: impl Fn(T) -> O) {
        assert!(start <= self.length && out.len() <= self.length - start);
        let first = self
            .data
            .wrapping_byte_offset(start.cast_signed() * self.stride)
            .cast::<T>();
        if self.is_contiguous() {
            for (i, out) in out.iter_mut().enumerate() {
                // SAFETY: in bounds as asserted; of the matched type, aligned and in native order
                // as `Grid::new` made sure; alive for `'a`.
                *out = convert(unsafe { first.add(i).read() });
            }
        } else {
            for (i, out) in out.iter_mut().enumerate() {
                // SAFETY: as above, with the array's own stride.
                let item = unsafe { first.byte_offset(i.cast_signed() * self.stride).read() };
                *out = convert(item);
            }
        }
    }

    /// Writes the numbers from `start` on.
    #[inline(always)]
    pub(super) fn numbers(self, start: usize, out: &mut [f64]) {
        match self.element {
            Element::F16 => self.gather(start, out, half_to_double),
            Element::F32 => self.gather(start, out, |x: f32| f64::from(x)),
            Element::F64 => self.gather(start, out, |x: f64| x),
            Element::Bool | Element::U8 => self.gather(start, out, |x: u8| f64::from(x)),
            Element::U64 => self.gather(start, out, |x: u64| x as f64),
            Element::I8 => self.gather(start, out, |x: i8| f64::from(x)),
            Element::I32 => self.gather(start, out, |x: i32| f64::from(x)),
            Element::I64 => self.gather(start, out, |x: i64| x as f64),
        }
    }

    /// Writes the numbers from `start` on minus those of another strip.
    #[inline(always)]
    pub(super) fn differences(self, other: Self, start: usize, out: &mut [f64]) {
        let same = self.element == other.element && self.is_contiguous() && other.is_contiguous();
        match self.element {
            Element::F32 if same => self.subtract(other, start, out, |a: f32, b: f32| {
                f64::from(a) - f64::from(b)
            }),
            Element::F64 if same => self.subtract(other, start, out, |a: f64, b: f64| a - b),
            _ => {
                let mut taken = [0.0; 64];
                for (part, out) in out.chunks_mut(taken.len()).enumerate() {
                    let start = start + part * taken.len();
                    let taken = &mut taken[..out.len()];
                    self.numbers(start, out);
                    other.numbers(start, taken);
                    for (out, taken) in out.iter_mut().zip(taken) {
                        *out -= *taken;
                    }
                }
            }
        }
    }

    /// The caller has matched `T` to the elements of both, which are contiguous.
    #[inline(always)]
    fn subtract<T: Copy>(
        self,
        other: Self,
        start: usize,
        out: &mut [f64],
        difference: impl Fn(T, T) -> f64,
    ) {
        assert!(start <= self.length && out.len() <= self.length - start);
        assert!(start <= other.length && out.len() <= other.length - start);
        let (a, b) = (self.data.cast::<T>(), other.data.cast::<T>());
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: as in `gather`.
            *out = unsafe { difference(a.add(start + i).read(), b.add(start + i).read()) };
        }
    }

    /// Writes which tokens from `start` on are kept; the error is the place and value of an element
    /// that is neither 0 nor 1.
    #[inline(always)]
    pub(super) fn keep(
        self,
        start: usize,
        keep: &mut [bool],
    ) -> std::result::Result<(), (usize, String)> {
        let mut legal = true;
        match self.element {
            Element::Bool => self.gather(start, keep, |x: u8| x != 0),
            Element::U8 => self.select(start, keep, &mut legal, 0_u8, 1),
            Element::U64 => self.select(start, keep, &mut legal, 0_u64, 1),
            Element::I8 => self.select(start, keep, &mut legal, 0_i8, 1),
            Element::I32 => self.select(start, keep, &mut legal, 0_i32, 1),
            Element::I64 => self.select(start, keep, &mut legal, 0_i64, 1),
            Element::F16 => self.select(start, keep, &mut legal, f16::ZERO, f16::ONE),
            Element::F32 => self.select(start, keep, &mut legal, 0.0_f32, 1.0),
            Element::F64 => self.select(start, keep, &mut legal, 0.0_f64, 1.0),
        }
        if legal {
            return Ok(());
        }
        for i in start..start + keep.len() {
            let mut value = [0.0];
            self.numbers(i, &mut value);
            if value[0] != 0.0 && value[0] != 1.0 {
                return Err((i, self.shown(i, value[0])));
            }
        }
        Ok(())
    }

    /// An element for messages; its nearest float64 would not show all digits of the widest ones.
    #[cold]
    fn shown(self, index: usize, value: f64) -> String {
        let (mut signed, mut unsigned) = ([0], [0]);
        match self.element {
            Element::I64 => {
                self.gather(index, &mut signed, |x: i64| x);
                signed[0].to_string()
            }
            Element::U64 => {
                self.gather(index, &mut unsigned, |x: u64| x);
                unsigned[0].to_string()
            }
            _ => value.to_string(),
        }
    }

    #[inline(always)]
    fn select<T: Copy + PartialEq>(
        self,
        start: usize,
        keep: &mut [bool],
        legal: &mut bool,
        no: T,
        yes: T,
    ) {
        let illegal = Cell::new(0_u8);
        self.gather(start, keep, |x: T| {
            // No early exit, so that the loop can use vector registers.
            illegal.set(illegal.get() | u8::from(x != yes && x != no));
            x == yes
        });
        *legal = illegal.get() == 0;
    }
}

/// A loop worth wide vector registers. `run` and all that it calls in its inner loops must be
/// `#[inline(always)]` to gain from them.
pub(super) trait Loop {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a loop with wide vector registers where the machine has them. No operations are fused, so
/// results are the same on every machine.
#[inline]
pub(super) fn with_wide_registers<L: Loop>(work: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;

        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
        fn widest<L: Loop>(work: L) -> L::Output {
            work.run()
        }
        #[target_feature(enable = "avx2")]
        fn wide<L: Loop>(work: L) -> L::Output {
            work.run()
        }
        if has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("avx512bw") {
            // SAFETY: the machine has what `widest` is compiled for.
            return unsafe { widest(work) };
        }
        if has!("avx2") {
            // SAFETY: the machine has what `wide` is compiled for.
            return unsafe { wide(work) };
        }
    }
    work.run()
}

/// How CPython lays out a float.
#[repr(C)]
struct FloatObject {
    head: ffi::PyObject,
    value: f64,
}

/// How CPython lays out a list.
#[repr(C)]
struct ListObject {
    head: ffi::PyObject,
    size: ffi::Py_ssize_t,
    items: *const *mut ffi::PyObject,
    allocated: ffi::Py_ssize_t,
}

/// Whether floats and lists are laid out as above.
///
/// The stable ABI reaches their contents by a function call an item, which is most of the time of
/// reading a list. CPython has kept both layouts for as long as that ABI exists, but does not
/// promise them: so they are compared once, and elsewhere the functions are called.
fn has_known_layout(py: Python<'_>) -> bool {
    static KNOWN: PyOnceLock<bool> = PyOnceLock::new();
    *KNOWN.get_or_init(py, || compare_layout(py).unwrap_or(false))
}

fn compare_layout(py: Python<'_>) -> PyResult<bool> {
    let basic_size = |object: Bound<'_, PyAny>| {
        let size = object.get_type().getattr("__basicsize__")?;
        size.extract::<usize>()
    };
    let list = PyList::empty(py);
    if basic_size(PyFloat::new(py, 0.0).into_any())? != size_of::<FloatObject>()
        || basic_size(list.clone().into_any())? != size_of::<ListObject>()
    {
        return Ok(false);
    }
    // Long enough to be moved a few times.
    for i in 0..100_u8 {
        let value = f64::from(i).sqrt() - 5.0;
        list.append(PyFloat::new(py, value))?;
        for (at, item) in list.iter().enumerate() {
            // SAFETY: both are as large as the structures; `items` is followed only where the
            // length is where it was expected, and within it.
            let same = unsafe {
                let raw = &*list.as_ptr().cast::<ListObject>();
                raw.size == isize::from(i) + 1
                    && raw.allocated >= raw.size
                    && raw.items.add(at).read() == item.as_ptr()
                    && (*item.as_ptr().cast::<FloatObject>()).value == item.extract::<f64>()?
            };
            if !same {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// What an item of a list is to its reader.
enum Item<O> {
    /// Read, without running Python code.
    Plain(O),
    Other,
}

/// Reads the items of a list from `start` on; where `keep` is false, only what is plain.
///
/// `plain` gets the bare pointer and must not run Python code.
#[inline]
fn each_item<O, E: From<PyErr>>(
    list: &Bound<'_, PyList>,
    start: usize,
    keep: &[bool],
    out: &mut [O],
    plain: impl Fn(*mut ffi::PyObject) -> Item<O>,
    any: impl Fn(&Bound<'_, PyAny>, usize) -> std::result::Result<O, E>,
) -> std::result::Result<(), E> {
    let known = has_known_layout(list.py());
    let get = |index: usize| {
        if known {
            // SAFETY: the layout was compared. The list is read anew for each item, because `any`
            // may have changed it.
            unsafe {
                let raw = list.as_ptr().cast::<ListObject>();
                if index.cast_signed() < (*raw).size {
                    return (*raw).items.add(index).read();
                }
            }
        }
        // SAFETY: `list` is a list; an index out of range gives NULL and an error.
        unsafe { ffi::PyList_GetItem(list.as_ptr(), index.cast_signed()) }
    };
    // Where there is no interpreter lock, the list's own keeps its items in place.
    with_critical_section(list, || {
        for (i, (out, &keep)) in out.iter_mut().zip(keep).enumerate() {
            // Borrowed: nothing runs before it is read or owned.
            let item = get(start + i);
            if item.is_null() {
                drop(PyErr::take(list.py()));
                let message =
                    "a list became shorter while it was read; expected it to stay as it is";
                return Err(PyValueError::new_err(message).into());
            }
            if let Item::Plain(value) = plain(item) {
                *out = value;
            } else if keep {
                // SAFETY: it is not NULL; `from_borrowed_ptr` takes a reference of its own.
                let item = unsafe { Bound::from_borrowed_ptr(list.py(), item) };
                *out = any(&item, start + i)?;
            }
        }
        Ok(())
    })
}

/// Writes the numbers of a list from `start` on; `any` reads what is no plain float, where `keep`
/// is true.
pub(super) fn list_numbers<E: From<PyErr>>(
    list: &Bound<'_, PyList>,
    start: usize,
    keep: &[bool],
    out: &mut [f64],
    any: impl Fn(&Bound<'_, PyAny>, usize) -> std::result::Result<f64, E>,
) -> std::result::Result<(), E> {
    let known = has_known_layout(list.py());
    let plain = |item: *mut ffi::PyObject| {
        // SAFETY: the item is alive, and its layout was compared; a float itself, not of a subtype,
        // can be read without running Python code.
        unsafe {
            if ffi::Py_TYPE(item) != &raw mut ffi::PyFloat_Type {
                Item::Other
            } else if known {
                Item::Plain((*item.cast::<FloatObject>()).value)
            } else {
                Item::Plain(ffi::PyFloat_AsDouble(item))
            }
        }
    };
    each_item(list, start, keep, out, plain, any)
}

const ALL: [bool; 128] = [true; 128];

/// Writes the flags of a list from `start` on; `any` reads what is neither a bool nor one of the
/// given integers.
pub(super) fn list_flags<E: From<PyErr>>(
    list: &Bound<'_, PyList>,
    start: usize,
    out: &mut [bool],
    (zero, one): (&Bound<'_, PyInt>, &Bound<'_, PyInt>),
    any: impl Fn(&Bound<'_, PyAny>, usize) -> std::result::Result<bool, E>,
) -> std::result::Result<(), E> {
    // SAFETY: they live as long as the interpreter.
    let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
    let (zero, one) = (zero.as_ptr(), one.as_ptr());
    let plain = |item| {
        // Without branches: masks are hard to predict.
        let (is_yes, is_one) = (item == yes, item == one);
        let known =
            u8::from(is_yes) | u8::from(is_one) | u8::from(item == no) | u8::from(item == zero);
        if known == 0 {
            Item::Other
        } else {
            Item::Plain(u8::from(is_yes) | u8::from(is_one) != 0)
        }
    };
    for (part, out) in out.chunks_mut(ALL.len()).enumerate() {
        let start = start + part * ALL.len();
        each_item(list, start, &ALL[..out.len()], out, plain, &any)?;
    }
    Ok(())
}
