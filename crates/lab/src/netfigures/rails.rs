//! Two networks used at once, and one of them lost and back under load; a silent loss among the ways of one route.

use std::time::{Duration, SystemTime};

use super::{
    figure::{Figure, FigureError, Run, Settings},
    process::{client, iperf3, server},
};
use crate::{
    netperf::Report,
    testbed::{Join, LinkState, Spec, Testbed},
};

/// Both links, and one, filled as asked for; Gbit/s.
const BOTH: f64 = 1.85;
const ONE: f64 = 0.93;
/// One link carries this again so soon after the cut, both after the return.
const ONE_WITHIN: f64 = 2.0;
const BOTH_WITHIN: f64 = 5.0;
/// From the client's start to the cut, from there to the return, from there to the end.
const PHASES: [f64; 3] = [4.0, 5.0, 8.0];
/// The same for one way of a route: its connections are placed anew not more often than each 15 seconds.
const WAY_PHASES: [f64; 3] = [4.0, 12.0, 34.0];
/// A rate is there when it holds this long, in seconds.
const HOLDS: f64 = 1.0;

pub(super) fn rails(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let bed = Testbed::scoped(Spec { join: Join::Subnets, ..Spec::default() })?;
    let [near, far] = [&bed.hosts[0], &bed.hosts[1]];
    tell("rails: both");
    let mut raw = 0.0;
    for &addr in &far.addrs {
        raw += iperf3(Some((near, far)), addr, 2, settings.seconds)?.gbit_per_second;
    }
    let raw_text = format!("iperf3 on one subnet, then the other: {raw:.2} Gbit/s together");
    let (_server, addrs) = server(&settings.program, Some(far), &far.addrs)?;
    let report =
        client(&settings.program, Some(near), &addrs, &args(settings.seconds))?.report(settings.seconds)?;
    let mut figures = vec![Figure {
        group: "rails",
        case: "2 subnets x 1 Gbit/s, 2 connections".to_owned(),
        wanted: format!("at least {BOTH} Gbit/s"),
        seen: format!("{:.2} Gbit/s", report.gbit_per_second),
        raw: raw_text.clone(),
        reached: Some(report.gbit_per_second >= BOTH && report.errors == 0),
        runs: vec![Run { seen: report.gbit_per_second, raw, errors: report.errors, ..Run::default() }],
    }];
    for (link, state, what) in [
        (1, LinkState::Cut, "nothing passes, no sign"),
        (2, LinkState::Down, "interface down"),
        (2, LinkState::Mute, "what the client sends is lost"),
        (1, LinkState::Deaf, "what the server sends is lost"),
    ] {
        tell(&format!("rails: link {link}, {what}"));
        let ttime = PHASES.iter().sum::<f64>();
        let running = client(&settings.program, Some(near), &addrs, &args(ttime))?;
        std::thread::sleep(Duration::from_secs_f64(PHASES[0]));
        bed.set_link("h1", link, state)?;
        let cut = now();
        std::thread::sleep(Duration::from_secs_f64(PHASES[1]));
        bed.set_link("h1", link, LinkState::Up)?;
        let back = now();
        let report = running.report(ttime)?;
        let one = reached_after(&report, cut, back, ONE);
        let both = reached_after(&report, back, f64::MAX, BOTH);
        let text = |after: Option<f64>| after.map_or("never".to_owned(), |s| format!("{s:.1} s"));
        figures.push(Figure {
            group: "rails",
            case: format!("link {link} lost under load ({what}), then back"),
            wanted: format!(
                "no failed request; {ONE} Gbit/s within {ONE_WITHIN} s of the loss, {BOTH} within {BOTH_WITHIN} s of the return"
            ),
            seen: format!(
                "{} failed of {}; {ONE} after {}, {BOTH} after {}",
                report.errors,
                report.messages,
                text(one),
                text(both)
            ),
            raw: raw_text.clone(),
            reached: Some(
                report.errors == 0
                    && one.is_some_and(|s| s <= ONE_WITHIN)
                    && both.is_some_and(|s| s <= BOTH_WITHIN),
            ),
            runs: vec![Run {
                drawn: format!("{state:?}").to_lowercase(),
                seen: report.gbit_per_second,
                raw,
                errors: report.errors,
                says: timeline_text(&report),
                ..Run::default()
            }],
        });
    }
    drop(bed);
    figures.push(silent_way(settings, tell)?);
    Ok(figures)
}

