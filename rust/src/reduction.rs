//! From per-token estimates to the numbers that are reported: per token, per sequence, per batch.
//!
//! What a sequence adds up to depends on its kept tokens and their order alone: they are packed
//! into blocks before they are summed, so padding, its side and its values change no bit.

#![allow(clippy::inline_always)] // What is not inlined does not get wide registers.

use crate::error::{Error, Result};
use crate::estimator::Estimator;

/// How the estimates of the kept tokens are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Not at all: every token's estimate.
    None,
    /// The mean of each sequence.
    PerSequence,
    /// The sum over all tokens by their number.
    TokenMean,
    /// The mean of the means of the sequences.
    SequenceMean,
    /// The mean of the sums of the sequences.
    SequenceSum,
}

impl Reduction {
    /// The reduction of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "per_sequence" => Ok(Self::PerSequence),
            "token_mean" => Ok(Self::TokenMean),
            "sequence_mean" => Ok(Self::SequenceMean),
            "sequence_sum" => Ok(Self::SequenceSum),
            _ => Err(Error::parameter(
                "reduction",
                "'none', 'per_sequence', 'token_mean', 'sequence_mean' or 'sequence_sum'",
                format!("{name:?}"),
            )),
        }
    }
}

/// What happens to a kept token whose estimate is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnNonFinite {
    /// It is an error that names the position.
    Raise,
    /// It is left out of sum and count, and counted.
    Exclude,
}

impl OnNonFinite {
    /// The policy of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "raise" => Ok(Self::Raise),
            "exclude" => Ok(Self::Exclude),
            _ => Err(Error::parameter(
                "on_nonfinite",
                "'raise' or 'exclude'",
                format!("{name:?}"),
            )),
        }
    }
}

/// The tokens of one sequence, wherever they lie.
pub trait Tokens {
    /// What reading can fail with.
    type Error: From<Error>;

    /// The number of tokens, masked ones too.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is a mask; without one, `keep` is not called.
    fn is_masked(&self) -> bool;

    /// Writes which of the tokens from `start` on are kept.
    ///
    /// # Errors
    /// The mask cannot be read.
    fn keep(&self, start: usize, keep: &mut [bool]) -> std::result::Result<(), Self::Error>;

    /// Writes policy minus reference log-probability of the tokens from `start` on; what it writes
    /// where `keep` is false is not used.
    ///
    /// # Errors
    /// A log-probability cannot be read.
    fn log_ratios(
        &self,
        start: usize,
        keep: &[bool],
        log_ratios: &mut [f64],
    ) -> std::result::Result<(), Self::Error>;

    /// Policy and reference log-probability of one token, for messages.
    ///
    /// # Errors
    /// A log-probability cannot be read.
    fn pair(&self, token: usize) -> std::result::Result<(f64, f64), Self::Error>;
}

/// Where a value came from, as users would index it.
#[must_use]
pub fn place(argument: &str, sequence: Option<usize>, token: usize) -> String {
    match sequence {
        Some(sequence) => format!("{argument}[{sequence}][{token}]"),
        None => format!("{argument}[{token}]"),
    }
}

/// A sum of many terms whose rounding errors are carried along (T. J. Dekker 1971).
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        let high = self.high + term;
        let part = high - self.high;
        self.low += (self.high - (high - part)) + (term - part);
        self.high = high;
    }

    fn value(self) -> f64 {
        self.high + self.low
    }
}

/// What a sequence comes to.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceTotal {
    sum: Sum,
    /// Tokens in the sum.
    pub kept: u64,
    /// Tokens left out because their estimate is not finite.
    pub excluded: u64,
}

impl SequenceTotal {
    /// The sum of the estimates, in nats.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum.value()
    }

    /// The mean of the estimates, in nats per token; 0.0 where no token is kept.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.kept == 0 {
            0.0
        } else {
            self.sum.value() / self.kept as f64
        }
    }
}

/// Tokens that are read together.
const CHUNK: usize = 128;
/// Tokens that are summed together.
const BLOCK: usize = 512;

/// Estimates the tokens of sequences, one sequence after the other.
#[derive(Debug, Clone, Copy)]
pub struct Estimation {
    /// What is estimated of each token.
    pub estimator: Estimator,
    /// What happens where that is not finite.
    pub on_nonfinite: OnNonFinite,
}

