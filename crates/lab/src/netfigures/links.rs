//! Connections over several links: placed by probing, left to chance, and where nothing can be placed.

use super::{
    figure::{Figure, FigureError, Run, Settings},
    process::{client, iperf3, server},
};
use crate::{
    cpu_ticks,
    testbed::{BitRate, Join, Spec, Testbed},
};

/// The part of the links' rate that TCP can fill and that is asked for: 1.85 of 2 Gbit/s.
const FILLED: f64 = 0.925;
/// Messages under way for each connection.
const THREADS_EACH: u32 = 4;

/// What a run does on its testbed.
struct Load {
    connections: u32,
    place: bool,
}

/// CPU time that a hypervisor gave to others: links then stand idle, whoever sends.
struct Stolen(u64, u64);

impl Stolen {
    /// Ticks stolen, and all, of all CPUs since boot; zeros where the kernel does not say.
    fn now() -> Stolen {
        let ticks = cpu_ticks::read().0.unwrap_or_default();
        Stolen(ticks[7], ticks.iter().sum())
    }

    /// Since then.
    fn percent(&self) -> f64 {
        let now = Stolen::now();
        100.0 * now.0.saturating_sub(self.0) as f64 / now.1.saturating_sub(self.1).max(1) as f64
    }
}

fn name_of(spec: &Spec) -> String {
    let join = match spec.join {
        Join::Ecmp { policy } => format!("policy {policy}"),
        Join::Subnets => "subnets".to_owned(),
    };
    format!(
        "{} x {} {join}{}, seed {}",
        spec.links,
        spec.rate,
        if spec.routed { ", routed" } else { "" },
        spec.seed
    )
}

fn run(bed: &Testbed, load: &Load, settings: &Settings) -> Result<Run, FigureError> {
    let [near, far] = [&bed.hosts[0], &bed.hosts[1]];
    let (_server, addrs) = server(&settings.program, Some(far), &far.addrs)?;
    let mut args: Vec<String> = ["write", "--buffsize", "1m", "--ttime"].map(str::to_owned).into();
    args.push(settings.seconds.to_string());
    args.extend(["--parallel".to_owned(), load.connections.to_string()]);
    args.extend(["--threads".to_owned(), (load.connections * THREADS_EACH).to_string()]);
    if !load.place {
        args.push("--no-placement".to_owned());
    }
    let before = bed.link_bytes(near)?;
    let cpu = Stolen::now();
    let report = client(&settings.program, Some(near), &addrs, &args)?.report(settings.seconds)?;
    let stolen = cpu.percent();
    let after = bed.link_bytes(near)?;
    let sent: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a.sent - b.sent).collect();
    let share = sent.iter().sum::<u64>() / sent.len().max(1) as u64;
    Ok(Run {
        drawn: name_of(&bed.spec),
        seen: report.gbit_per_second,
        raw: 0.0,
        links_used: sent.iter().filter(|&&b| b >= share / 2).count(),
        errors: report.errors,
        stolen_percent: stolen,
        says: report.by_client.iter().flat_map(|c| c.placement.clone()).collect::<Vec<_>>().join("; "),
    })
}

/// iperf3 with so many connections that chance fills the links.
fn raw(bed: &Testbed, settings: &Settings) -> Result<f64, FigureError> {
    let [near, far] = [&bed.hosts[0], &bed.hosts[1]];
    Ok(iperf3(Some((near, far)), far.addrs[0], 32, settings.seconds)?.gbit_per_second)
}

