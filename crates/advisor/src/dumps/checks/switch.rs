//! A switch, and both ends of its links.

use super::super::view::{Hit, Report, View};

/// Other ends that each port is compared with.
const ENDS_MAX: usize = 64;
/// Payload of PCIe 3.0 on one lane in Gbit/s: 8 GT/s less the 128b/130b code.
const PCIE3_LANE_GBIT: f64 = 8.0 * 128.0 / 130.0;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    speeds(v, r);
    frames(v, r);
    pause(v, r);
    hash(v, r);
    bus(v, r);
    let open: Vec<Hit<'_>> =
        v.all("switch/port/*/*").into_iter().filter(|h| is_placeholder(h.word(2))).collect();
    if let Some(first) = open.first() {
        r.bad(
            "switch-placeholder",
            &open,
            format!("{} names no port: write the ports in full, such as 1/1-1/36", first.word(2)),
        );
    }
}

fn is_placeholder(port: &str) -> bool {
    port.split([' ', '-'])
        .next_back()
        .is_some_and(|last| last.chars().all(|c| c.is_ascii_lowercase()) && last.len() == 1)
}

/// `40000_Full_Duplex`, `56000`, `100 Gbps` as Mbit/s.
fn mbit(text: &str) -> Option<f64> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let number: f64 = digits.parse().ok()?;
    Some(if text.contains('G') { number * 1000.0 } else { number })
}

fn speeds(v: &View<'_>, r: &mut Report) {
    let ends: Vec<Hit<'_>> = v.all("aix/device/*/media_speed").into_iter().take(ENDS_MAX).collect();
    for port in v.all("switch/port/*/speed") {
        let Some(set) = mbit(port.value()) else { continue };
        for end in &ends {
            let Some(there) = mbit(end.value()) else { continue };
            let what = format!("port at {set} Mbit/s, {} at {there}", end.word(2));
            r.verdict("link-speed-differs", set == there, &[port, *end], what);
        }
    }
    for shown in v.all("switch/shown/*/actual-speed") {
        let sets = v.all("switch/port/*/speed");
        let Some(set) = sets.into_iter().find(|set| covers(set.word(2), shown.word(2))) else { continue };
        let what = format!("{}: set to {}, runs at {}", shown.word(2), set.value(), shown.value());
        r.verdict("switch-speed-not-taken", mbit(set.value()) == mbit(shown.value()), &[set, shown], what);
    }
}

/// Whether the port of a state (`Eth1-3`, as paths write 1/3) is among those of a configuration line: one port, or a
/// range such as 1/1-1/36 or 1/1-36.
fn covers(configured: &str, shown: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    let [slot, port] = numbers(shown)[..] else { return false };
    match numbers(configured)[..] {
        [s, first] => (s, first) == (slot, port),
        [s, first, last] | [s, first, _, last] => s == slot && (first..=last).contains(&port),
        _ => false,
    }
}

fn frames(v: &View<'_>, r: &mut Report) {
    let mut hosts = v.all("aix/device/*/mtu");
    hosts.extend(v.all("linux/ifcfg/*/MTU"));
    hosts.extend(v.all("linux/interface/*/mtu"));
    for port in v.all("switch/port/*/mtu") {
        let Some(carries) = port.number() else { continue };
        let (over, fit): (Vec<_>, Vec<_>) =
            hosts.iter().copied().partition(|h| h.number().is_some_and(|n| n > carries));
        if let Some(host) = over.first() {
            r.bad(
                "switch-mtu-small",
                &[port, *host],
                format!("{} sends packets of {}, the port carries {carries}", host.word(2), host.value()),
            );
        } else if !fit.is_empty() {
            let mut hits = fit;
            hits.push(port);
            r.good("switch-mtu-small", &hits, format!("no end sends packets above the port's mtu {carries}"));
        }
    }
}

fn pause(v: &View<'_>, r: &mut Report) {
    for receive in v.all("switch/port/*/flowcontrol-receive") {
        let Some(send) = v.first(&format!("switch/port/{}/flowcontrol-send", receive.word(2))) else {
            continue;
        };
        r.verdict(
            "switch-pause-one-way",
            receive.value() == send.value(),
            &[receive, send],
            format!("{}: pause received {}, sent {}", receive.word(2), receive.value(), send.value()),
        );
        for end in v.all("aix/device/*/flow_ctrl").into_iter().take(ENDS_MAX) {
            let both = (end.value() == "yes") == (receive.value() == "on");
            r.verdict(
                "pause-differs",
                both,
                &[receive, end],
                format!(
                    "{}: pause {}; {}: flow_ctrl {}",
                    receive.word(2),
                    receive.value(),
                    end.word(2),
                    end.value()
                ),
            );
        }
    }
}

fn hash(v: &View<'_>, r: &mut Report) {
    let Some(fields) = v.first("switch/load-balance") else { return };
    r.verdict(
        "switch-hash-without-ports",
        fields.value().contains("port"),
        &[fields],
        format!("the switch spreads by {}", fields.value()),
    );
    for bond in v
        .all("linux/bond/*/mode")
        .iter()
        .filter(|b| matches!(b.value(), "balance-alb" | "balance-tlb" | "active-backup"))
    {
        let what = format!(
            "{} is {}: it forms no LAG, so the switch's load balancing does not act on its links",
            bond.word(2),
            bond.value()
        );
        r.bad("switch-hash-idle", &[*bond, fields], what);
    }
}

/// Two ports of a card behind one bus.
fn bus(v: &View<'_>, r: &mut Report) {
    let (Some(bus), Some(ports)) = (v.first("says/pcie/bus"), v.number("says/pcie/ports")) else { return };
    let lanes = bus.value().rsplit('x').next().and_then(|n| n.parse::<f64>().ok());
    let lane = if bus.value().starts_with("Gen3") { PCIE3_LANE_GBIT } else { return };
    let fastest = v
        .all("says/port-speed/gbit")
        .into_iter()
        .filter(|h| h.line() == bus.line())
        .max_by(|a, b| a.number().partial_cmp(&b.number()).unwrap_or(std::cmp::Ordering::Equal));
    let (Some(lanes), Some(fastest)) = (lanes, fastest) else { return };
    let Some(port) = fastest.number() else { return };
    let (carries, wanted) = (lane * lanes, port * ports.1);
    let what = format!(
        "{} carries {carries:.0} Gbit/s, {} ports of {port} Gbit/s are {wanted:.0}",
        bus.value(),
        ports.1
    );
    r.verdict("pcie-below-ports", carries >= wanted, &[bus, fastest], what);
}
