//! The names that people give: to clusters, pools, file systems, nodes, racks, managers, machines and worksheets.
//!
//! One rule for all, asked by commands before they begin anything and by the manager in any case. It is asked of what is new only: what
//! has its name already, from when less was asked of it, goes by that.

use thiserror::Error;

/// Letters of a name, at most: as many as a part of a machine's name has.
pub const NAME_MAX: usize = 63;

/// What cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{shown:?} is no name of a {of}: 1 to {NAME_MAX} letters of a-z and A-Z, digits, '.', '_' or '-', the first a letter or digit"
)]
pub struct BadName {
    /// What was to be called so.
    of: &'static str,
    /// Its beginning, if it is very long.
    shown: String,
}

fn fits(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

/// Whether a new one (`of`: what it is, for the error) can be called so: nothing that is an option, a path or invisible somewhere.
///
/// # Errors
/// It cannot; the error says the rule.
pub fn check_name(of: &'static str, name: &str) -> Result<(), BadName> {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= NAME_MAX && name.chars().all(fits) {
        return Ok(());
    }
    let mut shown: String = name.chars().take(NAME_MAX + 1).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    Err(BadName { of, shown })
}

/// A name that is as near to a text as a name can be, such as that of a directory; none where nothing of it fits.
pub fn name_like(text: &str) -> Option<String> {
    let plain = text.chars().map(|c| if fits(c) { c } else { '-' });
    let name: String = plain.skip_while(|c| !c.is_ascii_alphanumeric()).take(NAME_MAX).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_an_option_a_path_or_invisible_somewhere_is_no_name() {
        for good in ["a", "7", "fs1", "Rack.2_b-4", &"n".repeat(NAME_MAX)] {
            assert_eq!(check_name("pool", good), Ok(()), "{good}");
        }
        let long = "n".repeat(NAME_MAX + 1);
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "-x",
            "--help",
            "_a",
            "a/b",
            "/",
            "a b",
            "a\n",
            "\u{1b}[2J",
            "a\0",
            "é",
            "a,b",
            &long,
        ] {
            let error = check_name("pool", bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{bad:?} is no name of a pool: 1 to 63 letters")), "{error}");
        }
        assert!(check_name("pool", &"n".repeat(1 << 20)).unwrap_err().to_string().len() < 250);
    }

    #[test]
    fn a_name_is_made_of_any_text() {
        assert_eq!(name_like("my rope").as_deref(), Some("my-rope"));
        assert_eq!(name_like(".-\u{1b}été").as_deref(), Some("t-"));
        assert_eq!(name_like("..").as_deref(), None);
        let made = name_like(&"é1".repeat(500)).unwrap();
        assert_eq!(check_name("cluster", &made), Ok(()));
    }
}
