//! Estimates from log-probabilities, divergences of distributions, and penalties.

#![allow(clippy::inline_always)] // What is not inlined does not get wide registers.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyList};

use super::arguments::{number, word};
use super::arrays::{Grid, GridView, Loop, Role, shape_text, with_wide_registers};
use super::sequences::{ArrayTokens, Batch, MixedTokens, Opened, Stop, to_array, with_opened};
use crate::divergence::{Weights, divergence, smoothed_divergence};
use crate::estimator::Estimator;
use crate::penalty::{Penalty, PenaltyKind};
use crate::reduction::{BatchTotal, Counts, Estimation, OnNonFinite, Reduction, Tokens};

/// Tokens from which on the interpreter is released: the work then takes tens of microseconds.
const RELEASE_FROM: usize = 1 << 16;

enum Values {
    Batch(f64),
    Sequences(Vec<f64>),
    /// One sequence after the other.
    Tokens(Vec<f64>),
}

/// The estimates of all sequences that `open` gives.
struct Estimate<O, N> {
    estimation: Estimation,
    reduction: Reduction,
    sequences: usize,
    open: O,
    name: N,
}

impl<T: Tokens, O: Fn(usize) -> T, N: Fn(usize) -> Option<usize>> Loop for Estimate<O, N> {
    type Output = Result<(Values, Counts), T::Error>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let mut batch = BatchTotal::default();
        let mut kept_apart = Vec::new();
        for sequence in 0..self.sequences {
            let tokens = (self.open)(sequence);
            let name = (self.name)(sequence);
            let total = if self.reduction == Reduction::None {
                let start = kept_apart.len();
                kept_apart.resize(start + tokens.len(), 0.0);
                self.estimation
                    .values(&tokens, name, &mut kept_apart[start..])?
            } else {
                self.estimation.total(&tokens, name)?
            };
            if self.reduction == Reduction::PerSequence {
                kept_apart.push(total.mean());
            }
            batch.add(&total);
        }
        let values = match self.reduction {
            Reduction::None => Values::Tokens(kept_apart),
            Reduction::PerSequence => Values::Sequences(kept_apart),
            _ => Values::Batch(batch.value(self.reduction)?),
        };
        Ok((values, batch.counts()))
    }
}

/// Per-token numbers in the shape of an argument.
fn in_shape<'py>(
    py: Python<'py>,
    values: Vec<f64>,
    like: &Opened<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    match like {
        Opened::One(_) => Ok(PyArray1::from_vec(py, values).into_any()),
        Opened::Grid(view) => {
            let array = PyArray1::from_vec(py, values);
            Ok(array.reshape([view.rows(), view.columns()])?.into_any())
        }
        Opened::Many(rows) => {
            let list = PyList::empty(py);
            let mut rest = values.as_slice();
            for row in rows {
                let (values, others) = rest.split_at(row.len());
                list.append(PyArray1::from_slice(py, values))?;
                rest = others;
            }
            Ok(list.into_any())
        }
    }
}

/// KL(policy || reference) from log-probabilities: the value, then tokens kept, tokens excluded,
/// and sequences with a kept token.
#[pyfunction]
#[pyo3(signature = (policy, reference, mask, estimator, reduction, on_nonfinite))]
pub(crate) fn kl_from_logprobs<'py>(
    py: Python<'py>,
    policy: &Bound<'py, PyAny>,
    reference: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    estimator: &Bound<'py, PyAny>,
    reduction: &Bound<'py, PyAny>,
    on_nonfinite: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, u64, u64, u64)> {
    let estimation = Estimation {
        estimator: word("estimator", estimator, Estimator::from_name)?,
        on_nonfinite: word("on_nonfinite", on_nonfinite, OnNonFinite::from_name)?,
    };
    let reduction = word("reduction", reduction, Reduction::from_name)?;
    let policy = Batch::new("policy", policy, Role::Numbers)?;
    let reference = Batch::new("reference", reference, Role::Numbers)?;
    let mask = mask
        .map(|mask| Batch::new("mask", mask, Role::Mask))
        .transpose()?;
    let batches = [("policy", policy), ("reference", reference)];
    with_opened(batches, mask, |[policy, reference], mask| {
        let (values, counts) = estimate(py, estimation, reduction, policy, reference, mask)?;
        // Everything has been read; of `policy` only lengths are needed from here on.
        let value = match values {
            Values::Batch(value) => PyFloat::new(py, value).into_any(),
            Values::Sequences(values) => PyArray1::from_vec(py, values).into_any(),
            Values::Tokens(values) => in_shape(py, values, policy)?,
        };
        Ok((value, counts.kept, counts.excluded, counts.sequences))
    })
}

fn estimate(
    py: Python<'_>,
    estimation: Estimation,
    reduction: Reduction,
    policy: &Opened<'_>,
    reference: &Opened<'_>,
    mask: Option<&Opened<'_>>,
) -> Result<(Values, Counts), Stop> {
    let one = policy.is_one();
    let name = |sequence| (!one).then_some(sequence);
    let mask_view = mask.map(Opened::view);
    let views = (policy.view(), reference.view(), mask_view);
    if let (Some(policy), Some(reference), None | Some(Some(_))) = views {
        let mask = mask_view.flatten();
        let run = move || estimate_arrays(estimation, reduction, policy, reference, mask, one);
        return Ok(
            if policy.rows().saturating_mul(policy.columns()) < RELEASE_FROM {
                run()?
            } else {
                py.detach(run)?
            },
        );
    }
    let open = |sequence| MixedTokens {
        policy: policy.reader(sequence),
        reference: reference.reader(sequence),
        mask: mask.map(|mask| mask.reader(sequence)),
        sequence: name(sequence),
    };
    with_wide_registers(Estimate {
        estimation,
        reduction,
        sequences: policy.len(),
        open,
        name,
    })
}

