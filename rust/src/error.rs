//! One variant for each precondition that a caller can break.

/// What went wrong; nothing was changed when it is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A parameter is outside its range.
    #[error("{name} must be {expected}, got {got}")]
    Parameter {
        /// The name users know it by.
        name: String,
        /// What would have been accepted.
        expected: String,
        /// What arrived.
        got: String,
    },
    /// A value is NaN, so it has no bin.
    #[error("{place} is NaN; expected a number")]
    NotANumber {
        /// Leaf and index.
        place: String,
    },
    /// A value of a space that has one bin a value lies outside the space.
    #[error("{place} is {value}, outside the space; expected an integer from {low} to {high}")]
    OutsideSpace {
        /// Leaf and index.
        place: String,
        /// What arrived.
        value: String,
        /// Smallest legal value.
        low: i128,
        /// Largest legal value.
        high: i128,
    },
    /// An axis of integers met a fraction.
    #[error("{place} is {value}; expected a whole number, since its space holds integers")]
    NotWhole {
        /// Leaf and index.
        place: String,
        /// What arrived.
        value: f64,
    },
    /// A scalar came where the hash of a content is expected.
    #[error("{place} has no axes; expected the hash of its content")]
    Unordered {
        /// Leaf and index.
        place: String,
    },
    /// A hash came where a scalar is expected.
    #[error("{place} has an axis; expected a scalar, not the hash of a content")]
    Ordered {
        /// Leaf and index.
        place: String,
    },
    /// The number of values does not fit the layout.
    #[error("{place} has {got} values; expected {expected}")]
    Length {
        /// The layout or leaf.
        place: String,
        /// Values expected.
        expected: usize,
        /// Values that arrived.
        got: usize,
    },
    /// Snapshots, or a snapshot and a tracker, are on different axes.
    #[error("the axes differ: {0}")]
    AxesDiffer(String),
    /// A snapshot or state that this version cannot read.
    #[error("{what} cannot be read: {why}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// The first thing wrong with it.
        why: String,
    },
    /// A pair was to be counted, but an observation or an action is missing.
    #[error("no {0} is pending; nothing to count")]
    NothingPending(&'static str),
    /// More distinct cells than the table can number.
    #[error("more than {0} distinct cells; use fewer bins")]
    TooManyCells(u32),
    /// A kept token is NaN or infinite.
    #[error("{place} is {value}; expected a finite number, or a mask that leaves it out")]
    NotFinite {
        /// Argument and index.
        place: String,
        /// What arrived.
        value: f64,
    },
    /// A weight of a distribution is NaN or infinite.
    #[error("{place} is {value}; expected a finite number")]
    WeightNotFinite {
        /// Argument and index.
        place: String,
        /// What arrived.
        value: f64,
    },
    /// The estimate of a token with finite log-probabilities is beyond the largest number.
    #[error(
        "{estimator} overflows at {policy} - {reference} = {log_ratio}; expected log-probabilities \
         that lie closer, or another estimator"
    )]
    EstimateOverflow {
        /// The estimator's name.
        estimator: &'static str,
        /// Argument and index.
        policy: String,
        /// Argument and index.
        reference: String,
        /// Their difference.
        log_ratio: f64,
    },
    /// Every term is finite, but their sum is not.
    #[error("the sum is beyond the largest number; expected values of smaller size")]
    SumOverflow,
    /// A mask holds something that is neither yes nor no.
    #[error("{place} is {value}; expected a bool, 0 or 1")]
    MaskValue {
        /// Argument and index.
        place: String,
        /// What arrived, in all its digits.
        value: String,
    },
    /// A weight of a distribution is negative.
    #[error("{place} is {value}; expected a number of at least 0")]
    Negative {
        /// Argument and index.
        place: String,
        /// What arrived.
        value: f64,
    },
    /// Weights that were to be probabilities do not sum to 1.
    #[error(
        "{place} sums to {total}; expected probabilities, which sum to 1 within {tolerance:e} \
         (for counts pass epsilon=)"
    )]
    NotNormalised {
        /// Argument and index.
        place: String,
        /// Their sum.
        total: f64,
        /// How far from 1 it may be.
        tolerance: f64,
    },
    /// A count does not fit 64 bits.
    #[error("a count exceeds 2^64 - 1")]
    CountOverflow,
}

/// A result of the core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A [`Error::Parameter`] from anything that displays.
    pub(crate) fn parameter(
        name: &str,
        expected: impl Into<String>,
        got: impl std::fmt::Display,
    ) -> Self {
        Self::Parameter {
            name: name.into(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    /// A [`Error::Malformed`] from anything that displays.
    pub(crate) fn malformed(what: &'static str, why: impl std::fmt::Display) -> Self {
        Self::Malformed {
            what,
            why: why.to_string(),
        }
    }
}
