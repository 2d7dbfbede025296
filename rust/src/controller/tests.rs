//! Laws of every rule.

use super::*;

fn adaptive() -> Adaptive {
    Adaptive {
        target: 6.0,
        horizon: 10_000.0,
        clip: 0.2,
    }
}

fn band() -> PpoPenalty {
    PpoPenalty {
        target: 6.0,
        high: 1.5,
        low: 1.0 / 1.5,
        increase_factor: 2.0,
        decrease_factor: 0.5,
    }
}

fn threshold(window: u64) -> Threshold {
    Threshold::new(ThresholdParameters {
        target: 6.0,
        window,
        high: 1.5,
        low: 0.5,
        increase_factor: 1.5,
        decrease_factor: 0.8,
        keep_outside: false,
    })
    .expect("legal")
}

fn pid(ki: f64) -> Pid {
    Pid::new(PidParameters {
        target: 6.0,
        horizon: 10_000.0,
        kp: 1.0,
        ki,
        kd: 0.5,
        clip: 0.2,
    })
    .expect("legal")
}

fn one_of_each(limits: Limits) -> Vec<Controller> {
    let init = limits.min_value.max(limits.max_value.min(0.2));
    let adaptive = Controller::adaptive(init, adaptive(), limits).expect("legal");
    vec![
        Controller::fixed(init, limits).expect("legal"),
        adaptive.clone(),
        Controller::ppo_penalty(init, band(), limits).expect("legal"),
        Controller::threshold(init, threshold(10), limits).expect("legal"),
        Controller::pid(init, pid(0.2), limits).expect("legal"),
        Controller::scheduled(adaptive, 5_000, None, Shape::Cosine).expect("legal"),
    ]
}

/// A fixed sequence of numbers that look random (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Mostly a plausible divergence, at times any finite number.
    fn divergence(&mut self) -> f64 {
        let bits = self.next();
        let any = f64::from_bits(self.next());
        match bits % 16 {
            0 if any.is_finite() => any,
            1 => 0.0,
            2 => f64::MAX,
            3 => f64::MIN,
            _ => (bits >> 11) as f64 / (1u64 << 53) as f64 * 14.0 - 1.0,
        }
    }
}

#[test]
fn a_million_random_updates_of_each_rule_stay_within_the_bounds() {
    let narrow = Limits {
        min_value: 0.1,
        max_value: 0.3,
        unit: Unit::NatsPerSequence,
    };
    let widest = Limits {
        min_value: f64::from_bits(1),
        max_value: f64::MAX,
        unit: Unit::NatsPerStep,
    };
    let mut noise = Noise(7);
    for limits in [Limits::default(), narrow, widest] {
        for mut controller in one_of_each(limits) {
            for _ in 0..1_000_000 {
                let n_steps = noise.next() % 4_000;
                let value = controller
                    .update(&[noise.divergence()], n_steps)
                    .expect("finite");
                assert!(
                    limits.min_value <= value && value <= limits.max_value,
                    "{value} {controller:?}"
                );
                assert_eq!(value, controller.value());
            }
        }
    }
}

#[test]
fn a_refused_update_changes_nothing() {
    for mut controller in one_of_each(Limits::default()) {
        controller.update(&[7.0], 100).expect("finite");
        let before = controller.clone();
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(controller.update(&[bad], 100).is_err());
            assert!(controller.update(&[bad], 0).is_err());
        }
        assert_eq!(controller, before);
    }
    let mut proportional = Controller::adaptive(0.2, adaptive(), Limits::default()).expect("legal");
    let before = proportional.clone();
    assert!(proportional.update(&[0.0], 50_000).is_err());
    assert_eq!(proportional, before);
    assert!(proportional.update(&[0.0], 49_999).is_ok());
}

#[test]
fn no_step_and_no_measurement_change_nothing() {
    for mut controller in one_of_each(Limits::default()) {
        controller.update(&[7.0], 100).expect("finite");
        let before = controller.clone();
        controller.update(&[100.0], 0).expect("finite");
        controller.update(&[], 100).expect("finite");
        assert_eq!(controller, before);
    }
}

#[test]
fn a_restored_controller_continues_bit_for_bit() {
    let mut noise = Noise(3);
    for mut controller in one_of_each(Limits::default()) {
        for _ in 0..40 {
            let mut resumed =
                Controller::from_state_json(&controller.state_json().expect("a state"))
                    .expect("legal");
            assert_eq!(resumed, controller);
            for _ in 0..3 {
                let (kl, n_steps) = (noise.divergence(), noise.next() % 400);
                controller.update(&[kl], n_steps).expect("finite");
                resumed.update(&[kl], n_steps).expect("finite");
            }
            assert_eq!(resumed, controller);
        }
    }
}

#[test]
fn huge_steps_and_gains_stay_numbers() {
    let extreme = Pid::new(PidParameters {
        target: f64::MIN_POSITIVE,
        horizon: 1.0,
        kp: 1e6,
        ki: 1e6,
        kd: 1e6,
        clip: 1e6,
    })
    .expect("legal");
    let mut controller = Controller::pid(1.0, extreme, Limits::default()).expect("legal");
    for kl in [f64::MAX, f64::MIN, f64::MAX, 0.0, f64::MIN_POSITIVE] {
        let value = controller.update(&[kl], 1_000_000).expect("finite");
        assert!((1e-8..=1e4).contains(&value));
    }
    assert!(controller.update(&[0.0], 1_000_001).is_err());
    assert!(controller.update(&[0.0], u64::MAX).is_err());
}

#[test]
fn the_integral_waits_at_a_bound() {
    let narrow = Limits {
        min_value: 0.1,
        max_value: 0.3,
        unit: Unit::NatsPerToken,
    };
    // 10 % above the target: not clipped, and for long against the upper bound.
    let mut held = Controller::pid(0.3, pid(2.0), narrow).expect("legal");
    for _ in 0..1_000 {
        assert_eq!(held.update(&[6.6], 1_000).expect("finite"), 0.3);
    }
    // Nothing has wound up: the first measurement below the target brings it down.
    assert!(held.update(&[5.9], 1_000).expect("finite") < 0.3);
}

#[test]
fn a_ramp_does_not_depend_on_how_its_steps_are_cut() {
    for shape in [Shape::Linear, Shape::Cosine] {
        let fixed = Controller::fixed(0.7, Limits::default()).expect("legal");
        let ramp = Controller::scheduled(fixed, 1_000, Some(0.1), shape).expect("legal");
        let (mut whole, mut cut) = (ramp.clone(), ramp.clone());
        whole.update(&[1.0], 630).expect("finite");
        for _ in 0..63 {
            let before = cut.value();
            assert!(cut.update(&[1.0], 10).expect("finite") > before);
        }
        assert_eq!(whole.value(), cut.value());
        whole.update(&[1.0], u64::MAX).expect("finite");
        assert_eq!(whole.value(), 0.7);
        assert_eq!(ramp.value(), 0.1);
    }
}
