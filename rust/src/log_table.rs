//! Memoised logarithms as integers: G(n, k) = round(log(n + alpha k) 2^44).

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

/// Fixed-point fraction bits of every logarithm and every history value.
pub(crate) const FRACTION_BITS: u32 = 44;
/// 2^44 as a float.
pub(crate) const SCALE: f64 = (1u64 << FRACTION_BITS) as f64;

/// A row of this length is 32 kB; larger counts share the cache below.
const MEMOISED_COUNTS: u64 = 4096;
/// Observations with more cells are rare: an action space with many occupied cells.
const MEMOISED_CELLS: usize = 16;
/// What does not fit the tables is kept in so many slots. A count moves by one a step, so the few
/// that are in use are found again, however large they have become.
const CACHED: usize = 1024;
/// No logarithm of a count has this value.
const UNKNOWN: i64 = i64::MIN;

/// The rows `[k - 1][n]` of a table, each filled on demand.
///
/// Copies of a table share them: thousands of trackers with one pseudocount need the same few
/// logarithms, and find them in the nearest cache. An entry is written with the same value by whoever
/// comes first, so no order between the writers matters.
#[derive(Debug, Default)]
struct Memo {
    rows: [OnceLock<Box<[AtomicI64]>>; MEMOISED_CELLS],
}

/// G for one pseudocount.
///
/// `libm` is used rather than the platform's log, so that the integers are the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct LogTable {
    alpha: f64,
    memo: Arc<Memo>,
    /// (n, k, G(n, k)) at a slot that n and k choose; empty until it is needed.
    cache: Vec<(u64, u64, i64)>,
}

impl LogTable {
    pub(crate) fn new(alpha: f64) -> Self {
        Self {
            alpha,
            memo: Arc::default(),
            cache: Vec::new(),
        }
    }

    /// G(n, k). G(0, 0), which belongs to nothing, is 0.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn get(&mut self, n: u64, k: u64) -> i64 {
        if n < MEMOISED_COUNTS
            && let Some(row) = self.memo.rows.get(k.wrapping_sub(1) as usize)
            && let Some(row) = row.get()
            && let Some(entry) = row.get(n as usize)
            && let value = entry.load(Ordering::Relaxed)
            && value != UNKNOWN
        {
            return value;
        }
        self.miss(n, k)
    }

    #[inline(never)]
    #[allow(clippy::cast_possible_truncation)]
    fn miss(&mut self, n: u64, k: u64) -> i64 {
        if k == 0 {
            return 0;
        }
        let slot = (n.wrapping_add(k.wrapping_mul(0x9e37_79b9)) % CACHED as u64) as usize;
        match self.cache.get(slot) {
            Some(&(cached_n, cached_k, value)) if (cached_n, cached_k) == (n, k) => return value,
            _ => {}
        }
        let value = fixed_log(n as f64 + self.alpha * k as f64);
        match self.memo.rows.get(k as usize - 1) {
            Some(row) if n < MEMOISED_COUNTS => {
                let unknown = || (0..MEMOISED_COUNTS).map(|_| AtomicI64::new(UNKNOWN));
                let row = row.get_or_init(|| unknown().collect());
                row[n as usize].store(value, Ordering::Relaxed);
            }
            _ => {
                self.cache.resize(CACHED, (0, 0, 0));
                self.cache[slot] = (n, k, value);
            }
        }
        value
    }
}

/// round(log(x) 2^44) for x > 0.
fn fixed_log(x: f64) -> i64 {
    to_fixed(libm::log(x))
}

/// The nearest float. Most sums fit 64 bits, and the wide conversion is many times slower; it is
/// out of line so that it is not computed beside the short one.
#[inline]
pub(crate) fn nearest_float(x: i128) -> f64 {
    #[cold]
    #[inline(never)]
    fn wide(x: i128) -> f64 {
        x as f64
    }
    i64::try_from(x).map_or_else(|_| wide(x), |short| short as f64)
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