fn estimate_arrays(
    estimation: Estimation,
    reduction: Reduction,
    policy: GridView<'_>,
    reference: GridView<'_>,
    mask: Option<GridView<'_>>,
    one: bool,
) -> crate::error::Result<(Values, Counts)> {
    let name = |sequence| (!one).then_some(sequence);
    let open = |sequence| ArrayTokens {
        policy: policy.row(sequence),
        reference: reference.row(sequence),
        mask: mask.map(|mask| mask.row(sequence)),
        sequence: name(sequence),
    };
    with_wide_registers(Estimate {
        estimation,
        reduction,
        sequences: policy.rows(),
        open,
        name,
    })
}

/// Per-token rewards from per-token divergences.
#[pyfunction]
#[pyo3(signature = (kl, coefficient, mask, kind, discount))]
pub(crate) fn kl_penalties<'py>(
    py: Python<'py>,
    kl: &Bound<'py, PyAny>,
    coefficient: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    kind: &Bound<'py, PyAny>,
    discount: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let penalty = Penalty::new(
        word("kind", kind, PenaltyKind::from_name)?,
        number("coefficient", coefficient)?,
        number("discount", discount)?,
    )?;
    let kl = Batch::new("kl", kl, Role::Numbers)?;
    let mask = mask
        .map(|mask| Batch::new("mask", mask, Role::Mask))
        .transpose()?;
    with_opened([("kl", kl)], mask, |[kl], mask| {
        let rewards = rewards(penalty, kl, mask)?;
        Ok(in_shape(py, rewards, kl)?)
    })
}

fn rewards(penalty: Penalty, kl: &Opened<'_>, mask: Option<&Opened<'_>>) -> Result<Vec<f64>, Stop> {
    let mut rewards = Vec::new();
    let mut keep = Vec::new();
    for sequence in 0..kl.len() {
        let name = (!kl.is_one()).then_some(sequence);
        let reader = kl.reader(sequence);
        let start = rewards.len();
        rewards.resize(start + reader.len(), 0.0);
        let rewards = &mut rewards[start..];
        keep.clear();
        keep.resize(rewards.len(), true);
        if let Some(mask) = mask {
            mask.reader(sequence).flags(name, 0, &mut keep)?;
        }
        reader.numbers(0, &keep, rewards)?;
        penalty.apply(rewards, &keep, name)?;
    }
    Ok(rewards)
}

/// One argument of `kl_divergence`.
struct Distributions {
    name: &'static str,
    // Not the array: reading the other argument may run Python code that changes it.
    shape: Vec<usize>,
    values: Vec<f64>,
    cells: usize,
    /// How far a sum may be from 1: what is lost where the element type rounds.
    tolerance: f64,
}

impl Distributions {
    fn new(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let grid = Grid::new(name, to_array(name, value)?, Role::Numbers)?;
        let shape = grid.shape().to_vec();
        let cells = match shape.last() {
            Some(&cells) if cells > 0 => cells,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "{name} has shape {}; expected at least one cell along the last axis",
                    shape_text(&shape)
                )));
            }
        };
        Ok(Self {
            name,
            shape,
            values: grid.to_vec(name)?,
            cells,
            tolerance: grid.resolution().sqrt().max(1e-6),
        })
    }

    fn outer(&self) -> &[usize] {
        &self.shape[..self.shape.len() - 1]
    }

    /// The vector with this number, or the only one.
    fn weights(&self, index: usize) -> Weights<'_> {
        let single = self.outer().is_empty();
        let start = if single { 0 } else { index * self.cells };
        Weights {
            name: self.name,
            index: (!single).then_some(index),
            values: &self.values[start..start + self.cells],
        }
    }
}

/// KL(P || Q) of probabilities, or of counts smoothed by `epsilon`, over the last axis.
#[pyfunction]
#[pyo3(signature = (p, q, *, epsilon=None))]
pub(crate) fn kl_divergence<'py>(
    py: Python<'py>,
    p: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    epsilon: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let epsilon = epsilon
        .map(|epsilon| number("epsilon", epsilon))
        .transpose()?;
    let p = Distributions::new("p", p)?;
    let q = Distributions::new("q", q)?;
    let alike = p.outer() == q.outer() || p.outer().is_empty() || q.outer().is_empty();
    if p.cells != q.cells || !alike {
        return Err(PyValueError::new_err(format!(
            "q has shape {}, and p {}; expected the same shape, or one of them a single vector of \
             as many cells",
            shape_text(&q.shape),
            shape_text(&p.shape)
        )));
    }
    let outer = if p.outer().is_empty() {
        q.outer()
    } else {
        p.outer()
    };
    let tolerances = (p.tolerance, q.tolerance);
    let values = (0..outer.iter().product()).map(|index| {
        let (p, q) = (p.weights(index), q.weights(index));
        match epsilon {
            Some(epsilon) => smoothed_divergence(p, q, epsilon),
            None => divergence(p, q, tolerances),
        }
    });
    let values = values.collect::<crate::error::Result<Vec<f64>>>()?;
    if let (&[value], true) = (values.as_slice(), outer.is_empty()) {
        return Ok(PyFloat::new(py, value).into_any());
    }
    let array = PyArray1::from_vec(py, values);
    Ok(array.reshape(outer.to_vec())?.into_any())
}
