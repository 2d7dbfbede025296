//! Laws of the public API, held against the definition by brute force.

use std::collections::BTreeMap;
use std::sync::Arc;

use kl_proteus::{
    Axis, Config, Drift, Key, Layout, Leaf, Next, Observed, PairTracker, Report, Row, Snapshot,
    VectorTracker, Which,
};
use proptest::prelude::*;

type Pair = (u128, u128);

fn categories(n: u64) -> Arc<Layout> {
    let axis = Axis::category(0, n).expect("an axis");
    Arc::new(Layout::new(vec![
        Leaf::new("x".into(), vec![], vec![axis]).expect("a leaf"),
    ]))
}

fn tracker(config: &Config, reference: Option<Arc<Snapshot>>) -> PairTracker {
    PairTracker::new(
        Some(categories(50)),
        categories(5),
        None,
        config.clone(),
        reference,
    )
    .expect("a tracker")
}

/// A category is its own bin; it has fewer than 64.
fn bin(category: u128) -> u8 {
    u8::try_from(category).expect("small")
}

fn feed(tracker: &mut PairTracker, pairs: &[Pair]) {
    for &(observation, action) in pairs {
        tracker.observe(Observed::Cell {
            key: Key(observation),
            flow: false,
            row: Row::from(&[bin(observation)][..]),
        });
        tracker.choose(Key(action), false, Row::from(&[bin(action)][..]));
        tracker.count().expect("a report");
    }
}

/// P and Q of the definition, as slices of all pairs so far.
fn distributions<'a>(config: &Config, seen: &'a [Pair], reference: &'a [Pair]) -> [&'a [Pair]; 2] {
    let n = seen.len();
    let window = config.window.map(|w| usize::try_from(w).expect("small"));
    let lag = config.lag.map(|lag| usize::try_from(lag).expect("small"));
    match (window, lag, reference.is_empty()) {
        (Some(w), None, true) if n < 2 * w => [&seen[n / 2..], &seen[..n / 2]],
        (Some(w), None, true) => [&seen[n - w..], &seen[n - 2 * w..n - w]],
        (Some(w), Some(lag), _) => [&seen[n - w..], &seen[n - w - lag..n - lag]],
        (None, _, true) => [seen, &seen[..n - 1]],
        (Some(w), _, false) => [&seen[n - w.min(n)..], reference],
        (None, _, false) => [seen, reference],
    }
}

/// KL of the smoothed joint distributions, and of their observation marginals.
fn defined([p, q]: [&[Pair]; 2], alpha: f64) -> (f64, f64) {
    let mut cells: BTreeMap<Pair, [f64; 2]> = BTreeMap::new();
    for (side, pairs) in [p, q].into_iter().enumerate() {
        for &pair in pairs {
            cells.entry(pair).or_insert([alpha; 2])[side] += 1.0;
        }
    }
    let mut marginals: BTreeMap<u128, [f64; 2]> = BTreeMap::new();
    for (&(observation, _), mass) in &cells {
        let marginal = marginals.entry(observation).or_default();
        marginal[0] += mass[0];
        marginal[1] += mass[1];
    }
    let total = |side: usize| cells.values().map(|mass| mass[side]).sum::<f64>();
    let (n, m) = (total(0), total(1));
    let kl = |mass: &[f64; 2]| mass[0] / n * ((mass[0] / n) / (mass[1] / m)).ln();
    (
        cells.values().map(kl).sum(),
        marginals.values().map(kl).sum(),
    )
}

