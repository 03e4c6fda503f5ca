//! Commands that somebody copies into a shell: what a machine or a dump gave is a word there, whatever it holds.

/// A value as one word of a shell: as it is where that is plain, else in quotes.
pub(crate) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn no_value_ends_its_word() {
        for (text, written) in [
            ("eth0.100", "eth0.100"),
            ("", "''"),
            ("4096 131072", "'4096 131072'"),
            ("x;reboot", "'x;reboot'"),
            ("$(reboot)", "'$(reboot)'"),
            ("a'b", "'a'\\''b'"),
        ] {
            assert_eq!(word(text), written);
            let said =
                std::process::Command::new("sh").args(["-c", &format!("printf %s {written}")]).output();
            assert_eq!(String::from_utf8(said.unwrap().stdout).unwrap(), text);
        }
    }
}
