//! The canonical content of a Python value that has no axes.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};

use super::arrays::{self, Sink, type_name};
use crate::content::Content;
use crate::error::{Error, Result};
use crate::layout::Leaf;

/// A value that holds itself would never end.
const DEEPEST: usize = 64;

/// The content of `value`, which messages call `name`.
pub(super) fn of(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Content> {
    let mut content = Content::new();
    write(value, name, DEEPEST, &mut content)?;
    Ok(content)
}

fn write(value: &Bound<'_, PyAny>, name: &str, depth: usize, into: &mut Content) -> PyResult<()> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(PyValueError::new_err(format!(
            "{name} is nested more than {DEEPEST} deep"
        )));
    };
    if let Ok(text) = value.cast::<PyString>() {
        // Gymnasium's characters may be any; half of a surrogate pair has no UTF-8 of its own.
        if let Ok(text) = text.to_str() {
            into.text(text.as_bytes());
        } else {
            let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
            into.text(bytes.cast::<PyBytes>()?.as_bytes());
        }
    } else if value.is_instance_of::<PyFloat>() {
        real(value.extract()?, name, into)?;
    } else if let Ok(array) = value.cast::<PyUntypedArray>() {
        write_array(array, name, depth, into)?;
    } else if let Ok(items) = value.cast::<PyTuple>() {
        into.sequence(items.len());
        for item in items {
            write(&item, name, depth, into)?;
        }
    } else if let Ok(items) = value.cast::<PyList>() {
        // A copy, because reading an item may run code that changes the list.
        let items = items.to_tuple();
        into.sequence(items.len());
        for item in items {
            write(&item, name, depth, into)?;
        }
    } else if value.is_none() {
        into.nothing();
    } else if value.is_instance_of::<PyInt>() {
        let whole = value.extract().map_err(|_| {
            PyValueError::new_err(format!("{name} holds an integer of more than 128 bits"))
        })?;
        into.integer(whole);
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        into.bytes(bytes.as_bytes());
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        into.bytes(&bytes.to_vec());
    } else if let Ok(mapping) = value.cast::<PyMapping>() {
        let mut entries = Vec::new();
        for entry in mapping.items()?.to_tuple() {
            let (key, inner): (Bound<'_, PyAny>, Bound<'_, PyAny>) = entry.extract()?;
            let (mut k, mut v) = (Content::new(), Content::new());
            write(&key, name, depth, &mut k)?;
            write(&inner, name, depth, &mut v)?;
            entries.push((k, v));
        }
        into.mapping(entries);
    } else {
        // Scalars of NumPy, and arrays of other libraries.
        let array = arrays::as_array(value).map_err(|error| {
            if error.is_instance_of::<pyo3::exceptions::PyException>(value.py()) {
                no_form(value, name)
            } else {
                error
            }
        })?;
        if array.dtype().kind() == b'O' {
            return Err(no_form(value, name));
        }
        write_array(&array, name, depth, into)?;
    }
    Ok(())
}

/// The content of an array that should have the leaf's shape.
pub(super) fn of_array(value: &Bound<'_, PyAny>, leaf: &Leaf) -> PyResult<Content> {
    let mut content = Content::new();
    if leaf.scalars() == 0 {
        write_empty(leaf.shape(), &mut content);
    }
    let mut rows = Rows {
        into: &mut content,
        name: leaf.name(),
        shape: leaf.shape(),
        at: 0,
    };
    arrays::read(value, leaf, &mut rows)?;
    Ok(content)
}

fn real(x: f64, name: &str, into: &mut Content) -> Result<()> {
    if into.real(x) {
        Ok(())
    } else {
        Err(Error::NotANumber { place: name.into() })
    }
}

/// The elements of an array as the sequence of its rows.
struct Rows<'a> {
    into: &'a mut Content,
    name: &'a str,
    shape: &'a [usize],
    /// Elements written.
    at: usize,
}

impl Rows<'_> {
    /// The heads of the rows that the next element opens.
    #[inline]
    fn open(&mut self) {
        let mut size: usize = self.shape.iter().product();
        for &length in self.shape {
            if self.at.is_multiple_of(size) {
                self.into.sequence(length);
            }
            size /= length;
        }
        self.at += 1;
    }
}

impl Sink for Rows<'_> {
    fn real(&mut self, x: f64) -> Result<()> {
        self.open();
        real(x, self.name, self.into)
    }

    fn integer(&mut self, x: i128) -> Result<()> {
        self.open();
        self.into.integer(x);
        Ok(())
    }

    fn content(&mut self, _hash: u128) -> Result<()> {
        Err(Error::Ordered {
            place: self.name.into(),
        })
    }
}

fn write_array(
    array: &Bound<'_, PyUntypedArray>,
    name: &str,
    depth: usize,
    into: &mut Content,
) -> PyResult<()> {
    let kind = array.dtype().kind();
    if !matches!(kind, b'f' | b'i' | b'u' | b'b') {
        if matches!(kind, b'O' | b'U' | b'S') {
            return write(&array.call_method0("tolist")?, name, depth, into);
        }
        return Err(no_form(array.as_any(), name));
    }
    let shape = array.shape().to_vec();
    if array.is_empty() {
        write_empty(&shape, into);
        return Ok(());
    }
    let mut rows = Rows {
        into,
        name,
        shape: &shape,
        at: 0,
    };
    if arrays::scalars(array, &mut rows)? {
        Ok(())
    } else {
        Err(no_form(array.as_any(), name))
    }
}

/// An array without elements may still have rows.
fn write_empty(shape: &[usize], into: &mut Content) {
    if let [length, inner @ ..] = shape {
        into.sequence(*length);
        for _ in 0..*length {
            write_empty(inner, into);
        }
    }
}

#[cold]
fn no_form(value: &Bound<'_, PyAny>, name: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{name} holds a value of type {}, which has no canonical form to tell values apart by{}",
        type_name(value),
        // Only observations can be encoded.
        if name.starts_with("observation") {
            "; give encoder= a function that returns a 1-D array for an observation"
        } else {
            "; expected numbers, text, bytes, None, and sequences, mappings and arrays of them"
        }
    ))
}
