//! The core of `kl_proteus`: how far the behaviour of a policy drifts, in nats.
//!
//! The core knows no Python. A [`Layout`] turns an observation or an action into a [`Key`], a
//! [`Drift`] counts pairs of keys in two windows and keeps their divergence as exact integer sums,
//! and a [`PairTracker`] joins the two. The bindings live in `python/`, behind a feature.
//!
//! Dependencies point one way: `error <- axis <- layout`, `log_table <- cells <- drift`,
//! `null_term <- floor <- cells`, `history <- drift`, `student <- expectation <- drift`,
//! `student <- calibration <- snapshot`, both of [`detector`], `axis_histograms <- axis_windows <-
//! axis_tracker` for each axis on its own, `tracker` on top of these, and `vector` on top of that.
//! Beside them, for language models:
//! `estimator <- reduction`, `estimator <- divergence`, `penalty`, and [`controller`].
#![deny(missing_docs)]

mod axis;
mod axis_bins;
mod axis_histograms;
mod axis_moves;
mod axis_tracker;
mod axis_windows;
mod blindness;
mod calibration;
mod cells;
mod content;
pub mod controller;
pub mod detector;
mod divergence;
mod drift;
mod encoder;
mod episode_permutations;
mod episodes;
mod error;
mod estimator;
mod expectation;
mod floor;
mod history;
mod layout;
mod log_table;
mod null_term;
mod penalty;
mod reduction;
mod row;
mod slots;
mod snapshot;
mod student;
mod tracker;
mod vector;

#[cfg(feature = "python")]
mod python;

pub use axis::{Axis, Binned, Unbinnable};
pub use axis_histograms::AxisCounts;
pub use axis_moves::{AxisMove, GrownBin};
pub use axis_tracker::{AxisShares, MOST_AXES};
pub use blindness::Blindness;
pub use content::Content;
pub use divergence::{Weights, divergence, smoothed_divergence};
pub use drift::{Config, Drift, DriftState, Report, Which};
pub use encoder::{Encoder, GreyGrid, Projection};
pub use episode_permutations::{EpisodePermutations, Split};
pub use episodes::EpisodesState;
pub use error::{Error, Result};
pub use estimator::Estimator;
pub use expectation::{Expectation, log_divergence};
pub use history::{History, HistoryState, Moments};
pub use layout::{Bins, Encoding, Key, Layout, Leaf, TakeBin, content_digits};
pub use penalty::{Penalty, PenaltyKind};
pub use reduction::{
    BatchTotal, Counts, Estimation, OnNonFinite, Reduction, SequenceTotal, Tokens, place,
};
pub use row::Row;
pub use snapshot::{NamedAxis, Snapshot};
pub use student::student_t_tail;
pub use tracker::{Observed, PairTracker, Statistics};
pub use vector::{Next, VectorTracker};
