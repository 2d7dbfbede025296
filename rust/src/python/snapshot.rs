//! Merging of snapshots.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Error;
use crate::snapshot::Snapshot;

/// The sum of snapshots on the same axes, as JSON texts.
#[pyfunction]
pub(crate) fn merge_snapshots(snapshots: Vec<String>) -> PyResult<String> {
    let named = |i: usize, error: Error| PyValueError::new_err(format!("snapshots[{i}]: {error}"));
    let mut merged: Option<Snapshot> = None;
    for (i, text) in snapshots.iter().enumerate() {
        let part = Snapshot::from_json(text).map_err(|error| named(i, error))?;
        match &mut merged {
            None => merged = Some(part),
            Some(sum) => sum.merge(&part).map_err(|error| named(i, error))?,
        }
    }
    let Some(merged) = merged else {
        return Err(PyValueError::new_err(
            "merge_snapshots needs at least one snapshot, got none",
        ));
    };
    Ok(merged.to_json()?)
}
