//! The axes of a space, and the walk through a nested value to them.

use std::sync::Arc;

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMapping, PyTuple, PyType};
use serde::{Deserialize, Serialize};

use super::arrays::{self, Sink};
use super::{content, encoding};
use crate::axis::Axis;
use crate::encoder::{Encoder, GreyGrid, Projection};
use crate::error::{Error, Result};
use crate::layout::{self as core, Encoding, Key, Leaf, content_digits};
use crate::row::Row;
use crate::tracker::ENCODED_LEAF;

/// The nesting of a space. Leaves are numbered in walk order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Node {
    Leaf(usize),
    Tuple(String, Vec<Node>),
    Dict(String, Vec<(String, Node)>),
}

impl Node {
    fn shifted(&self, by: usize) -> Self {
        match self {
            Self::Leaf(leaf) => Self::Leaf(leaf + by),
            Self::Tuple(name, items) => Self::Tuple(
                name.clone(),
                items.iter().map(|item| item.shifted(by)).collect(),
            ),
            Self::Dict(name, items) => Self::Dict(
                name.clone(),
                items
                    .iter()
                    .map(|(key, item)| (key.clone(), item.shifted(by)))
                    .collect(),
            ),
        }
    }

    /// Numbers of the leaves in walk order.
    fn leaves(&self, into: &mut Vec<usize>) {
        match self {
            Self::Leaf(leaf) => into.push(*leaf),
            Self::Tuple(_, items) => items.iter().for_each(|item| item.leaves(into)),
            Self::Dict(_, items) => items.iter().for_each(|(_, item)| item.leaves(into)),
        }
    }

    fn walk(
        &self,
        value: &Bound<'_, PyAny>,
        leaves: &[Leaf],
        sink: &mut impl Sink,
    ) -> PyResult<()> {
        match self {
            Self::Leaf(leaf) => {
                let leaf = &leaves[*leaf];
                if let Some(encoder) = leaf.encoder() {
                    encoding::encode(value, leaf, encoder, sink)
                } else if leaf.is_content() {
                    Ok(sink.content(content::of(value, leaf.name())?.hash())?)
                } else {
                    arrays::read(value, leaf, sink)
                }
            }
            Self::Tuple(name, items) => {
                if !(value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>()) {
                    return Err(wrong_nesting(name, value, "a tuple"));
                }
                if value.len()? != items.len() {
                    return Err(PyValueError::new_err(format!(
                        "{name} has {} items; expected {}",
                        value.len()?,
                        items.len()
                    )));
                }
                for (item, inner) in items.iter().zip(value.try_iter()?) {
                    item.walk(&inner?, leaves, sink)?;
                }
                Ok(())
            }
            Self::Dict(name, items) => {
                let Ok(mapping) = value.cast::<PyMapping>() else {
                    return Err(wrong_nesting(name, value, "a mapping"));
                };
                for (key, item) in items {
                    let inner = mapping.get_item(key).map_err(|error| {
                        if error.is_instance_of::<PyKeyError>(value.py()) {
                            PyValueError::new_err(format!("{name} lacks the key {key:?}"))
                        } else {
                            error
                        }
                    })?;
                    item.walk(&inner, leaves, sink)?;
                }
                Ok(())
            }
        }
    }
}

fn wrong_nesting(name: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let got = value
        .get_type()
        .name()
        .map_or_else(|_| "an object".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{name} is of type {got}; expected {expected}"))
}

/// The axes of an observation or action space, in walk order.
///
/// Args of the constructors: `name` is how messages call the value; `low`, `high`, `bins`, `start`
/// and `size` hold one entry per scalar in C order of `shape`. `declared` says that the bounds come
/// from a space, where a magnitude above 1e6 means "no bound"; bounds of a user count as given.
#[pyclass(frozen, eq, module = "kl_proteus._core")]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    tree: Node,
    pub(super) core: Arc<core::Layout>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    tree: Node,
    leaves: Vec<Leaf>,
}

impl Layout {
    fn leaf(name: String, shape: Vec<usize>, axes: Result<Vec<Axis>>) -> PyResult<Self> {
        let axes = axes.map_err(|error| PyValueError::new_err(format!("{name}: {error}")))?;
        let leaf = Leaf::new(name, shape, axes)?;
        Ok(Self {
            tree: Node::Leaf(0),
            core: Arc::new(core::Layout::new(vec![leaf])),
        })
    }

