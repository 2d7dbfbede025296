//! Merging of snapshots.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::snapshot::Snapshot;

/// The sum of snapshots on the same axes, as JSON texts.
#[pyfunction]
pub(crate) fn merge_snapshots(snapshots: Vec<String>) -> PyResult<String> {
    let mut parts = snapshots.iter().map(|text| Snapshot::from_json(text));
    let Some(first) = parts.next() else {
        return Err(PyValueError::new_err(
            "merge_snapshots needs at least one snapshot, got none",
        ));
    };
    let mut merged = first?;
    for part in parts {
        merged.merge(&part?)?;
    }
    Ok(merged.to_json()?)
}
