//! AIX networking: an interface's own values against those of `no`, and both against what bounds them.

use super::super::view::{Hit, Report, View};

/// An Ethernet header without VLAN tag, which `jumbo_size` counts and `mtu` does not.
const ETHERNET_HEADER: f64 = 14.0;
/// Headers of IPv4 and TCP without options.
const IP_TCP_HEADERS: f64 = 40.0;
/// Windows above need RFC 1323.
const WINDOW_WITHOUT_SCALING: f64 = 65_535.0;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    jumbo(v, r);
    segment_size(v, r);
    buffers(v, r);
    precedence(v, r);
    tables(v, r);
    adapters(v, r);
    free_list(v, r);
}

/// The interface `en3` of the adapter `ent3`.
fn interface_of(adapter: &str) -> String {
    adapter.replacen("ent", "en", 1)
}

fn jumbo(v: &View<'_>, r: &mut Report) {
    for size in v.all("aix/device/*/jumbo_size") {
        let adapter = size.word(2);
        let interface = interface_of(adapter);
        let mtu = v
            .first(&format!("aix/device/{interface}/mtu"))
            .or_else(|| v.first(&format!("aix/interface/{interface}/mtu")));
        let (Some(mtu), Some(bytes)) = (mtu, size.number()) else { continue };
        let Some(frame) = mtu.number().map(|mtu| mtu + ETHERNET_HEADER) else { continue };
        let enabled = v.first(&format!("aix/device/{adapter}/jumbo_frames"));
        r.verdict(
            "aix-jumbo-size",
            bytes >= frame,
            &[size, mtu],
            format!("{adapter}: jumbo_size {bytes}, mtu {} + 14 = {frame}", mtu.value()),
        );
        if let Some(enabled) = enabled.filter(|_| frame > 1514.0) {
            r.verdict(
                "aix-jumbo-frames",
                enabled.value() == "yes",
                &[enabled, mtu],
                format!("{adapter}: jumbo_frames {}, mtu {}", enabled.value(), mtu.value()),
            );
        }
    }
}

fn segment_size(v: &View<'_>, r: &mut Report) {
    let Some((mss, bytes)) = v.number("aix/no/tcp_mssdflt") else { return };
    for mtu in v.all("aix/device/*/mtu") {
        let Some(fits) = mtu.number().map(|mtu| mtu - IP_TCP_HEADERS) else { continue };
        let what = format!("tcp_mssdflt {bytes}, mtu {} of {} - 40 = {fits}", mtu.value(), mtu.word(2));
        r.verdict("aix-mss", bytes <= fits, &[mss, mtu], what);
    }
}

/// Every socket buffer that stands somewhere: the global ones of `no` and those of an interface.
fn spaces<'a>(v: &View<'a>) -> Vec<Hit<'a>> {
    let names = ["tcp_recvspace", "tcp_sendspace", "udp_recvspace", "udp_sendspace"];
    names
        .iter()
        .flat_map(|name| {
            let mut hits = v.all(&format!("aix/no/{name}"));
            hits.extend(v.all(&format!("aix/device/*/{name}")));
            hits
        })
        .collect()
}

fn buffers(v: &View<'_>, r: &mut Report) {
    let spaces = spaces(v);
    if let Some((limit, most)) = v.number("aix/no/sb_max") {
        let over: Vec<Hit<'_>> =
            spaces.iter().copied().filter(|s| s.number().is_some_and(|n| n > most)).collect();
        if !spaces.is_empty() {
            let mut hits = if over.is_empty() { spaces.clone() } else { over.clone() };
            hits.push(limit);
            let what =
                format!("{} of {} socket buffers above sb_max {}", over.len(), spaces.len(), limit.value());
            r.verdict("aix-sb-max", over.is_empty(), &hits, what);
        }
    }
    // A window larger than 64 KiB is not used without window scaling at the same level.
    for space in spaces
        .iter()
        .filter(|s| s.entry.path.contains("tcp_") && s.number().is_some_and(|n| n > WINDOW_WITHOUT_SCALING))
    {
        let scaling = match space.word(1) {
            "no" => v.first("aix/no/rfc1323"),
            _ => v.first(&format!("aix/device/{}/rfc1323", space.word(2))),
        };
        if let Some(scaling) = scaling {
            let at = if space.word(1) == "no" { "no" } else { space.word(2) };
            r.verdict(
                "aix-rfc1323",
                scaling.value() == "1",
                &[*space, scaling],
                format!(
                    "{at}: {} = {} with rfc1323 {}",
                    space.word(space.entry.path.matches('/').count()),
                    space.value(),
                    scaling.value()
                ),
            );
        }
    }
}