    fn encoded_leaf(
        name: String,
        shape: Vec<usize>,
        axes: Vec<Axis>,
        encoder: Encoder,
    ) -> PyResult<Self> {
        let leaf = Leaf::encoded(name, shape, axes, encoder)?;
        Ok(Self {
            tree: Node::Leaf(0),
            core: Arc::new(core::Layout::new(vec![leaf])),
        })
    }

    fn join(parts: &[&Self]) -> (Vec<Node>, Arc<core::Layout>) {
        let mut leaves = Vec::new();
        let mut nodes = Vec::new();
        for part in parts {
            nodes.push(part.tree.shifted(leaves.len()));
            leaves.extend(part.core.leaves().iter().cloned());
        }
        (nodes, Arc::new(core::Layout::new(leaves)))
    }

    fn sink_into(&self, value: &Bound<'_, PyAny>, sink: &mut impl Sink) -> PyResult<()> {
        self.tree.walk(value, self.core.leaves(), sink)
    }

    /// The key of a value, and whether a digit of it is a flow bin.
    pub(super) fn encode(&self, value: &Bound<'_, PyAny>) -> PyResult<(Key, bool)> {
        // Allocates only where keys are hashes.
        let mut scratch = Vec::new();
        let mut encoding = self.core.encode(&mut scratch);
        self.sink_into(value, &mut encoding)?;
        Ok(encoding.finish()?)
    }

    /// The leaf of a space that is one array and nothing else.
    pub(super) fn only_leaf(&self) -> Option<&Leaf> {
        match self.tree {
            Node::Leaf(leaf) => self
                .core
                .leaves()
                .get(leaf)
                .filter(|leaf| !leaf.is_content() && leaf.encoder().is_none()),
            _ => None,
        }
    }

    /// As `encode`, and `row` gets the histogram bin of each axis.
    pub(super) fn encode_row(
        &self,
        value: &Bound<'_, PyAny>,
        row: &mut Row,
    ) -> PyResult<(Key, bool)> {
        let mut scratch = Vec::new();
        let mut encoding = self.core.encode_row(&mut scratch, row);
        self.sink_into(value, &mut encoding)?;
        Ok(encoding.finish()?)
    }

    /// A layout around core axes that have a single leaf.
    pub(super) fn of_one_leaf(core: Arc<core::Layout>) -> Self {
        Self {
            tree: Node::Leaf(0),
            core,
        }
    }
}

/// Axes of `low`, `high`, `bins`, whose lengths must agree.
fn axes(
    name: &str,
    (low, high, bins): (&[f64], &[f64], &[u64]),
    axis: impl Fn(f64, f64, u64) -> Result<Axis>,
) -> Result<Vec<Axis>> {
    for got in [high.len(), bins.len()] {
        if got != low.len() {
            return Err(Error::Length {
                place: name.into(),
                expected: low.len(),
                got,
            });
        }
    }
    let bounds = low.iter().zip(high).zip(bins);
    bounds.map(|((&l, &h), &n)| axis(l, h, n)).collect()
}

struct Digits<'a> {
    encoding: Encoding<'a>,
    digits: Vec<u32>,
}

impl Sink for Digits<'_> {
    fn real(&mut self, x: f64) -> Result<()> {
        let digit = self.encoding.real(x)?;
        self.digits.push(digit);
        Ok(())
    }

    fn integer(&mut self, x: i128) -> Result<()> {
        let digit = self.encoding.integer(x)?;
        self.digits.push(digit);
        Ok(())
    }

    fn content(&mut self, hash: u128) -> Result<()> {
        self.encoding.content(hash)?;
        self.digits.extend(content_digits(hash));
        Ok(())
    }

    fn mark_flow(&mut self) {
        self.encoding.mark_flow();
    }
}

