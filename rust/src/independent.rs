//! The divergence of two samples of one distribution, if their pairs are independent.
//!
//! Given the pooled count t of a bin, its count C in P is hypergeometric, so the mean of
//! `sum (C + alpha) (log(C + alpha) - log(t - C + alpha)) / (N + alpha K)` over the bins, and the
//! same constant as in the divergence, is what it is without any change.

/// Terms of a probability below this share of the largest are left out.
const NEGLIGIBLE: f64 = 1e-18;
/// A count with a larger variance takes a series in place of the sum.
const LARGE_VARIANCE: f64 = 400.0;

/// The expected smoothed divergence of two histograms, in nats, given their pooled counts; within
/// 0.1 %.
pub(crate) fn expected(p: &[u64], q: &[u64], epsilon: f64) -> f64 {
    let (n, m): (u64, u64) = (p.iter().sum(), q.iter().sum());
    let pooled = || {
        p.iter()
            .zip(q)
            .map(|(&c, &d)| c.saturating_add(d))
            .filter(|&t| t > 0)
    };
    let mass = epsilon * pooled().count() as f64;
    if n == 0 || m == 0 {
        return 0.0;
    }
    let (p_mass, q_mass) = (n as f64 + mass, m as f64 + mass);
    let sum: f64 = pooled().map(|t| term(t, n, m, epsilon)).sum();
    (sum / p_mass + libm::log(q_mass / p_mass)).max(0.0)
}

/// E[(C + alpha) (log(C + alpha) - log(t - C + alpha))] for C of t pairs in P.
fn term(t: u64, n: u64, m: u64, alpha: f64) -> f64 {
    let all = n as f64 + m as f64;
    let (t_float, share) = (t as f64, n as f64 / all);
    let mean = t_float * share;
    let finite = if all > 1.0 {
        (all - t_float) / (all - 1.0)
    } else {
        0.0
    };
    let variance = mean * (1.0 - share) * finite;
    let value = |c: f64| {
        let (own, other) = (c + alpha, t_float - c + alpha);
        own * (libm::log(own) - libm::log(other))
    };
    if variance > LARGE_VARIANCE {
        let (own, other) = (mean + alpha, t_float - mean + alpha);
        let sum = own + other;
        // With s = own + other and h(x) = x (log x - log(s - x)):
        // h'' = 1/x + 1/(s-x) + s/(s-x)^2 and h'''' = 2/x^3 + 2/(s-x)^3 + 6s/(s-x)^4.
        let second = 1.0 / own + 1.0 / other + sum / (other * other);
        let fourth = 2.0 / own.powi(3) + 2.0 / other.powi(3) + 6.0 * sum / other.powi(4);
        return value(mean) + second * variance / 2.0 + fourth * variance * variance / 8.0;
    }
    let (low, high) = (t.saturating_sub(m), t.min(n));
    // About the mode, from where the probabilities fall to both sides.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let mode = (((t_float + 1.0) * (n as f64 + 1.0) / (all + 2.0)) as u64).clamp(low, high);
    let up =
        |c: u64| (n - c) as f64 * (t - c) as f64 / ((c + 1) as f64 * ((m - (t - c)) as f64 + 1.0));
    let (mut mass, mut sum) = (1.0, value(mode as f64));
    let (mut c, mut probability) = (mode, 1.0);
    while c < high && probability > NEGLIGIBLE {
        probability *= up(c);
        c += 1;
        mass += probability;
        sum += probability * value(c as f64);
    }
    (c, probability) = (mode, 1.0);
    while c > low && probability > NEGLIGIBLE {
        c -= 1;
        probability /= up(c);
        mass += probability;
        sum += probability * value(c as f64);
    }
    sum / mass
}
