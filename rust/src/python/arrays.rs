//! Reads the scalars of a Python value: the only file that touches array memory.
#![allow(unsafe_code)]

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
use crate::layout::{Encoding, Leaf};

/// What takes the scalars of a value, in C order. It never calls Python.
pub(super) trait Sink {
    fn real(&mut self, x: f64) -> Result<()>;
    fn integer(&mut self, x: i128) -> Result<()>;
}

impl Sink for Encoding<'_> {
    #[inline]
    fn real(&mut self, x: f64) -> Result<()> {
        Encoding::real(self, x).map(drop)
    }

    #[inline]
    fn integer(&mut self, x: i128) -> Result<()> {
        Encoding::integer(self, x).map(drop)
    }
}

/// Gives the scalars of `value`, which should have the leaf's shape, to `sink`.
pub(super) fn read(value: &Bound<'_, PyAny>, leaf: &Leaf, sink: &mut impl Sink) -> PyResult<()> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return read_array(array, leaf, sink);
    }
    if leaf.axes().len() == 1 {
        if value.is_instance_of::<PyFloat>() {
            return Ok(sink.real(value.extract()?)?);
        }
        if value.is_instance_of::<PyInt>() || value.hasattr("__index__")? {
            if let Ok(x) = value.extract::<i64>() {
                return Ok(sink.integer(x.into())?);
            }
            if value.is_instance_of::<PyInt>() {
                // One that no 128 bits hold lies outside every space all the same.
                let outside = if value.lt(0)? { i128::MIN } else { i128::MAX };
                return Ok(sink.integer(value.extract().unwrap_or(outside))?);
            }
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
    let one_scalar = array.len() == 1 && leaf.axes().len() == 1;
    if array.shape() != leaf.shape() && !one_scalar {
        return Err(PyValueError::new_err(format!(
            "{} has shape {}; expected {}",
            leaf.name(),
            shape_text(array.shape()),
            shape_text(leaf.shape())
        )));
    }
    if dtype.is_native_byteorder() == Some(false) || !array.is_aligned() {
        return read_array(&native(array)?, leaf, sink);
    }
    let done = match (dtype.kind(), dtype.itemsize()) {
        (b'f', 4) => each(array, |x: f32| sink.real(x.into())),
        (b'f', 8) => each(array, |x: f64| sink.real(x)),
        (b'f', 2) => each(array, |x: f16| sink.real(x.to_f64())),
        (b'b' | b'u', 1) => each(array, |x: u8| sink.integer(x.into())),
        (b'u', 2) => each(array, |x: u16| sink.integer(x.into())),
        (b'u', 4) => each(array, |x: u32| sink.integer(x.into())),
        (b'u', 8) => each(array, |x: u64| sink.integer(x.into())),
        (b'i', 1) => each(array, |x: i8| sink.integer(x.into())),
        (b'i', 2) => each(array, |x: i16| sink.integer(x.into())),
        (b'i', 4) => each(array, |x: i32| sink.integer(x.into())),
        (b'i', 8) => each(array, |x: i64| sink.integer(x.into())),
        // Extended precision exists on some platforms only.
        (b'f', _) => {
            let double = array.call_method1("astype", ("float64",))?;
            return read_array(double.cast::<PyUntypedArray>()?, leaf, sink);
        }
        _ => return Err(refused_dtype(leaf, &dtype)),
    };
    Ok(done?)
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
    let copy = array.call_method1("astype", (dtype,))?;
    Ok(copy.cast_into::<PyUntypedArray>()?)
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
    I32,
    I64,
}

impl Element {
    fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 => 1,
            Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

/// An array whose elements can be read in place.
pub(super) struct Grid<'py> {
    array: Bound<'py, PyUntypedArray>,
    element: Element,
}

impl<'py> Grid<'py> {
    /// Any array of real numbers, or of a mask; copied only where its elements are of a kind that
    /// is not read in place. `name` is how messages call it.
    pub(super) fn new(name: &str, array: Bound<'py, PyUntypedArray>, role: Role) -> PyResult<Self> {
        refuse_hidden_mask(name, &array)?;
        let dtype = array.dtype();
        let direct = match (dtype.kind(), dtype.itemsize(), role) {
            (b'f', 2, _) => Some(Element::F16),
            (b'f', 4, _) => Some(Element::F32),
            (b'f', 8, _) => Some(Element::F64),
            (b'b', 1, Role::Mask) => Some(Element::Bool),
            (b'u' | b'i', 1, Role::Mask) => Some(Element::U8),
            (b'i', 4, Role::Mask) => Some(Element::I32),
            (b'i', 8, Role::Mask) => Some(Element::I64),
            _ => None,
        };
        if let Some(element) = direct
            && dtype.is_native_byteorder() != Some(false)
            && array.is_aligned()
        {
            return Ok(Self { array, element });
        }
        if direct.is_none() && !is_real(&dtype)? {
            let expected = match role {
                Role::Numbers => "real numbers",
                Role::Mask => "bools, 0 or 1",
            };
            return Err(PyTypeError::new_err(format!(
                "{name} has elements of type {}; expected {expected}",
                dtype.str()?
            )));
        }
        let double = array.call_method1("astype", ("float64",))?;
        Ok(Self {
            array: double.cast_into::<PyUntypedArray>()?,
            element: Element::F64,
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

    /// The memory of the array, which may be of rank 1 or 2.
    pub(super) fn view(&self) -> GridView<'_> {
        // SAFETY: the array is alive for as long as its `Bound` is, and `data` is its first element.
        let data = unsafe { (*self.array.as_array_ptr()).fields.data };
        let (rows, columns, row_stride, stride) = match (self.array.shape(), self.array.strides()) {
            (&[columns], &[stride]) => (1, columns, 0, stride),
            (&[rows, columns], &[row_stride, stride]) => (rows, columns, row_stride, stride),
            _ => (0, 0, 0, 0),
        };
        GridView {
            data: data.cast_const().cast(),
            element: self.element,
            rows,
            columns,
            row_stride,
            stride,
            array: PhantomData,
        }
    }

    /// Every element in C order.
    pub(super) fn to_vec(&self) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.array.len());
        let mut push = |x: f64| {
            values.push(x);
            Ok(())
        };
        let done = match self.element {
            Element::F16 => each(&self.array, |x: f16| push(x.to_f64())),
            Element::F32 => each(&self.array, |x: f32| push(x.into())),
            Element::F64 => each(&self.array, push),
            // Only masks have the other elements, and nobody asks for their numbers.
            Element::Bool | Element::U8 | Element::I32 | Element::I64 => Ok(()),
        };
        debug_assert_eq!(done, Ok(()));
        values
    }
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

/// Refuses a masked array, whose mask would be lost.
fn refuse_hidden_mask(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    static MASKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = array.py();
    if array.is_exact_instance_of::<PyUntypedArray>()
        || !array.is_instance(MASKED.import(py, "numpy.ma", "MaskedArray")?)?
    {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "{name} is a numpy.ma.MaskedArray; expected a plain array (pass its data, and the negation \
         of its mask as mask=)"
    )))
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
    array: PhantomData<&'a PyUntypedArray>,
}