#[pymethods]
impl Layout {
    /// Axes of floating-point scalars.
    #[staticmethod]
    #[pyo3(signature = (name, shape, low, high, bins, *, scale=1.0, declared=true))]
    fn real(
        name: String,
        shape: Vec<usize>,
        low: Vec<f64>,
        high: Vec<f64>,
        bins: Vec<u64>,
        scale: f64,
        declared: bool,
    ) -> PyResult<Self> {
        let axes = axes(&name, (&low, &high, &bins), |l, h, n| {
            Axis::real(l, h, n, scale, declared)
        });
        Self::leaf(name, shape, axes)
    }

    /// Axes of integer or boolean scalars.
    #[staticmethod]
    #[pyo3(signature = (name, shape, low, high, bins, *, scale=1.0, declared=true))]
    fn integer(
        name: String,
        shape: Vec<usize>,
        low: Vec<f64>,
        high: Vec<f64>,
        bins: Vec<u64>,
        scale: f64,
        declared: bool,
    ) -> PyResult<Self> {
        let axes = axes(&name, (&low, &high, &bins), |l, h, n| {
            Axis::integer(l, h, n, scale, declared)
        });
        Self::leaf(name, shape, axes)
    }

    /// Axes with one bin a value, where any other value is an error.
    #[staticmethod]
    fn categories(
        name: String,
        shape: Vec<usize>,
        start: Vec<i64>,
        size: Vec<u64>,
    ) -> PyResult<Self> {
        if start.len() != size.len() {
            return Err(Error::Length {
                place: name,
                expected: start.len(),
                got: size.len(),
            }
            .into());
        }
        let axes = start
            .iter()
            .zip(&size)
            .map(|(&start, &size)| Axis::category(start, size))
            .collect();
        Self::leaf(name, shape, axes)
    }

    /// A leaf whose cell is the 128-bit hash of the canonical content of its value: text, bytes,
    /// numbers, None, and sequences, mappings and arrays of them.
    #[staticmethod]
    fn content(name: String) -> PyResult<Self> {
        Self::leaf(name, Vec::new(), Ok(vec![Axis::Content]))
    }

    /// A leaf of an array whose cell is the hash of its exact content.
    #[staticmethod]
    fn exact(name: String, shape: Vec<usize>) -> PyResult<Self> {
        Self::encoded_leaf(name, shape, vec![Axis::Content], Encoder::Exact)
    }

    /// Axes of the means of a grid of blocks over an image; `low` and `high` bound its pixels.
    #[staticmethod]
    #[pyo3(signature = (name, shape, rows, columns, *, low, high, levels, scale=1.0, declared=true))]
    fn grey_grid(
        name: String,
        shape: Vec<usize>,
        rows: u32,
        columns: u32,
        low: f64,
        high: f64,
        levels: u64,
        scale: f64,
        declared: bool,
    ) -> PyResult<Self> {
        let words = |error| PyValueError::new_err(format!("{name}: {error}"));
        let grid = GreyGrid::new(rows, columns, &shape).map_err(words)?;
        let axis = Axis::real(low, high, levels, scale, declared).map_err(words)?;
        let axes = vec![axis; grid.blocks()];
        Self::encoded_leaf(name, shape, axes, Encoder::GreyGrid(grid))
    }

    /// Axes of a random projection of what `inputs`, a layout of one array, has axes for.
    #[staticmethod]
    #[pyo3(signature = (inputs, axes, *, seed, low, high, bins))]
    fn projection(
        inputs: PyRef<'_, Self>,
        axes: u32,
        seed: u64,
        low: f64,
        high: f64,
        bins: u64,
    ) -> PyResult<Self> {
        let [leaf] = inputs.core.leaves() else {
            return Err(PyValueError::new_err(
                "inputs must be the layout of one array",
            ));
        };
        let (name, shape) = (leaf.name().to_owned(), leaf.shape().to_vec());
        let words = |error| PyValueError::new_err(format!("{name}: {error}"));
        let projection = Projection::new(axes, seed, leaf.axes().to_vec()).map_err(words)?;
        let axis = Axis::real(low, high, bins, 1.0, false).map_err(words)?;
        let axes = vec![axis; axes as usize];
        Self::encoded_leaf(name, shape, axes, Encoder::Projection(projection))
    }

