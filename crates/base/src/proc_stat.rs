//! What `/proc/PID/stat` says of a process, as text: whether it lives, and when it started. With the boot,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let rest = "1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 123456 1000 5";
        assert_eq!(start_ticks(&format!("42 (rope) S {rest}")), Some(123_456));
        assert_eq!(start_ticks(&format!("42 (a) Z 1 (b c)) R {rest}")), Some(123_456));
        assert_eq!(start_ticks(&format!("42 (rope) Z {rest}")), None, "ended");
        for bad in ["", "42", "42 (rope", "42 (rope)", "42 (rope) S 1 2", "42 (é)é S 1"] {
            assert_eq!(start_ticks(bad), None, "{bad}");
        }
    }
}
