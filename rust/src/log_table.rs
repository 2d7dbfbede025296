//! Memoised logarithms as integers: G(n, k) = round(log(n + alpha k) 2^44).

/// Fixed-point fraction bits of every logarithm and every history value.
pub(crate) const FRACTION_BITS: u32 = 44;
/// 2^44 as a float.
pub(crate) const SCALE: f64 = (1u64 << FRACTION_BITS) as f64;

/// Larger counts are computed each time; a table of this length is 32 kB.
const MEMOISED_COUNTS: u64 = 4096;
/// Observations with more cells are rare: an action space with many occupied cells.
const MEMOISED_CELLS: u64 = 16;
/// No logarithm of a count has this value.
const UNKNOWN: i64 = i64::MIN;

/// G for one pseudocount.
///
/// `libm` is used rather than the platform's log, so that the integers are the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct LogTable {
    alpha: f64,
    /// `rows[k - 1][n]`, grown on demand.
    rows: Vec<Vec<i64>>,
}

impl LogTable {
    pub(crate) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            rows: Vec::new(),
        }
    }

    /// G(n, k). G(0, 0), which belongs to nothing, is 0.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn get(&mut self, n: u64, k: u64) -> i64 {
        if n < MEMOISED_COUNTS
            && let Some(row) = self.rows.get(k.wrapping_sub(1) as usize)
            && let Some(&value) = row.get(n as usize)
            && value != UNKNOWN
        {
            return value;
        }
        self.miss(n, k)
    }

    #[cold]
    #[allow(clippy::cast_possible_truncation)]
    fn miss(&mut self, n: u64, k: u64) -> i64 {
        if k == 0 {
            return 0;
        }
        let value = fixed_log(n as f64 + self.alpha * k as f64);
        if n < MEMOISED_COUNTS && k <= MEMOISED_CELLS {
            let (n, row) = (n as usize, k as usize - 1);
            if self.rows.len() <= row {
                self.rows.resize_with(row + 1, Vec::new);
            }
            let row = &mut self.rows[row];
            if row.len() <= n {
                row.resize((n + 1).next_power_of_two(), UNKNOWN);
            }
            row[n] = value;
        }
        value
    }
}

/// round(log(x) 2^44) for x > 0.
fn fixed_log(x: f64) -> i64 {
    to_fixed(libm::log(x))
}

/// round(x 2^44); |x| is below 2^11 for every logarithm and divergence of float64 values.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn to_fixed(x: f64) -> i64 {
    libm::round(x * SCALE) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memo_returns_what_it_would_compute() {
        let mut table = LogTable::new(0.5);
        for (n, k) in [
            (0, 1),
            (3, 1),
            (3, 2),
            (4095, 16),
            (4096, 1),
            (7, 17),
            (3, 1),
        ] {
            let expected = (n as f64 + 0.5 * k as f64).ln() * SCALE;
            assert!((table.get(n, k) as f64 - expected).abs() <= 2.0, "{n} {k}");
            assert_eq!(table.get(n, k), table.get(n, k));
        }
        assert_eq!(table.get(0, 0), 0);
    }
}