    /// Axes of what a user's encoder returns: a 1-D array of cell digits, or of unbounded values.
    #[staticmethod]
    #[pyo3(signature = (bins, *, digits, scale=1.0))]
    fn encoded(bins: Vec<u64>, digits: bool, scale: f64) -> PyResult<Self> {
        let axis = |&bins: &u64| {
            if digits {
                Ok(Axis::Digit)
            } else {
                Axis::real(f64::NEG_INFINITY, f64::INFINITY, bins, scale, true)
            }
        };
        let axes = bins.iter().map(axis).collect();
        Self::leaf(ENCODED_LEAF.into(), vec![bins.len()], axes)
    }

    /// The axes of a Tuple space.
    #[staticmethod]
    fn of_tuple(name: String, items: Vec<PyRef<'_, Self>>) -> Self {
        let parts: Vec<&Self> = items.iter().map(|item| &**item).collect();
        let (nodes, core) = Self::join(&parts);
        Self {
            tree: Node::Tuple(name, nodes),
            core,
        }
    }

    /// The axes of a Dict space, in the order of the space.
    #[staticmethod]
    fn of_dict(name: String, items: Vec<(String, PyRef<'_, Self>)>) -> Self {
        let parts: Vec<&Self> = items.iter().map(|(_, item)| &**item).collect();
        let (nodes, core) = Self::join(&parts);
        let keys = items.iter().map(|(key, _)| key.clone());
        Self {
            tree: Node::Dict(name, keys.zip(nodes).collect()),
            core,
        }
    }

    /// Number of axes.
    fn __len__(&self) -> usize {
        self.core.width()
    }

    fn __repr__(&self) -> String {
        format!("Layout({} axes)", self.core.width())
    }

    /// Name of every axis.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.core.named_axes().map(|(name, _)| name).collect()
    }

    /// In-range bins of every axis; 2**64 - 1 where cells are hashes.
    #[getter]
    fn sizes(&self) -> Vec<u64> {
        self.core
            .named_axes()
            .map(|(_, axis)| axis.size())
            .collect()
    }

    /// For every leaf with an encoder, its name and a hash of what decides how it is encoded.
    #[getter]
    fn encoded_leaves(&self) -> Vec<(String, String)> {
        let leaves = self.core.leaves().iter();
        leaves
            .filter_map(|leaf| Some((leaf.name().to_owned(), leaf.fingerprint()?)))
            .collect()
    }

    /// The digit of every scalar: 0 underflow, 1 to n in range, n + 1 overflow; 0 to n - 1 where
    /// there are no flow bins; four for a hash, the most significant first.
    fn digits(&self, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let mut scratch = Vec::new();
        let mut digits = Digits {
            encoding: self.core.encode(&mut scratch),
            digits: Vec::new(),
        };
        self.sink_into(value, &mut digits)?;
        digits.encoding.finish()?;
        Ok(digits.digits)
    }

    /// The bin of every scalar in the histogram of its axis.
    fn histogram_bins(&self, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let mut row = Row::new();
        self.encode_row(value, &mut row)?;
        Ok(row.to_vec())
    }

    /// The 128-bit key of the cell of a value.
    fn key(&self, value: &Bound<'_, PyAny>) -> PyResult<u128> {
        Ok(self.encode(value)?.0.0)
    }

    /// The layout as JSON.
    fn to_json(&self) -> PyResult<String> {
        let saved = Saved {
            tree: self.tree.clone(),
            leaves: self.core.leaves().to_vec(),
        };
        serde_json::to_string(&saved).map_err(|error| Error::malformed("the layout", error).into())
    }

    /// A layout from its JSON.
    #[classmethod]
    fn from_json(_cls: &Bound<'_, PyType>, text: &str) -> PyResult<Self> {
        let wrong = |why: String| Error::malformed("the layout", why);
        let saved: Saved = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for leaf in &saved.leaves {
            leaf.validate()?;
        }
        let mut walked = Vec::new();
        saved.tree.leaves(&mut walked);
        if !walked.iter().copied().eq(0..saved.leaves.len()) {
            return Err(wrong("the nesting does not walk its leaves in order".into()).into());
        }
        Ok(Self {
            tree: saved.tree,
            core: Arc::new(core::Layout::new(saved.leaves)),
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let from_json = slf.get_type().getattr("from_json")?;
        Ok((from_json, (slf.get().to_json()?,)))
    }
}