fn pairs(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Pair>> {
    prop::collection::vec((0..6u128, 0..3u128), length)
}

fn configs() -> impl Strategy<Value = (Config, bool)> {
    let window = prop::option::of(1..12u64);
    let epsilon = prop_oneof![Just(0.5), 1e-6..10.0f64];
    (window, prop::option::of(1..20u64), epsilon, any::<bool>()).prop_map(
        |(window, lag, epsilon, with_reference)| {
            let lag = lag.filter(|_| window.is_some() && !with_reference);
            let config = Config {
                window,
                lag,
                epsilon,
                history_size: 7,
                min_window: 2,
                axis_histograms: None,
            };
            (config, with_reference)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_mode_reports_the_definition(
        (config, with_reference) in configs(),
        reference in pairs(1..30),
        stream in pairs(1..60),
    ) {
        let mut source = tracker(&Config { window: None, ..Config::default() }, None);
        feed(&mut source, &reference);
        let frozen = with_reference.then(|| Arc::new(source.snapshot(Which::Current)));
        let used: &[Pair] = if with_reference { &reference } else { &[] };
        let mut tracker = tracker(&config, frozen);
        for n in 1..=stream.len() {
            feed(&mut tracker, &stream[n - 1..n]);
            let report = tracker.drift().report();
            if !tracker.drift().reported() {
                prop_assert_eq!(report.joint, 0.0);
                continue;
            }
            let sides = distributions(&config, &stream[..n], used);
            let (joint, observation) = defined(sides, config.epsilon);
            prop_assert!((report.joint - joint).abs() <= 1e-12);
            prop_assert!((report.observation - observation).abs() <= 1e-12);
            prop_assert!((report.joint - report.observation - report.policy).abs() <= 1e-12);
        }
    }

    #[test]
    fn a_restored_tracker_continues_bit_for_bit(
        (config, with_reference) in configs(),
        stream in pairs(1..60),
        cut in 0..60usize,
    ) {
        let mut source = tracker(&Config { window: None, ..Config::default() }, None);
        feed(&mut source, &[(1, 1), (2, 0), (5, 2), (1, 1)]);
        let frozen = with_reference.then(|| Arc::new(source.snapshot(Which::Current)));
        let mut one = tracker(&config, frozen.clone());
        let cut = cut.min(stream.len());
        feed(&mut one, &stream[..cut]);
        let mut other = tracker(&config, frozen);
        other.load_state_json(&one.state_json().unwrap()).unwrap();
        for n in cut..stream.len() {
            feed(&mut one, &stream[n..=n]);
            feed(&mut other, &stream[n..=n]);
            prop_assert_eq!(one.statistics(), other.statistics());
            prop_assert_eq!(one.drift().report(), other.drift().report());
        }
        prop_assert_eq!(one.state_json().unwrap(), other.state_json().unwrap());
    }

    #[test]
    fn merging_is_associative_and_order_free(
        streams in prop::collection::vec(pairs(1..20), 3..4),
    ) {
        let snapshots: Vec<Snapshot> = streams
            .iter()
            .map(|stream| {
                let mut tracker = tracker(&Config { window: None, ..Config::default() }, None);
                feed(&mut tracker, stream);
                tracker.snapshot(Which::Current)
            })
            .collect();
        let merged = |order: [usize; 3]| {
            let mut sum = snapshots[order[0]].clone();
            sum.merge(&snapshots[order[1]]).unwrap();
            sum.merge(&snapshots[order[2]]).unwrap();
            sum
        };
        let mut right = snapshots[1].clone();
        right.merge(&snapshots[2]).unwrap();
        let mut nested = snapshots[0].clone();
        nested.merge(&right).unwrap();
        prop_assert_eq!(&merged([0, 1, 2]), &nested);
        prop_assert_eq!(merged([2, 0, 1]), nested);
    }

    /// Text that a user may have edited is refused or read, and never panics.
    #[test]
    fn a_damaged_state_is_refused_and_changes_nothing(
        stream in pairs(1..40),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let config = Config { window: Some(5), ..Config::default() };
        let mut one = tracker(&config, None);
        feed(&mut one, &stream);
        let mut text = one.state_json().unwrap().into_bytes();
        let at = place.index(text.len());
        text[at] = byte;
        let mut other = tracker(&config, None);
        let before = other.state_json().unwrap();
        if let Ok(text) = String::from_utf8(text)
            && other.load_state_json(&text).is_err()
        {
            prop_assert_eq!(other.state_json().unwrap(), before);
        }
        feed(&mut other, &stream);
    }
}

#[test]
fn ten_million_pairs_leave_no_trace_in_the_value() {
    let config = Config {
        window: Some(1000),
        ..Config::default()
    };
    let mut drift = Drift::new(config.clone(), None).unwrap();
    let mut state = 1u64;
    let mut last = Vec::new();
    let total = if cfg!(debug_assertions) {
        1_000_000
    } else {
        10_000_000
    };
    for n in 0..total {
        // A linear congruential generator, whose upper bits are random enough here.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pair = (u128::from(state >> 60), u128::from((state >> 50) % 3));
        drift.push(Key(pair.0), Key(pair.1), false).unwrap();
        if n + 2000 >= total {
            last.push(pair);
        }
    }
    let (joint, observation) = defined([&last[1000..], &last[..1000]], 0.5);
    let report = drift.report();
    assert!((report.joint - joint).abs() <= 1e-12);
    assert!((report.observation - observation).abs() <= 1e-12);

    let mut fresh = Drift::new(config, None).unwrap();
    for &(observation, action) in &last {
        fresh.push(Key(observation), Key(action), false).unwrap();
    }
    assert_eq!(fresh.report().joint.to_bits(), report.joint.to_bits());
    assert_eq!(fresh.report().policy.to_bits(), report.policy.to_bits());
}

// A batch of rows -----------------------------------------------------------------------------------

fn observed(key: u128) -> Observed {
    Observed::Cell {
        key: Key(key),
        flow: key == 3,
        row: Row::from(&[bin(key)][..]),
    }
}

/// Feeds the steps to a vector tracker; `None` is a row that brings no pair.
fn feed_rows(
    rows: usize,
    pooled: bool,
    config: &Config,
    steps: &[Vec<Option<Pair>>],
) -> VectorTracker {
    let mut tracker = VectorTracker::new(
        rows,
        pooled,
        Some(categories(50)),
        categories(5),
        None,
        config.clone(),
        None,
    )
    .expect("a tracker");
    for step in steps {
        for (row, pair) in step.iter().enumerate() {
            let next = pair.map_or(Next::Ended, |(o, _)| Next::Observed(observed(o)));
            tracker.observe(row, next);
        }
        let chosen = step.iter().enumerate();
        tracker.choose(chosen.filter_map(|(row, pair)| {
            pair.map(|(_, a)| (row, Key(a), false, Row::from(&[bin(a)][..])))
        }));
        let mut columns: [Vec<f64>; Report::WIDTH] = std::array::from_fn(|_| vec![9.0; rows]);
        let mut slices = columns.each_mut().map(Vec::as_mut_slice);
        tracker
            .advance(|_, _| Next::Nothing, false, &mut slices)
            .expect("reports");
        for (row, pair) in step.iter().enumerate() {
            let report = tracker.tracker(row).expect("a row").drift().report();
            let reports = pooled || pair.is_some();
            for (column, number) in columns.iter().zip(report.numbers()) {
                assert_eq!(column[row], if reports { number } else { 0.0 });
            }
        }
    }
    tracker
}

fn flows(pair: Pair) -> bool {
    pair.0 == 3
}

proptest! {
    #[test]
    fn rows_are_trackers_of_their_own_and_a_pool_is_one_in_their_order(
        (config, _) in configs(),
        steps in prop::collection::vec(
            prop::collection::vec(prop::option::weighted(0.8, (0..6u128, 0..3u128)), 3),
            1..40,
        ),
    ) {
        let each = feed_rows(3, false, &config, &steps);
        for row in 0..3 {
            let mut single = Drift::new(config.clone(), None).expect("a drift");
            for pair in steps.iter().filter_map(|step| step[row]) {
                single.push(Key(pair.0), Key(pair.1), flows(pair)).expect("a pair");
            }
            prop_assert_eq!(each.tracker(row).expect("a row").drift().state(), single.state());
            prop_assert_eq!(each.tracker(row).expect("a row").drift().report(), single.report());
        }

        let pooled = feed_rows(3, true, &config, &steps);
        let of_pairs = Config {
            window: config.window.map(|window| 3 * window),
            lag: config.lag.map(|lag| 3 * lag),
            min_window: 3 * config.min_window,
            ..config
        };
        let mut single = Drift::new(of_pairs, None).expect("a drift");
        for pair in steps.iter().flatten().flatten().copied() {
            single.push(Key(pair.0), Key(pair.1), flows(pair)).expect("a pair");
        }
        let pool = pooled.tracker(0).expect("the pool").drift();
        let (got, expected) = (pool.report(), single.report());
        prop_assert_eq!(
            (got.joint, got.observation, got.policy, got.noise_floor),
            (expected.joint, expected.observation, expected.policy, expected.noise_floor)
        );
        prop_assert_eq!((pool.state().cells, pool.state().pairs), (single.state().cells, single.state().pairs));
        prop_assert_eq!((pool.occupied(), pool.flow()), (single.occupied(), single.flow()));
    }
}
