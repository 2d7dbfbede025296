//! Whole-number arguments, checked with their name.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// The value of an argument that counts something, at least 1.
pub(super) fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let got = || {
        value
            .repr()
            .map_or_else(|_| "?".into(), |text| text.to_string())
    };
    if value.is_instance_of::<PyBool>() || !value.hasattr("__index__")? {
        return Err(PyTypeError::new_err(format!(
            "{name} must be an integer of at least 1, got {}",
            got()
        )));
    }
    match value.extract::<u64>() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(PyValueError::new_err(format!(
            "{name} must be an integer of at least 1 that fits 64 bits, got {}",
            got()
        ))),
    }
}

/// As [`whole`], where `None` is legal too.
pub(super) fn optional_whole(
    name: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<u64>> {
    value.map(|value| whole(name, value)).transpose()
}

/// The value of a floating-point argument.
pub(super) fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a number, got a bool"
        )));
    }
    value.extract::<f64>().map_err(|error| {
        let got = value
            .repr()
            .map_or_else(|_| "?".into(), |text| text.to_string());
        let message = format!("{name} must be a number that float64 can hold, got {got}");
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            PyValueError::new_err(message)
        } else {
            PyTypeError::new_err(message)
        }
    })
}