impl Estimation {
    /// The total over the kept tokens of a sequence; `sequence` is its number for messages, `None`
    /// where there is only one.
    ///
    /// # Errors
    /// A token cannot be read, or is not finite and that is to be raised.
    #[inline(always)]
    pub fn total<T: Tokens>(
        self,
        tokens: &T,
        sequence: Option<usize>,
    ) -> std::result::Result<SequenceTotal, T::Error> {
        let mut total = SequenceTotal::default();
        let mut keep = [true; CHUNK];
        // A full block, and the chunk that overfills it.
        let mut packed = [0.0; BLOCK + CHUNK];
        let mut filled = 0;
        let mut start = 0;
        while start < tokens.len() {
            let length = CHUNK.min(tokens.len() - start);
            let keep = &mut keep[..length];
            if tokens.is_masked() {
                tokens.keep(start, keep)?;
            }
            filled += read_packed(tokens, start, keep, &mut packed[filled..filled + length])?;
            start += length;
            while filled >= BLOCK {
                let Some(left) = self.add_block(&mut total, &mut packed[..BLOCK]) else {
                    return Err(self.first_culprit(tokens, sequence));
                };
                packed.copy_within(BLOCK..filled, left);
                filled -= BLOCK - left;
            }
        }
        while filled > 0 {
            let Some(left) = self.add_block(&mut total, &mut packed[..filled]) else {
                return Err(self.first_culprit(tokens, sequence));
            };
            filled = left;
        }
        if total.sum().is_finite() {
            Ok(total)
        } else {
            Err(Error::SumOverflow.into())
        }
    }

    /// Adds a block and returns 0; or, if its sum is not finite, moves what is finite to the front,
    /// adds nothing and returns how many that are. `None` is an error.
    #[inline(always)]
    fn add_block(self, total: &mut SequenceTotal, block: &mut [f64]) -> Option<usize> {
        let sum = self.estimator.sum(block);
        if sum.is_finite() {
            total.sum.add(sum);
            total.kept += block.len() as u64;
            return Some(0);
        }
        if self.on_nonfinite == OnNonFinite::Raise {
            return None;
        }
        self.drop_nonfinite(total, block)
    }

    #[cold]
    fn drop_nonfinite(self, total: &mut SequenceTotal, block: &mut [f64]) -> Option<usize> {
        let mut used = 0;
        for i in 0..block.len() {
            if self.estimator.value(block[i]).is_finite() {
                block[used] = block[i];
                used += 1;
            }
        }
        total.excluded += (block.len() - used) as u64;
        // All finite, and yet the sum is not.
        (used < block.len()).then_some(used)
    }

    /// The error about the first kept token that is not finite.
    #[cold]
    fn first_culprit<T: Tokens>(self, tokens: &T, sequence: Option<usize>) -> T::Error {
        if self.on_nonfinite == OnNonFinite::Exclude {
            return Error::SumOverflow.into();
        }
        for token in 0..tokens.len() {
            if let Err(error) = self.check(tokens, sequence, token) {
                return error;
            }
        }
        Error::SumOverflow.into()
    }

    fn check<T: Tokens>(
        self,
        tokens: &T,
        sequence: Option<usize>,
        token: usize,
    ) -> std::result::Result<(), T::Error> {
        let mut keep = [true];
        if tokens.is_masked() {
            tokens.keep(token, &mut keep)?;
        }
        if keep[0] {
            let (policy, reference) = tokens.pair(token)?;
            self.check_pair(policy, reference, sequence, token)?;
        }
        Ok(())
    }

    fn check_pair(
        self,
        policy: f64,
        reference: f64,
        sequence: Option<usize>,
        token: usize,
    ) -> Result<()> {
        for (argument, value) in [("policy", policy), ("reference", reference)] {
            if !value.is_finite() {
                return Err(Error::NotFinite {
                    place: place(argument, sequence, token),
                    value,
                });
            }
        }
        if self.estimator.value(policy - reference).is_finite() {
            return Ok(());
        }
        Err(Error::EstimateOverflow {
            estimator: self.estimator.name(),
            policy: place("policy", sequence, token),
            reference: place("reference", sequence, token),
            log_ratio: policy - reference,
        })
    }