/// As many connections as links: placed in every run, and left to chance.
pub(super) fn fixed(
    group: &'static str,
    links: u8,
    rate: u64,
    settings: &Settings,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Figure>, FigureError> {
    let connections = u32::from(links);
    let enough = FILLED * f64::from(links) * rate as f64 / 1e9;
    let (mut placed, mut chance, mut raw_rate) = (Vec::<Run>::new(), Vec::new(), 0.0);
    for (i, seed) in (1..=settings.runs).zip(settings.seeds()) {
        tell(&format!("{group}: run {i} of {}", settings.runs));
        let spec = Spec { links, rate: BitRate(rate), seed, ..Spec::default() };
        let bed = Testbed::scoped(spec)?;
        if i == 1 {
            raw_rate = raw(&bed, settings)?;
        }
        let mut seen = run(&bed, &Load { connections, place: true }, settings)?;
        // One that misses has a raw figure of its own: it says whether the machine could have carried more.
        seen.raw = if seen.seen < enough { raw(&bed, settings)? } else { raw_rate };
        placed.push(seen);
        chance.push(Run { raw: raw_rate, ..run(&bed, &Load { connections, place: false }, settings)? });
    }
    let full = |runs: &[Run]| runs.iter().filter(|r| r.seen >= enough && r.errors == 0).count();
    let least = |runs: &[Run]| runs.iter().map(|r| r.seen).fold(f64::MAX, f64::min);
    let collided = chance.iter().filter(|r| r.links_used < usize::from(links)).count();
    let what = format!("{links} links x {}, policy 1, {links} connections", BitRate(rate));
    let raw_text = format!("iperf3, 32 connections: {raw_rate:.2} Gbit/s");
    Ok(vec![
        Figure {
            group,
            case: format!("{what}, placed"),
            wanted: format!("at least {enough:.2} Gbit/s in {0} of {0}", settings.runs),
            seen: format!("{} of {}, least {:.2} Gbit/s", full(&placed), settings.runs, least(&placed)),
            raw: raw_text.clone(),
            reached: Some(full(&placed) == placed.len()),
            runs: placed,
        },
        Figure {
            group,
            case: format!("{what}, left to chance"),
            wanted: "the share of runs that collide".to_owned(),
            seen: format!(
                "{collided} of {} collide, {} reach {enough:.2}, least {:.2} Gbit/s",
                settings.runs,
                full(&chance),
                least(&chance)
            ),
            raw: raw_text,
            reached: None,
            runs: chance,
        },
    ])
}

/// Links, policy and join drawn: the links that can be used are.
pub(super) fn drawn(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let (mut runs, mut reached) = (Vec::new(), 0);
    for (i, seed) in (1..=settings.runs).zip(settings.seeds()) {
        tell(&format!("drawn: run {i} of {}", settings.runs));
        let links = (seed % 3 + 2) as u8;
        let join = match (seed >> 8) % 4 {
            0 => Join::Ecmp { policy: 0 },
            1 => Join::Subnets,
            _ => Join::Ecmp { policy: 1 },
        };
        // 2 Gbit/s in all: what two cores carry easily.
        let rate = BitRate(2_000_000_000 / u64::from(links) / 1_000_000 * 1_000_000);
        let bed = Testbed::scoped(Spec { links, rate, join, seed, ..Spec::default() })?;
        let run = run(&bed, &Load { connections: links.into(), place: true }, settings)?;
        let usable = if join == (Join::Ecmp { policy: 0 }) { 1 } else { links };
        let enough = FILLED * f64::from(usable) * rate.gbit_per_second();
        let said = join == Join::Subnets || !run.says.is_empty();
        let good = run.seen >= enough && run.links_used == usize::from(usable) && run.errors == 0 && said;
        reached += usize::from(good);
        runs.push(Run { raw: f64::from(usable) * rate.gbit_per_second(), ..run });
    }
    Ok(vec![Figure {
        group: "drawn",
        case: "2-4 links, policy 0 or 1 or subnets, as many connections, nothing told".to_owned(),
        wanted: format!(
            "{:.1} % of what the links allow, all usable links used, in {1} of {1}",
            FILLED * 100.0,
            settings.runs
        ),
        seen: format!("{reached} of {}", settings.runs),
        raw: "the links' rate".to_owned(),
        reached: Some(reached == runs.len()),
        runs,
    }])
}

/// The hash sees addresses only: one link whatever is done, and the reason is told.
pub(super) fn policy0(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let spec = Spec { join: Join::Ecmp { policy: 0 }, seed: settings.seed, ..Spec::default() };
    let one_link = spec.rate.gbit_per_second();
    let bed = Testbed::scoped(spec)?;
    let raw_rate = raw(&bed, settings)?;
    let mut figures = Vec::new();
    for connections in [1, 2, 4, 8] {
        tell(&format!("policy0: {connections} connections"));
        let run = run(&bed, &Load { connections, place: true }, settings)?;
        let says =
            if connections == 1 { "(one connection: nothing to place)".to_owned() } else { run.says.clone() };
        let told = connections == 1 || !run.says.is_empty();
        figures.push(Figure {
            group: "policy0",
            case: format!("2 links x 1 Gbit/s, policy 0, {connections} connections"),
            wanted: "one link's rate, and the tool says why".to_owned(),
            seen: format!("{:.2} Gbit/s over {} link; {says}", run.seen, run.links_used),
            raw: format!("iperf3, 32 connections: {raw_rate:.2} Gbit/s"),
            reached: Some(run.seen >= FILLED * one_link && run.links_used == 1 && told && run.errors == 0),
            runs: vec![Run { raw: raw_rate, ..run }],
        });
    }
    Ok(figures)
}
