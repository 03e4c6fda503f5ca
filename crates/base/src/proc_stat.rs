//! What `/proc/PID/stat` says of a process, as text: whether it lives, when it started, how much CPU it used. With the boot,
//! process id and start time name a process for ever; the id alone is used again.

/// Start time in clock ticks since boot (field 22), if the process lives. A zombie has ended; only its
/// parent has not looked.
pub fn start_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold spaces and parentheses; fields are counted after the last one.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
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
}
