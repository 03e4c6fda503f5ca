//! Which parameters an engine knows, and what their values may be.

use base::ByteSize;

/// What a value may be.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A size, such as 4k; from and to, in bytes.
    Size(u64, u64),
    /// A whole number, from and to.
    Number(u64, u64),
    /// true or false.
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// The parameters of an engine.
pub type Known = &'static [(&'static str, Kind)];

/// Whether the parameter is known and the value allowed.
pub fn check(known: Known, key: &str, value: &str) -> Result<(), String> {
    let Some((_, kind)) = known.iter().find(|(name, _)| *name == key) else {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(format!("this engine has no parameter {key:?}; it knows {}", names.join(", ")));
    };
    match *kind {
        Kind::Size(from, to) => {
            let size: ByteSize = value.parse().map_err(|e: base::units::BadSize| e.to_string())?;
            if (from..=to).contains(&size.0) {
                return Ok(());
            }
            Err(format!("{value} is not within {} to {}", ByteSize(from), ByteSize(to)))
        }
        Kind::Number(from, to) => match value.parse::<u64>() {
            Ok(number) if (from..=to).contains(&number) => Ok(()),
            _ => Err(format!("{value:?} is not a whole number from {from} to {to}")),
        },
        Kind::Bool => match value {
            "true" | "false" => Ok(()),
            _ => Err(format!("{value:?} is neither true nor false")),
        },
        Kind::Word(words) => {
            if words.contains(&value) {
                return Ok(());
            }
            Err(format!("{value:?} is none of {}", words.join(", ")))
        }
    }
}
