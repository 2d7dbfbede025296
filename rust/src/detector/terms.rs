//! The terms of a divergence from a frozen distribution, as integers.
//!
//! With G(n, k) = round(log(n + alpha k) 2^44), a cell (k = 1) or an observation with k cells that
//! counts c now and d in the reference has the term (c + alpha k)(G(c, k) - G(d, k)). While d and k
//! stay, one more pair adds `gain(c, k) - G(d, k)`: one number of a table and one of the cell.

use crate::log_table::LogTable;

/// A row is at most 64 kB; larger counts are computed from logarithms.
const MEMOISED_COUNTS: usize = 4096;
const MEMOISED_CELLS: u32 = 16;
/// No gain and no term has this value.
const UNKNOWN: i64 = i64::MIN;
/// Floats below this fit 64 bits.
const FITS: f64 = 4e18;

#[derive(Debug, Clone)]
pub(super) struct Terms {
    alpha: f64,
    logs: LogTable,
    /// (c + alpha k) G(c, k) and what it gains, at `rows[k - 1][c]`; grown on demand.
    rows: Vec<Vec<(i64, i64)>>,
}

impl Terms {
    pub(super) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            logs: LogTable::new(alpha),
            rows: Vec::new(),
        }
    }

    /// G(n, k).
    pub(super) fn log(&mut self, n: u64, k: u32) -> i64 {
        self.logs.get(n, k.into())
    }

    /// round(alpha k log), for a logarithm as an integer.
    #[allow(clippy::cast_possible_truncation)]
    fn pseudo(&self, k: u32, log: i64) -> i128 {
        let product = (self.alpha * f64::from(k) * log as f64).round();
        // The wide conversion is many times slower.
        if product.abs() < FITS {
            i128::from(product as i64)
        } else {
            product as i128
        }
    }

    /// (c + alpha k) G(c, k)
    fn own(&mut self, count: u64, k: u32) -> i128 {
        let log = self.log(count, k);
        i128::from(count) * i128::from(log) + self.pseudo(k, log)
    }

    /// (c + alpha k)(G(c, k) - G(d, k)), where `reference_log` is G(d, k).
    pub(super) fn term(&mut self, count: u32, k: u32, reference_log: i64) -> i128 {
        let own = self.memoised(count, k);
        let own = own.map_or_else(|| self.own(count.into(), k), |(own, _)| own.into());
        own - i128::from(count) * i128::from(reference_log) - self.pseudo(k, reference_log)
    }

    #[inline]
    fn memoised(&self, count: u32, k: u32) -> Option<(i64, i64)> {
        let entry = *self
            .rows
            .get(k.wrapping_sub(1) as usize)?
            .get(count as usize)?;
        (entry.1 != UNKNOWN).then_some(entry)
    }

    /// What (c + alpha k) G(c, k) gains with the next pair.
    #[inline]
    pub(super) fn gain(&mut self, count: u32, k: u32) -> i64 {
        match self.memoised(count, k) {
            Some((_, gain)) => gain,
            None => self.miss(count, k),
        }
    }

    #[inline(never)]
    #[allow(clippy::cast_possible_truncation)]
    fn miss(&mut self, count: u32, k: u32) -> i64 {
        let count = u64::from(count);
        // Near log(count) + 1, far from the limits.
        let own = self.own(count, k);
        let gain = (self.own(count + 1, k) - own) as i64;
        let (count, row) = (count as usize, k as usize);
        if count < MEMOISED_COUNTS
            && k <= MEMOISED_CELLS
            && let Ok(own) = i64::try_from(own)
        {
            if self.rows.len() < row {
                self.rows.resize_with(row, Vec::new);
            }
            let row = &mut self.rows[row - 1];
            if row.len() <= count {
                row.resize((count + 1).next_power_of_two(), (0, UNKNOWN));
            }
            row[count] = (own, gain);
        }
        gain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_add_up_to_terms() {
        for alpha in [1e-10, 0.5, 1e6] {
            let mut terms = Terms::new(alpha);
            for k in [1, 3, 16, 17] {
                for reference in [0u64, 1, 40, 1 << 40] {
                    let log = terms.log(reference, k);
                    let mut sum = terms.term(0, k, log);
                    for count in 0..5000 {
                        assert_eq!(sum, terms.term(count, k, log));
                        sum += i128::from(terms.gain(count, k) - log);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_never_counted_adds_nothing() {
        let mut terms = Terms::new(0.5);
        let log = terms.log(0, 1);
        assert_eq!(terms.term(0, 1, log), 0);
        let log = terms.log(0, 0);
        assert_eq!(terms.term(0, 0, log), 0);
    }
}
