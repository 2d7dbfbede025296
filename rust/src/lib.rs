//! The core of `kl_proteus`: how far the behaviour of a policy drifts, in nats.
//!
//! The core knows no Python. A [`Layout`] turns an observation or an action into a [`Key`], a
//! [`Drift`] counts pairs of keys in two windows and keeps their divergence as exact integer sums,
//! and a [`PairTracker`] joins the two. The bindings live in `python/`, behind a feature.
//!
//! Dependencies point one way: `error <- axis <- layout`, `log_table <- cells <- drift`,
//! `history <- drift`, and `tracker` on top of both.
#![deny(missing_docs)]

mod axis;
mod cells;
mod drift;
mod error;
mod history;
mod layout;
mod log_table;
mod slots;
mod snapshot;
mod tracker;

#[cfg(feature = "python")]
mod python;

pub use axis::{Axis, Binned};
pub use drift::{Config, Drift, DriftState, Report, Which};
pub use error::{Error, Result};
pub use history::{History, HistoryState, Moments};
pub use layout::{Encoding, Key, Layout, Leaf};
pub use snapshot::{NamedAxis, Snapshot};
pub use tracker::{Observed, PairTracker, Statistics};
