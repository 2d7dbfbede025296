//! The upper tail of Student's t distribution.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// P(T > t) for `freedom` degrees of freedom; from 0 to 1 and never NaN.
///
/// Far out it keeps its relative accuracy: it is no difference from 1. Degrees of freedom below 1
/// count as 1, and a `t` that is no number as 0, which is no evidence.
#[must_use]
pub fn student_t_tail(t: f64, freedom: f64) -> f64 {
    let t = if t.is_nan() { 0.0 } else { t };
    let freedom = freedom.max(1.0);
    match StudentsT::new(0.0, 1.0, freedom) {
        Ok(distribution) => distribution.sf(t).clamp(0.0, 1.0),
        // Location and scale are legal, and freedom is at least 1.
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.t.sf(t, freedom)` of `SciPy` 1.17.1.
    #[allow(clippy::unreadable_literal)]
    const SCIPY: [(f64, f64, f64); 22] = [
        (-2.5, 1.0, 0.8788810584091566),
        (0.3, 1.0, 0.4072264209222577),
        (4.0, 1.0, 0.07797913037736932),
        (60.0, 1.0, 0.005304673632623272),
        (-2.5, 2.0, 0.9351941398892446),
        (0.3, 2.0, 0.3962428304200888),
        (4.0, 2.0, 0.028595479208968315),
        (60.0, 2.0, 0.00013883104529733938),
        (-2.5, 9.0, 0.9830690861585072),
        (0.3, 9.0, 0.3854953518707624),
        (4.0, 9.0, 0.0015552141551929272),
        (60.0, 9.0, 2.5005952358364503e-13),
        (-2.5, 19.0, 0.9891297944158013),
        (0.3, 19.0, 0.3837173301696317),
        (4.0, 19.0, 0.0003830961686143225),
        (60.0, 19.0, 1.9880308423536424e-23),
        (-2.5, 49.0, 0.9920921055764099),
        (0.3, 49.0, 0.3827230948920144),
        (4.0, 49.0, 0.00010674024457271235),
        (60.0, 49.0, 7.815568038520758e-48),
        (-2.5, 500.0, 0.9936307122495581),
        (0.3, 500.0, 0.3821509179754035),
    ];

    #[test]
    fn the_tail_is_that_of_scipy() {
        for (t, freedom, expected) in SCIPY {
            let got = student_t_tail(t, freedom);
            assert!(
                (got - expected).abs() <= 2e-12 * expected,
                "t {t}, {freedom} degrees: {got} is not {expected}"
            );
        }
    }

    #[test]
    fn every_input_gives_a_probability() {
        for t in [0.0, -0.0, 1e-300, 1e300, f64::INFINITY, f64::NAN] {
            for freedom in [f64::NAN, -1.0, 0.0, 1.0, 19.0, 1e9, f64::INFINITY] {
                for t in [t, -t] {
                    let p = student_t_tail(t, freedom);
                    assert!((0.0..=1.0).contains(&p), "t {t}, {freedom} degrees: {p}");
                }
            }
        }
        assert_eq!(student_t_tail(0.0, 19.0), 0.5);
        assert_eq!(student_t_tail(f64::INFINITY, 19.0), 0.0);
    }

    #[test]
    fn the_tail_falls() {
        let tails: Vec<f64> = (-400..400)
            .map(|i| student_t_tail(f64::from(i) * 0.25, 19.0))
            .collect();
        assert!(tails.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}
