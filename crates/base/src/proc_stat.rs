//! What `/proc/PID/stat` says of a process, as text: whether it lives, when it started, how much CPU it used. With the boot,
//! process id and start time name a process for ever; the id alone is used again.

/// Start time in clock ticks since boot (field 22), if the process lives. A zombie has ended; only its
/// parent has not looked, or its last threads are on their way out.
pub fn start_ticks(stat: &str) -> Option<u64> {
    Seen::parse(stat).filter(|seen| !seen.zombie).map(|seen| seen.start_ticks)
}

/// What is of interest here.
struct Seen {
    zombie: bool,
    threads: u64,
    start_ticks: u64,
}

impl Seen {
    fn parse(stat: &str) -> Option<Seen> {
        // The name in parentheses may hold spaces and parentheses; fields are counted after the last one.
        let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
        let zombie = fields.next()? == "Z";
        let threads = fields.nth(16)?.parse().ok()?;
        Some(Seen { zombie, threads, start_ticks: fields.nth(1)?.parse().ok()? })
    }
}

/// Whether the process with that id, which started at `start_ticks` (0: not known), has ended: only if that is certain.
/// `absent`: the system says that no process has the id (kill: ESRCH). `stat`: what was read of it, if it could be.
pub fn has_ended(start_ticks: u64, absent: bool, stat: Option<&str>) -> bool {
    let seen = stat.and_then(Seen::parse);
    // Another process has the id now, or it is dead to its last thread.
    absent
        || start_ticks != 0
            && seen.is_some_and(|s| s.start_ticks != start_ticks || s.zombie && s.threads <= 1)
}

/// User and system time of the process in seconds, all its threads (fields 14 and 15). A tick is 1/100 s (USER_HZ)
/// on every architecture we run on.
pub fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let rest = "1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 123456 1000 5";
        assert_eq!(start_ticks(&format!("42 (rope) S {rest}")), Some(123_456));
        assert_eq!(start_ticks(&format!("42 (a) Z 1 (b c)) R {rest}")), Some(123_456));
        assert_eq!(start_ticks(&format!("42 (rope) Z {rest}")), None, "ended");
        assert_eq!(cpu_seconds(&format!("42 (a) Z 1 (b c)) R {rest}")), Some(0.03));
        assert_eq!(cpu_seconds("42 (rope) S 1 2"), None);
        for bad in ["", "42", "42 (rope", "42 (rope)", "42 (rope) S 1 2", "42 (é)é S 1"] {
            assert_eq!(start_ticks(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_a_proof_is_the_end_of_a_process() {
        let stat = |state, ticks| {
            format!("42 (rope) {state} 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 {ticks} 1000 5")
        };
        assert!(has_ended(5, true, None));
        assert!(has_ended(5, false, Some(&stat("S", 6))), "the id is used again");
        assert!(has_ended(5, false, Some(&stat("Z", 5))));
        let threads = stat("Z", 5).replacen("20 0 1 0", "20 0 3 0", 1);
        assert!(!has_ended(5, false, Some(&threads)), "two of its threads are left");
        assert!(!has_ended(5, false, Some(&stat("S", 5))));
        assert!(!has_ended(0, false, Some(&stat("S", 5))));
        for unknown in [None, Some(""), Some("42 (rope) S"), Some("42 (rope) Z 1 2")] {
            assert!(!has_ended(5, false, unknown), "{unknown:?}");
        }
    }
}