/// Interface-specific options win over those of `no`.
fn precedence(v: &View<'_>, r: &mut Report) {
    for own in ["rfc1323", "tcp_mssdflt", "tcp_nodelay", "tcp_recvspace", "tcp_sendspace"]
        .iter()
        .flat_map(|n| v.all(&format!("aix/device/*/{n}")))
    {
        let name = own.word(3);
        let Some(global) = v.first(&format!("aix/no/{name}")) else { continue };
        if own.value().is_empty() || own.number() == global.number() {
            continue;
        }
        let what = format!(
            "{name}: {} on {}, {} by no; {} counts there",
            own.value(),
            own.word(2),
            global.value(),
            own.value()
        );
        r.bad("aix-interface-wins", &[own, global], what);
        if let Some(off) = v.first("aix/no/use_isno").filter(|isno| isno.value() == "0") {
            r.bad(
                "aix-isno-off",
                &[own, off],
                format!("{name} of {} is not looked at: use_isno is 0", own.word(2)),
            );
        }
    }
}

fn tables(v: &View<'_>, r: &mut Report) {
    let mut agreed = 0;
    for current in v.all("aix/no/*") {
        let name = current.word(2);
        let all = v.all(&format!("aix/no/{name}"));
        if let Some(other) = all.iter().find(|hit| hit.line() > current.line()) {
            if other.number() == current.number() || other.value() == current.value() {
                agreed += 1;
            } else {
                let what = format!(
                    "{name}: {} in line {}, {} in line {}",
                    current.value(),
                    current.line(),
                    other.value(),
                    other.line()
                );
                r.bad("aix-no-contradiction", &[current, *other], what);
            }
        }
        let column = |column: &str| v.first(&format!("aix/no-{column}/{name}"));
        if let Some(boot) =
            column("boot").filter(|boot| boot.number().is_some() && boot.number() != current.number())
        {
            r.bad(
                "aix-not-at-boot",
                &[current, boot],
                format!("{name}: {} now, {} after the next boot", current.value(), boot.value()),
            );
        }
        if let (Some(low), Some(high), Some(value)) =
            (column("min").and_then(|h| h.number()), column("max").and_then(|h| h.number()), current.number())
            && !(low..=high).contains(&value)
        {
            r.bad("aix-out-of-range", &[current], format!("{name}: {value} is outside {low} to {high}"));
        }
    }
    if agreed > 0 {
        let hits: Vec<Hit<'_>> =
            v.all("aix/no/*").into_iter().filter(|h| v.all(&h.entry.path).len() > 1).collect();
        r.good("aix-no-contradiction", &hits, format!("{agreed} values of no stand twice and agree"));
    }
}

/// What only the other end can set, and pause on one side only.
fn adapters(v: &View<'_>, r: &mut Report) {
    for fixed in v.all("aix/fixed/*/media_speed") {
        r.bad(
            "aix-speed-fixed",
            &[fixed],
            format!(
                "{}: media_speed {} cannot be set here: the port of the switch decides",
                fixed.word(2),
                fixed.value()
            ),
        );
    }
    for receive in v.all("aix/device/*/flow_ctrl_rx") {
        let Some(send) = v.first(&format!("aix/device/{}/flow_ctrl_tx", receive.word(2))) else { continue };
        r.verdict(
            "aix-pause-one-way",
            receive.value() == send.value(),
            &[receive, send],
            format!("{}: pause received {}, sent {}", receive.word(2), receive.value(), send.value()),
        );
    }
}

/// What the pager frees in one go, against what is read ahead in one.
fn free_list(v: &View<'_>, r: &mut Report) {
    let (Some((low, from)), Some((high, to))) = (v.number("aix/vmo/minfree"), v.number("aix/vmo/maxfree"))
    else {
        return;
    };
    let Some((ahead, pages)) = v.number("aix/ioo/j2_maxPageReadAhead") else { return };
    let what = format!("maxfree {to} - minfree {from} = {}, j2_maxPageReadAhead {pages}", to - from);
    r.verdict("aix-free-list", to - from >= pages, &[high, low, ahead], what);
}
