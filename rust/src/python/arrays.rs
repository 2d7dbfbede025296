//! Reads the scalars of a Python value: the only file that touches array memory.
#![allow(unsafe_code)]

use half::f16;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt};

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

fn type_name(value: &Bound<'_, PyAny>) -> String {
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

fn shape_text(shape: &[usize]) -> String {
    if let [length] = shape {
        return format!("({length},)");
    }
    let lengths: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("({})", lengths.join(", "))
}

/// `numpy.asarray(value)`, for lists, scalars, and arrays of other libraries.
fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
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