    /// Writes the estimate of every token, 0.0 where it is masked or excluded; the total has the
    /// counts, and no sum.
    ///
    /// # Errors
    /// As [`Estimation::total`].
    ///
    /// # Panics
    /// `values` has another length than `tokens`.
    #[inline(always)]
    pub fn values<T: Tokens>(
        self,
        tokens: &T,
        sequence: Option<usize>,
        values: &mut [f64],
    ) -> std::result::Result<SequenceTotal, T::Error> {
        assert_eq!(values.len(), tokens.len(), "a value for every token");
        let mut total = SequenceTotal::default();
        let mut keep = [true; CHUNK];
        for (chunk, values) in values.chunks_mut(CHUNK).enumerate() {
            let start = chunk * CHUNK;
            let keep = &mut keep[..values.len()];
            if tokens.is_masked() {
                tokens.keep(start, keep)?;
            }
            tokens.log_ratios(start, keep, values)?;
            for (value, &kept) in values.iter_mut().zip(&*keep) {
                // Equal log-probabilities: every estimate of them is 0.
                *value = if kept { *value } else { 0.0 };
            }
            self.estimator.replace(values);
            let kept = keep.iter().filter(|&&kept| kept).count();
            let finite = values.iter().fold(0.0, |sum, &value| sum + value * 0.0) == 0.0;
            total.kept += kept as u64;
            if finite {
                continue;
            }
            if self.on_nonfinite == OnNonFinite::Raise {
                return Err(self.first_culprit(tokens, sequence));
            }
            for value in values {
                if !value.is_finite() {
                    *value = 0.0;
                    total.kept -= 1;
                    total.excluded += 1;
                }
            }
        }
        Ok(total)
    }
}

/// Writes the log-ratios of the kept tokens one after the other, and returns how many.
#[inline(always)]
fn read_packed<T: Tokens>(
    tokens: &T,
    start: usize,
    keep: &[bool],
    packed: &mut [f64],
) -> std::result::Result<usize, T::Error> {
    // One number a chunk, so that the loop can use vector registers.
    let flags = if tokens.is_masked() {
        let both = |(all, any), &kept| (all & u8::from(kept), any | u8::from(kept));
        keep.iter().fold((1, 0), both)
    } else {
        (1, 1)
    };
    match flags {
        (_, 0) => return Ok(0),
        (1, _) => {
            tokens.log_ratios(start, keep, packed)?;
            return Ok(keep.len());
        }
        _ => {}
    }
    let mut log_ratios = [0.0; CHUNK];
    let log_ratios = &mut log_ratios[..keep.len()];
    tokens.log_ratios(start, keep, log_ratios)?;
    let mut next = 0;
    for (&log_ratio, &kept) in log_ratios.iter().zip(keep) {
        // Written in any case, and overwritten where it is masked: there is no branch to mispredict.
        packed[next] = log_ratio;
        next += usize::from(kept);
    }
    Ok(next)
}

/// How many tokens and sequences a value stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tokens that entered.
    pub kept: u64,
    /// Kept by the mask, but left out because they are not finite.
    pub excluded: u64,
    /// Sequences with a token that entered.
    pub sequences: u64,
}

/// What a batch comes to.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchTotal {
    sum: Sum,
    means: Sum,
    counts: Counts,
}

impl BatchTotal {
    /// Adds a sequence; one without a kept token is left out of the means.
    pub fn add(&mut self, sequence: &SequenceTotal) {
        self.counts.excluded += sequence.excluded;
        if sequence.kept == 0 {
            return;
        }
        self.counts.kept += sequence.kept;
        self.counts.sequences += 1;
        self.sum.add(sequence.sum.high);
        self.sum.add(sequence.sum.low);
        self.means.add(sequence.mean());
    }

    /// How many tokens and sequences there were.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The number for the batch; 0.0 where no token is kept, and for the reductions that keep
    /// tokens or sequences apart.
    ///
    /// # Errors
    /// It overflows.
    pub fn value(&self, reduction: Reduction) -> Result<f64> {
        let (sum, count) = match reduction {
            Reduction::TokenMean => (self.sum, self.counts.kept),
            Reduction::SequenceMean => (self.means, self.counts.sequences),
            Reduction::SequenceSum => (self.sum, self.counts.sequences),
            Reduction::None | Reduction::PerSequence => return Ok(0.0),
        };
        if count == 0 {
            return Ok(0.0);
        }
        let value = sum.value() / count as f64;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Error::SumOverflow)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Log-ratios with their mask.
    struct Row(Vec<(f64, bool)>);

    impl Tokens for Row {
        type Error = Error;

        fn len(&self) -> usize {
            self.0.len()
        }