// SAFETY: the view only reads memory that the array keeps alive for `'a`.
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
            array: PhantomData,
        }
    }
}

/// Elements of one type at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    data: *const u8,
    element: Element,
    length: usize,
    stride: isize,
    array: PhantomData<&'a PyUntypedArray>,
}

impl Strip<'_> {
    pub(super) fn len(self) -> usize {
        self.length
    }

    fn is_contiguous(self) -> bool {
        self.stride == self.element.size().cast_signed()
    }

    /// Converts the elements from `start` on. The caller has matched `T` to the element.
    #[inline]
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
    #[inline]
    pub(super) fn numbers(self, start: usize, out: &mut [f64]) {
        match self.element {
            Element::F16 => self.gather(start, out, f16::to_f64),
            Element::F32 => self.gather(start, out, |x: f32| f64::from(x)),
            Element::F64 => self.gather(start, out, |x: f64| x),
            Element::Bool | Element::U8 => self.gather(start, out, |x: u8| f64::from(x)),
            Element::I32 => self.gather(start, out, |x: i32| f64::from(x)),
            Element::I64 => self.gather(start, out, |x: i64| x as f64),
        }
    }

    /// Writes the numbers from `start` on minus those of another strip.
    #[inline]
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
    #[inline]
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
    #[inline]
    pub(super) fn keep(
        self,
        start: usize,
        keep: &mut [bool],
    ) -> std::result::Result<(), (usize, f64)> {
        let mut legal = true;
        match self.element {
            Element::Bool => self.gather(start, keep, |x: u8| x != 0),
            Element::U8 => self.select(start, keep, &mut legal, 0_u8, 1),
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
                return Err((i, value[0]));
            }
        }
        Ok(())
    }

    #[inline]
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

