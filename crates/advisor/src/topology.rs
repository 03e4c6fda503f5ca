//! Memory nodes as `numactl -H` shows them, of the facts of a machine or a dump; and how scattered the machine is over them.

use std::fmt::Write;

use crate::facts::{Facts, Path};

/// How scattered a machine is over its memory nodes: of the CPUs and of the memory, the share that would have to move
/// for all nodes that have any to have the same, in percent. 0 is even; of one node nothing is said.
pub fn scattered_percent(facts: &Facts) -> Option<i64> {
    let of = |pattern: &'static str| -> Vec<i64> {
        facts.matching(pattern).filter_map(|(_, fact)| fact.value.as_int()).filter(|n| *n > 0).collect()
    };
    let (cpus, memory) = (of("numa.*.cpus"), of("numa.*.memory"));
    if cpus.len() < 2 {
        return None;
    }
    let share_out_of_place = |all: &[i64]| {
        let sum: i128 = all.iter().map(|n| i128::from(*n)).sum();
        let even = sum / all.len().max(1) as i128;
        let over: i128 = all.iter().map(|n| (i128::from(*n) - even).max(0)).sum();
        (over * 100).checked_div(sum).unwrap_or(0) as i64
    };
    // Nodes with CPUs but without memory read and write all of it elsewhere.
    let without_memory = (cpus.len().saturating_sub(memory.len()) * 100 / cpus.len()) as i64;
    let of_memory = if facts.matching("numa.*.memory").next().is_some() {
        share_out_of_place(&memory).max(without_memory)
    } else {
        0
    };
    Some(share_out_of_place(&cpus).max(of_memory))
}

/// CPUs in order, as the kernel lists them: `0-3,8`.
pub(crate) fn ranges(cpus: &[u32]) -> String {
    let mut list = String::new();
    let mut at = 0;
    while let Some(first) = cpus.get(at) {
        let run = cpus[at..].iter().zip(*first..).take_while(|(cpu, expected)| *cpu == expected).count();
        let last = cpus[at + run - 1];
        let comma = if at > 0 { "," } else { "" };
        let _ = if run > 1 { write!(list, "{comma}{first}-{last}") } else { write!(list, "{comma}{first}") };
        at += run;
    }
    list
}

/// The CPUs of such a list, as `numactl -H` writes them.
fn each(list: &str) -> String {
    let cpus = crate::host::cpu_list(list).unwrap_or_default();
    cpus.iter().map(|cpu| format!(" {cpu}")).collect()
}

/// Nodes with their CPUs and memory, their distances, and a line on how scattered they are. None where no node is to be seen.
pub fn topology(facts: &Facts) -> Option<String> {
    let mut nodes: Vec<(u32, Path)> = facts
        .nodes("numa.*")
        .into_iter()
        .filter_map(|path| Some((path.last().parse().ok()?, path)))
        .collect();
    nodes.sort();
    let ids: Vec<u32> = nodes.iter().map(|(id, _)| *id).collect();
    (!ids.is_empty()).then_some(())?;
    let mut text = format!("available: {} nodes ({})\n", ids.len(), ranges(&ids));
    let of = |path: &Path, name: &str| facts.value(path.join(name).as_str());
    for (id, path) in &nodes {
        // A single CPU is a number.
        let cpus = of(path, "cpu_list").map(|list| each(&list.to_string())).unwrap_or_default();
        let _ = writeln!(text, "node {id} cpus:{cpus}");
        for (name, key) in [("size", "memory"), ("free", "free")] {
            if let Some(bytes) = of(path, key).and_then(|value| value.as_int()) {
                let _ = writeln!(text, "node {id} {name}: {} MB", bytes >> 20);
            }
        }
    }
    let rows: Vec<(u32, Vec<String>)> = nodes
        .iter()
        .filter_map(|(id, path)| {
            let distances = of(path, "distances")?.as_list()?.iter().map(|d| format!("{:>4}", d.to_string()));
            Some((*id, distances.collect()))
        })
        .collect();
    if rows.len() == nodes.len() {
        let heads: String = ids.iter().map(|id| format!("{id:>4}")).collect();
        let _ = writeln!(text, "node distances:\nnode{heads}");
        for (id, row) in &rows {
            let _ = writeln!(text, "{id:>3}:{}", row.concat());
        }
    }
    let said = match scattered_percent(facts) {
        Some(score) => format!("{score} % of the CPUs or the memory would have to move for an even spread"),
        None => "one node with CPUs: nothing is scattered".to_owned(),
    };
    let _ = writeln!(text, "fragmentation: {said}");
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dumps, facts::Origin};

    /// What is printed here is read again as `numactl -H` is, and says the same.
    #[test]
    fn what_is_shown_reads_as_numactl() {
        let mut facts = Facts::new();
        for (path, value) in
            [("numa.0.memory", 64i64 << 30), ("numa.0.free", 1 << 30), ("numa.8.memory", 32 << 30)]
        {
            facts.insert(path, value, Origin::of("a test"));
        }
        for (node, cpus, list, distances) in
            [("0", 5u32, "0-3,8", vec![10u32, 40]), ("8", 1, "9", vec![40, 10])]
        {
            facts.insert(["numa", node, "cpus"], cpus, Origin::of("a test"));
            facts.insert(["numa", node, "cpu_list"], list, Origin::of("a test"));
            facts.insert(["numa", node, "distances"], distances, Origin::of("a test"));
        }
        let text = topology(&facts).unwrap();
        assert_eq!(
            text,
            "available: 2 nodes (0,8)\nnode 0 cpus: 0 1 2 3 8\nnode 0 size: 65536 MB\nnode 0 free: 1024 MB\n\
             node 8 cpus: 9\nnode 8 size: 32768 MB\nnode distances:\nnode   0   8\n  0:  10  40\n  8:  40  10\n\
             fragmentation: 33 % of the CPUs or the memory would have to move for an even spread\n"
        );
        let again = dumps::facts(&dumps::document("-", text.as_bytes()));
        for (path, fact) in facts.iter() {
            assert_eq!(
                again.value(path.as_str()).map(ToString::to_string),
                Some(fact.value.to_string()),
                "{path}"
            );
        }
        assert_eq!(topology(&Facts::new()), None);
    }

    #[test]
    fn lists_of_cpus() {
        for (cpus, list) in [(&[][..], ""), (&[3], "3"), (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8")] {
            assert_eq!(ranges(cpus), list);
        }
    }
}
