//! CPU time since boot, as `/proc/stat` has it.

use std::{collections::BTreeMap, fs};

/// Ticks of 10 ms: user, nice, system, idle, iowait, irq, softirq, steal. What guests use is in user.
pub type Ticks = [u64; 8];

/// Of all CPUs together, and of each. What an old kernel does not count is 0; nothing where it says nothing.
pub fn read() -> (Option<Ticks>, BTreeMap<u32, Ticks>) {
    parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse(text: &str) -> (Option<Ticks>, BTreeMap<u32, Ticks>) {
    let mut lines = text.lines().map_while(|line| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?;
        let mut ticks = words.filter(|word| !word.is_empty()).map_while(|word| word.parse().ok());
        Some((cpu, std::array::from_fn(|_| ticks.next().unwrap_or(0))))
    });
    let all = lines.next().filter(|(cpu, _)| cpu.is_empty()).map(|(_, ticks)| ticks);
    (all, lines.map_while(|(cpu, ticks)| Some((cpu.parse().ok()?, ticks))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cpus_and_each_are_told_apart() {
        let text =
            "cpu  9 1 8 70 2 3 4 5 6 0\ncpu0 4 0 4 30 1 1 2 5\ncpu11 5 1 4 40\nintr 1 2 3\ncpu12 1 1 1 1\n";
        let (all, each) = parse(text);
        assert_eq!(all, Some([9, 1, 8, 70, 2, 3, 4, 5]));
        assert_eq!(each, [(0, [4, 0, 4, 30, 1, 1, 2, 5]), (11, [5, 1, 4, 40, 0, 0, 0, 0])].into());
        assert_eq!(parse(""), (None, BTreeMap::new()));
    }
}