/// Whether nothing but a read of a float happens: no Python code, so no borrowed item can go.
#[inline]
fn is_plain_float(item: *mut ffi::PyObject) -> bool {
    // SAFETY: the callers pass live objects.
    unsafe { ffi::Py_TYPE(item) == &raw mut ffi::PyFloat_Type }
}

/// Calls `take` with each item of a list from `start` on, as long as the flag with it is true.
///
/// `plain` gets the bare pointer, must not run Python code, and says whether it was enough.
#[inline]
fn each_item<O>(
    list: &Bound<'_, PyList>,
    start: usize,
    keep: &[bool],
    out: &mut [O],
    plain: impl Fn(*mut ffi::PyObject) -> Option<O>,
    any: impl Fn(&Bound<'_, PyAny>, usize) -> PyResult<O>,
) -> PyResult<()> {
    // Where there is no interpreter lock, the list's own keeps its items in place.
    with_critical_section(list, || {
        for (i, (out, &keep)) in out.iter_mut().zip(keep).enumerate() {
            if !keep {
                continue;
            }
            // SAFETY: `list` is a list; indices out of range give NULL. The item is borrowed, and
            // nothing runs before it is read or owned.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), (start + i).cast_signed()) };
            if item.is_null() {
                drop(PyErr::take(list.py()));
                return Err(PyValueError::new_err(
                    "a list became shorter while it was read; expected it to stay as it is",
                ));
            }
            *out = match plain(item) {
                Some(value) => value,
                // SAFETY: it is not NULL; `from_borrowed_ptr` takes a reference of its own.
                None => any(
                    &unsafe { Bound::from_borrowed_ptr(list.py(), item) },
                    start + i,
                )?,
            };
        }
        Ok(())
    })
}

/// Writes the numbers of a list from `start` on, where `keep` is true; `any` reads what is no plain
/// float.
pub(super) fn list_numbers(
    list: &Bound<'_, PyList>,
    start: usize,
    keep: &[bool],
    out: &mut [f64],
    any: impl Fn(&Bound<'_, PyAny>, usize) -> PyResult<f64>,
) -> PyResult<()> {
    // SAFETY: reading a plain float cannot fail.
    let plain = |item| is_plain_float(item).then(|| unsafe { ffi::PyFloat_AsDouble(item) });
    each_item(list, start, keep, out, plain, any)
}

const ALL: [bool; 128] = [true; 128];

/// Writes the flags of a list from `start` on; `any` reads what is no bool.
pub(super) fn list_flags(
    list: &Bound<'_, PyList>,
    start: usize,
    out: &mut [bool],
    (zero, one): (&Bound<'_, PyInt>, &Bound<'_, PyInt>),
    any: impl Fn(&Bound<'_, PyAny>, usize) -> PyResult<bool>,
) -> PyResult<()> {
    // SAFETY: they live as long as the interpreter.
    let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
    let (zero, one) = (zero.as_ptr(), one.as_ptr());
    let plain = |item| {
        if item == yes || item == one {
            Some(true)
        } else if item == no || item == zero {
            Some(false)
        } else {
            None
        }
    };
    for (part, out) in out.chunks_mut(ALL.len()).enumerate() {
        let start = start + part * ALL.len();
        each_item(list, start, &ALL[..out.len()], out, plain, &any)?;
    }
    Ok(())
}
