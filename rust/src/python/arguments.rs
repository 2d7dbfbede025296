//! Arguments that are numbers or words, checked with their name.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyException, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyFloat, PyInt, PyString};

use super::arrays::as_array;
use super::named::shown;
use crate::error::{self, Error};

/// Whether Python or NumPy would turn a value into a float that it is not: a bool, text, a complex
/// number, an array.
pub(super) fn is_unreal(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static GENERIC: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyComplex>()
    {
        return Ok(true);
    }
    if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        return Ok(false);
    }
    let generic = GENERIC.import(value.py(), "numpy", "generic")?;
    if !value.is_instance_of::<PyUntypedArray>() && !value.is_instance(generic)? {
        return Ok(false);
    }
    let array = as_array(value)?;
    let real = matches!(array.dtype().kind(), b'f' | b'i' | b'u' | b'V');
    Ok(array.ndim() > 0 || !real)
}

/// What an argument that is one of a few words stands for.
pub(super) fn word<T>(
    name: &str,
    value: &Bound<'_, PyAny>,
    parse: impl Fn(&str) -> error::Result<T>,
) -> PyResult<T> {
    let text = value.cast::<PyString>();
    if let Ok(Ok(text)) = text.as_ref().map(|text| text.to_str()) {
        return Ok(parse(text)?);
    }
    // The core knows what it would have taken.
    let expected = match parse("") {
        Err(Error::Parameter { expected, .. }) => expected,
        _ => "a str".into(),
    };
    let message = format!("{name} must be {expected}, got {}", shown(value));
    Err(if text.is_ok() {
        PyValueError::new_err(message)
    } else {
        PyTypeError::new_err(message)
    })
}

/// The value of an argument that counts something, at least 1; `expected` is for messages.
pub(super) fn whole(name: &str, expected: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let message = || format!("{name} must be {expected}, got {}", shown(value));
    if !value.is_exact_instance_of::<PyInt>()
        && (value.is_instance_of::<PyBool>() || !value.hasattr("__index__")?)
    {
        return Err(PyTypeError::new_err(message()));
    }
    match value.extract::<u64>() {
        Ok(number @ 1..) => Ok(number),
        Err(error) if !error.is_instance_of::<PyException>(value.py()) => Err(error),
        _ => Err(PyValueError::new_err(message())),
    }
}

/// The value of a floating-point argument.
pub(super) fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if is_unreal(value)? {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a number, got {}",
            shown(value)
        )));
    }
    value.extract::<f64>().map_err(|error| {
        let py = value.py();
        if !error.is_instance_of::<PyException>(py) {
            // An interrupt is no fault of the value.
            return error;
        }
        if error.is_instance_of::<PyOverflowError>(py) {
            PyValueError::new_err(format!(
                "{name} must be a number that float64 can hold, got {}",
                shown(value)
            ))
        } else {
            PyTypeError::new_err(format!("{name} must be a number, got {}", shown(value)))
        }
    })
}
