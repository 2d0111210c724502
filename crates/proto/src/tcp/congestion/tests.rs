use super::cubic::CUBIC_BETA;
use super::window::initial_window;
use super::*;

const SEGMENT: u16 = 1448;

fn acknowledged(bytes: u32, millis: u64, window_limited: bool) -> Acknowledged {
    Acknowledged {
        bytes,
        now: Time::from_millis(millis),
        rtt: Duration::from_millis(20),
        sample: None,
        window_limited,
        una: 0,
        next: 0,
    }
}

#[test]
fn algorithms_have_numbers_and_names() {
    for number in 1..=4 {
        let algorithm = Algorithm::by_number(number).unwrap();
        assert_eq!((algorithm.number(), Algorithm::by_name(algorithm.name())), (number, Some(algorithm)));
    }
    assert_eq!((Algorithm::by_number(0), Algorithm::by_number(5)), (None, None));
    assert_eq!(Algorithm::by_name("vegas"), None);
}

#[test]
fn both_start_with_ten_segments_and_double_per_window() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut controller = Congestion::new(algorithm, SEGMENT, None);
        assert_eq!(controller.window(), 14_480);
        controller.on_acknowledged(&acknowledged(14_480, 1, false));
        assert_eq!(controller.window(), 14_480, "no growth while the window is not used");
        controller.on_acknowledged(&acknowledged(14_480, 1, true));
        assert_eq!(controller.window(), 28_960);
    }
    assert_eq!(initial_window(9000), 18_000);
    assert_eq!(initial_window(500), 5_000);
}

#[test]
fn reno_halves_and_then_adds_one_segment_per_window() {
    let mut controller = Congestion::new(Algorithm::NewReno, SEGMENT, None);
    controller.on_acknowledged(&acknowledged(100_000, 1, true));
    let window = controller.window();
    controller.on_loss(window);
    assert_eq!((controller.window(), controller.threshold()), (window / 2, window / 2));
    controller.on_acknowledged(&acknowledged(window / 2, 2, true));
    assert_eq!(controller.window(), window / 2 + u32::from(SEGMENT));
}

#[test]
fn what_piled_up_behind_a_hole_does_not_soften_the_reduction() {
    for (algorithm, factor) in [(Algorithm::NewReno, 0.5), (Algorithm::Cubic, CUBIC_BETA)] {
        for timeout in [false, true] {
            let mut controller = Congestion::new(algorithm, SEGMENT, None);
            controller.on_acknowledged(&acknowledged(100_000, 1, true));
            let window = controller.window();
            if timeout {
                controller.on_timeout(5 * window);
            } else {
                controller.on_loss(5 * window);
            }
            let reduced = (f64::from(window) * factor) as u32;
            let now = if timeout { u32::from(SEGMENT) } else { reduced };
            assert_eq!((controller.window(), controller.threshold()), (now, reduced), "{algorithm:?}");
        }
    }
}

#[test]
fn cubic_returns_to_the_old_window_at_k_and_then_passes_it() {
    let mut controller = Congestion::new(Algorithm::Cubic, SEGMENT, None);
    controller.on_acknowledged(&acknowledged(1_000_000, 0, true));
    let before = controller.window();
    controller.on_loss(before);
    let low = controller.window();
    assert!((low as f64 - before as f64 * 0.7).abs() < 2.0);
    // K = cbrt(0.3 W / C): about 8 s for 700 segments.
    let k = (f64::from(before - low) / f64::from(SEGMENT) / 0.4).cbrt();
    let mut at_k = 0;
    for step in 0..1_000u64 {
        let millis = step * 20;
        controller.on_acknowledged(&acknowledged(controller.window(), millis, true));
        if (millis as f64) < k * 1000.0 {
            at_k = controller.window();
        }
    }
    let error = (f64::from(at_k) - f64::from(before)).abs() / f64::from(before);
    assert!(error < 0.05, "{at_k} against {before}");
    assert!(controller.window() > before + before / 10);
}

#[test]
fn timeouts_leave_one_segment_and_undo_restores() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut controller = Congestion::new(algorithm, SEGMENT, None);
        controller.on_acknowledged(&acknowledged(100_000, 1, true));
        let (window, threshold) = (controller.window(), controller.threshold());
        controller.on_timeout(window);
        assert_eq!(controller.window(), u32::from(SEGMENT));
        controller.undo();
        assert_eq!((controller.window(), controller.threshold()), (window, threshold));
        controller.undo();
        assert_eq!(controller.window(), window);
        controller.on_idle();
        assert_eq!(controller.window(), 14_480);
        controller.on_loss(10);
        // RFC 5681 §3.1 equation 4 counts what is in flight; RFC 9438 §4.6 may take the window.
        let least = 2 * u32::from(SEGMENT);
        assert_eq!(controller.threshold(), if algorithm == Algorithm::Cubic { 10_136 } else { least });
    }
}

#[test]
fn a_switch_keeps_the_window_and_goes_back_to_the_one_before_a_slowdown() {
    let mut fresh = Congestion::new(Algorithm::Cubic, SEGMENT, None);
    fresh.switch(Algorithm::LedbatPlusPlus, None, Time::ZERO);
    assert_eq!(fresh.window(), 2 * u32::from(SEGMENT), "as if it had always been so");

    let mut controller = Congestion::new(Algorithm::Cubic, SEGMENT, None);
    controller.on_acknowledged(&acknowledged(1_000_000, 1, true));
    controller.on_loss(controller.window());
    let window = controller.window();
    let least = Some(Duration::from_millis(20));
    let sample = |millis| Acknowledged { sample: least, ..acknowledged(1448, millis, true) };

    controller.switch(Algorithm::LedbatPlusPlus, least, Time::from_millis(2));
    assert_eq!((controller.algorithm(), controller.window()), (Algorithm::LedbatPlusPlus, window));
    controller.on_acknowledged(&sample(10));
    controller.on_acknowledged(&sample(51));
    assert_eq!(
        controller.window(),
        2 * u32::from(SEGMENT),
        "two round trips later it shows what the path is"
    );
    assert!(controller.threshold() >= window);

    controller.switch(Algorithm::Cubic, least, Time::from_millis(60));
    controller.on_acknowledged(&acknowledged(2 * window, 70, true));
    assert!(controller.window() >= window, "foreground again, it regrows at once");
    controller.switch(Algorithm::Cubic, least, Time::from_millis(80));
    assert!(controller.window() >= window, "the same once more changes nothing");
}