/// One of two ways of an ECMP route passes nothing, and no router knows: half of all new connections hang on it, in each
/// direction.
fn silent_way(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Figure, FigureError> {
    tell("rails: one way of a route");
    let bed = Testbed::scoped(Spec { seed: settings.seed, ..Spec::default() })?;
    let [near, far] = [&bed.hosts[0], &bed.hosts[1]];
    let raw = iperf3(Some((near, far)), far.addrs[0], 32, settings.seconds)?.gbit_per_second;
    let (_server, addrs) = server(&settings.program, Some(far), &far.addrs)?;
    let [before, lost, after] = WAY_PHASES;
    let ttime = before + lost + after;
    let running = client(&settings.program, Some(near), &addrs, &args(ttime))?;
    std::thread::sleep(Duration::from_secs_f64(before));
    bed.set_link("h1", 1, LinkState::Cut)?;
    let cut = now();
    std::thread::sleep(Duration::from_secs_f64(lost));
    bed.set_link("h1", 1, LinkState::Up)?;
    let back = now();
    let report = running.report(ttime)?;
    let text = |after: Option<f64>| after.map_or("never".to_owned(), |s| format!("{s:.1} s"));
    let one = reached_after(&report, cut, back, ONE);
    let both = reached_after(&report, back, f64::MAX, BOTH);
    Ok(Figure {
        group: "rails",
        case: "2 links x 1 Gbit/s, policy 1, one cut silently under load, then back".to_owned(),
        wanted: format!("no failed request; {ONE} Gbit/s within {ONE_WITHIN} s of the loss"),
        seen: format!(
            "{} failed of {}; {ONE} after {}, standstill {:.1} s at most; {BOTH} after {} of its return",
            report.errors,
            report.messages,
            text(one),
            standstill(&report, cut, back),
            text(both)
        ),
        raw: format!("iperf3, 32 connections: {raw:.2} Gbit/s"),
        reached: Some(report.errors == 0 && one.is_some_and(|s| s <= ONE_WITHIN)),
        runs: vec![Run {
            drawn: format!("seed {}", bed.spec.seed),
            seen: report.gbit_per_second,
            raw,
            errors: report.errors,
            says: timeline_text(&report),
            ..Run::default()
        }],
    })
}

/// Arguments of a load of `seconds`.
fn args(seconds: f64) -> Vec<String> {
    let ttime = seconds.to_string();
    ["write", "--buffsize", "256k", "--parallel", "2", "--threads", "8", "--ttime", &ttime]
        .map(str::to_owned)
        .into()
}

fn now() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Seconds from `event` until the rate first is at least `wanted` over a whole [`HOLDS`], looking at what lies
/// before `end`.
fn reached_after(report: &Report, event: f64, end: f64, wanted: f64) -> Option<f64> {
    let step = report.interval;
    let holds = (HOLDS / step).round().max(1.0) as usize;
    let last = (report.ttime / step).floor() as usize;
    let timeline = &report.timeline[..report.timeline.len().min(last)];
    let begins = |i: usize| report.started + i as f64 * step;
    (timeline.windows(holds).enumerate())
        .filter(|(i, _)| begins(*i) >= event && begins(*i + holds) <= end)
        .find(|(_, w)| w.iter().sum::<u64>() as f64 * 8.0 / 1e9 / (holds as f64 * step) >= wanted)
        .map(|(i, _)| begins(i) - event)
}

/// The longest time between `from` and `to` in which not a tenth of [`ONE`] was carried, in seconds.
fn standstill(report: &Report, from: f64, to: f64) -> f64 {
    let step = report.interval;
    let begins = |i: usize| report.started + i as f64 * step;
    let slow = |bytes: u64| bytes as f64 * 8.0 / 1e9 / step < ONE / 10.0;
    let (mut longest, mut now) = (0, 0);
    for (i, &bytes) in report.timeline.iter().enumerate() {
        now = if begins(i) >= from && begins(i + 1) <= to && slow(bytes) { now + 1 } else { 0 };
        longest = longest.max(now);
    }
    longest as f64 * step
}

/// Gbit/s by half seconds.
fn timeline_text(report: &Report) -> String {
    let each = (0.5 / report.interval).round().max(1.0) as usize;
    let rate = |w: &[u64]| w.iter().sum::<u64>() as f64 * 8.0 / 1e9 / (w.len() as f64 * report.interval);
    let rates: Vec<String> = report.timeline.chunks(each).map(|w| format!("{:.2}", rate(w))).collect();
    format!("Gbit/s by half seconds: {}", rates.join(" "))
}