        fn is_masked(&self) -> bool {
            self.0.iter().any(|token| !token.1)
        }

        fn keep(&self, start: usize, keep: &mut [bool]) -> Result<()> {
            for (keep, token) in keep.iter_mut().zip(&self.0[start..]) {
                *keep = token.1;
            }
            Ok(())
        }

        fn log_ratios(&self, start: usize, _: &[bool], log_ratios: &mut [f64]) -> Result<()> {
            for (log_ratio, token) in log_ratios.iter_mut().zip(&self.0[start..]) {
                *log_ratio = token.0;
            }
            Ok(())
        }

        fn pair(&self, token: usize) -> Result<(f64, f64)> {
            Ok((self.0[token].0, 0.0))
        }
    }

    const ESTIMATORS: [Estimator; 4] =
        [Estimator::K1, Estimator::Abs, Estimator::K2, Estimator::K3];

    fn estimation(estimator: Estimator, on_nonfinite: OnNonFinite) -> Estimation {
        Estimation {
            estimator,
            on_nonfinite,
        }
    }

    fn noise(i: usize) -> f64 {
        (i as f64 * 12.9898).sin() * 1.7
    }

    #[test]
    fn masked_and_excluded_tokens_change_no_bit() {
        // Lengths around the chunk and the block, and gaps that never align with either.
        for length in [0, 1, 127, 128, 129, 511, 512, 513, 640, 1100, 2500] {
            for gap in [2, 3, 7, 150] {
                let dense = Row((0..length).map(|i| (noise(i), true)).collect());
                let mut gappy = Vec::new();
                let mut broken = Vec::new();
                for (i, &token) in dense.0.iter().enumerate() {
                    if i % gap == 0 {
                        gappy.extend([(f64::NAN, false); 5]);
                        broken.extend([(f64::NAN, true), (f64::INFINITY, true)]);
                    }
                    gappy.push(token);
                    broken.push(token);
                }
                for estimator in ESTIMATORS {
                    let raise = estimation(estimator, OnNonFinite::Raise);
                    let exclude = estimation(estimator, OnNonFinite::Exclude);
                    let expected = raise.total(&dense, None).unwrap();
                    let masked = raise.total(&Row(gappy.clone()), None).unwrap();
                    let excluded = exclude.total(&Row(broken.clone()), None).unwrap();
                    for got in [masked, excluded] {
                        assert_eq!(got.sum().to_bits(), expected.sum().to_bits());
                        assert_eq!(got.kept, length as u64);
                    }
                    assert_eq!(excluded.excluded, (broken.len() - length) as u64);
                }
            }
        }
    }

    #[test]
    fn the_first_culprit_is_named() {
        let mut row: Vec<(f64, bool)> = (0..1000).map(|i| (noise(i), true)).collect();
        row[3] = (f64::NAN, false);
        row[700].0 = f64::NEG_INFINITY;
        row[800].0 = f64::NAN;
        let raise = estimation(Estimator::K3, OnNonFinite::Raise);
        let error = Error::NotFinite {
            place: "policy[2][700]".into(),
            value: f64::NEG_INFINITY,
        };
        let row = Row(row);
        assert_eq!(raise.total(&row, Some(2)).unwrap_err(), error);
        let mut values = vec![0.0; 1000];
        assert_eq!(raise.values(&row, Some(2), &mut values).unwrap_err(), error);
    }

    #[test]
    fn values_are_those_that_are_summed() {
        let row = Row((0..1000).map(|i| (noise(i), i % 3 != 0)).collect());
        for estimator in ESTIMATORS {
            let raise = estimation(estimator, OnNonFinite::Raise);
            let mut values = vec![9.0; 1000];
            let total = raise.values(&row, None, &mut values).unwrap();
            let sum = raise.total(&row, None).unwrap();
            assert_eq!(total.kept, sum.kept);
            assert!((values.iter().sum::<f64>() - sum.sum()).abs() < 1e-11);
            assert_eq!(values[0], 0.0);
        }
    }

    #[test]
    fn sums_of_the_largest_numbers_are_refused() {
        let row = Row(vec![(f64::MAX, true); 2000]);
        for on_nonfinite in [OnNonFinite::Raise, OnNonFinite::Exclude] {
            let largest = estimation(Estimator::K1, on_nonfinite);
            assert_eq!(largest.total(&row, None).unwrap_err(), Error::SumOverflow);
        }
    }
}
