//! How much of the machine others used while something was staged.

use std::{fs, time::Duration};

use super::first::First;
use crate::cpu_ticks;

/// Ticks of a second.
const TICKS: f64 = 100.0;

/// CPU time of the machine, and what of it is this process's, its children's, and of all that runs in the stagings' group.
pub(super) struct Others {
    all: f64,
    idle: f64,
    own: f64,
    staged: Option<Duration>,
}

impl Others {
    pub(super) fn now(first: &First) -> Others {
        let [user, nice, system, idle, io, irq, soft, steal] = cpu_ticks::read().0.unwrap_or_default();
        let all = user + nice + system + idle + io + irq + soft + steal;
        // Behind the name, which may hold spaces, and the state: proc(5) from field 4 on.
        let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        let own: Vec<u64> = fields.skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
        let staged = first.used();
        // What is counted by the group is not counted again as children's.
        let counted = if staged.is_some() { &own[..own.len().min(2)] } else { &own[..] };
        let own = counted.iter().sum::<u64>() as f64;
        Others { all: all as f64, idle: (idle + io) as f64, own, staged }
    }

    /// The share of the machine that others had since then.
    pub(super) fn since(&self, first: &First) -> f64 {
        let now = Others::now(first);
        let all = now.all - self.all;
        let staged =
            now.staged.zip(self.staged).map_or(0.0, |(now, then)| (now - then).as_secs_f64() * TICKS);
        let ours = (now.idle - self.idle) + (now.own - self.own) + staged;
        (all - ours).max(0.0) / all.max(1.0)
    }
}
