//! Where the core's errors become Python's.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

use crate::error::Error;

impl From<Error> for PyErr {
    /// Every error of the core is about a value; wrong types are found while reading them.
    fn from(error: Error) -> Self {
        PyValueError::new_err(error.to_string())
    }
}
