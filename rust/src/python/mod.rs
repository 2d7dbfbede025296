//! The bindings: thin calls into the core.
//!
//! `arrays` is the one place that reads Python values, `errors` the one place where errors cross.
//! No lock is held while Python code runs.
#![allow(
    clippy::doc_markdown,            // docstrings are Python's, in Google style
    clippy::needless_pass_by_value,  // PyO3 hands arguments over by value
    clippy::too_many_arguments,      // keyword arguments
    clippy::type_complexity,         // what __reduce__ returns
)]

mod arguments;
mod arrays;
mod content;
mod controller;
mod detector;
mod encoding;
mod errors;
mod estimators;
mod layout;
mod named;
mod permutations;
mod sequences;
mod snapshot;
mod tracker;
mod vector;

/// The native module of `kl_proteus`.
#[pyo3::pymodule(name = "_core", module = "kl_proteus")]
mod module {
    #[pymodule_export]
    use super::controller::{
        AdaptiveKLController, CoefficientController, FixedKLController, PIDKLController,
        PPOPenaltyController, ScheduledKLController, ThresholdKLController, controller_from_json,
    };
    #[pymodule_export]
    use super::detector::{DriftDetector, KeyPairs};
    #[pymodule_export]
    use super::estimators::{kl_divergence, kl_from_logprobs, kl_penalties};
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::permutations::EpisodePermutations;
    #[pymodule_export]
    use super::snapshot::merge_snapshots;
    #[pymodule_export]
    use super::tracker::PairTracker;
    #[pymodule_export]
    use super::vector::VectorTracker;

    /// Version of the library.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Whether the native module was built without optimisation, so that no benchmark is read off it.
    #[pymodule_export]
    const DEBUG_BUILD: bool = cfg!(debug_assertions);
}
