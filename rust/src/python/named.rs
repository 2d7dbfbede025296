//! Arguments whose errors carry their name, and whose defaults show in `help`.

use pyo3::Borrowed;
use pyo3::exceptions::{PyException, PyOverflowError, PyTypeError, PyValueError};
#[cfg(feature = "stubs")]
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::arguments::is_unreal;

/// How Python writes a value, for messages.
pub(super) fn shown(value: &Bound<'_, PyAny>) -> String {
    value
        .repr()
        .map_or_else(|_| "?".into(), |text| text.to_string())
}

/// What can be read from Python under a name.
pub(super) trait Read: Sized {
    /// The type in the stub.
    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr;

    /// The value, or an error with the name of the argument, what came and what was expected.
    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self>;
}

/// An argument as it came, or its default.
pub(super) enum Named<'a, 'py, T> {
    Default(T),
    Given(Borrowed<'a, 'py, PyAny>),
}

impl<T: Read> Named<'_, '_, T> {
    pub(super) fn get(self, name: &str) -> PyResult<T> {
        match self {
            Self::Default(value) => Ok(value),
            Self::Given(value) => T::read(name, &value),
        }
    }
}

impl<'a, 'py, T: Read> FromPyObject<'a, 'py> for Named<'a, 'py, T> {
    type Error = PyErr;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = T::INPUT_TYPE;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(value))
    }
}

impl Read for f64 {
    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = <f64 as FromPyObject<'_, '_>>::INPUT_TYPE;

    /// A number; NaN and infinities are left to the core.
    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(float) = value.cast_exact::<PyFloat>() {
            return Ok(float.value());
        }
        let wrong =
            || PyTypeError::new_err(format!("{name} must be a number, got {}", shown(value)));
        let is_sized = match value.len() {
            Ok(_) => true,
            Err(error) if error.is_instance_of::<PyException>(value.py()) => false,
            // An interrupt is no fault of the value.
            Err(error) => return Err(error),
        };
        if is_sized || is_unreal(value)? {
            return Err(wrong());
        }
        value.extract::<f64>().map_err(|error| {
            let py = value.py();
            if error.is_instance_of::<PyOverflowError>(py) {
                PyValueError::new_err(format!(
                    "{name} must be a number that fits a float, got {}",
                    shown(value)
                ))
            } else if error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyValueError>(py)
            {
                wrong()
            } else {
                error
            }
        })
    }
}

impl Read for u64 {
    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = <u64 as FromPyObject<'_, '_>>::INPUT_TYPE;

    /// A count, 0 included.
    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || {
            format!(
                "{name} must be an integer from 0 to 2^64 - 1, got {}",
                shown(value)
            )
        };
        // An int of Python itself needs no questions, and asking costs five times the update.
        if !value.is_exact_instance_of::<PyInt>()
            && (value.is_instance_of::<PyBool>() || !value.hasattr("__index__")?)
        {
            return Err(PyTypeError::new_err(wrong()));
        }
        value.extract::<u64>().map_err(|error| {
            if !error.is_instance_of::<PyException>(value.py()) {
                error
            } else if error.is_instance_of::<PyTypeError>(value.py()) {
                PyTypeError::new_err(wrong())
            } else {
                PyValueError::new_err(wrong())
            }
        })
    }
}

impl Read for bool {
    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = <bool as FromPyObject<'_, '_>>::INPUT_TYPE;

    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        match value.cast::<PyBool>() {
            Ok(flag) => Ok(flag.is_true()),
            Err(_) => Err(PyTypeError::new_err(format!(
                "{name} must be True or False, got {}",
                shown(value)
            ))),
        }
    }
}

/// One of a few words.
pub(super) enum Word {
    Known(&'static str),
    Given(String),
}

impl Word {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Known(word) => word,
            Self::Given(word) => word,
        }
    }
}

impl Read for Word {
    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = <&str as FromPyObject<'_, '_>>::INPUT_TYPE;

    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        match value.cast::<PyString>() {
            Ok(word) => Ok(Self::Given(word.to_string_lossy().into_owned())),
            Err(_) => Err(PyTypeError::new_err(format!(
                "{name} must be a str, got {}",
                shown(value)
            ))),
        }
    }
}
