//! Exchanges of the episodes of two recorded runs.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::episode_permutations::{EpisodePermutations as Core, Split};

type Divergences = (f64, f64, f64);

fn divergences(split: Split) -> Divergences {
    (split.joint, split.observation, split.policy)
}

/// Two recorded runs and the random exchanges of their whole episodes.
///
/// Args:
///     a: The episodes of the first run, each a list of (observation, action) numbers.
///     b: Those of the second; a number means the same in both.
///     epsilon: Pseudocount of each occupied cell.
///     seed: From 0 to 2^64 - 1; equal seeds give equal permutations.
///
/// Raises:
///     ValueError: A run has no episode, an episode no pair, or `epsilon` is out of its range.
#[pyclass(frozen, module = "kl_proteus._core")]
pub(crate) struct EpisodePermutations(Mutex<Core>);

#[pymethods]
impl EpisodePermutations {
    #[new]
    #[pyo3(signature = (a, b, *, epsilon=0.5, seed=0))]
    fn new(
        py: Python<'_>,
        a: Vec<Vec<(u32, u32)>>,
        b: Vec<Vec<(u32, u32)>>,
        epsilon: f64,
        seed: u64,
    ) -> PyResult<Self> {
        let core = py.detach(|| Core::new(&a, &b, epsilon, seed))?;
        Ok(Self(Mutex::new(core)))
    }

    /// Joint divergence of `a` from `b`, its observation part and its policy part, in nats.
    fn observed(&self) -> Divergences {
        let core = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        divergences(core.observed())
    }

    /// The same for each of the next `n` random exchanges; works without the interpreter's lock.
    fn permuted(&self, py: Python<'_>, n: usize) -> Vec<Divergences> {
        py.detach(|| {
            let mut core = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (0..n).map(|_| divergences(core.permuted())).collect()
        })
    }
}
