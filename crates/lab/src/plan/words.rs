//! What a reader of TOML says of a wrong plan, in the words of who writes plans: what stands there, and what may.

/// What steps may be.
pub(super) const STEPS: &str = "write \"1..n\", \"1..8\", or a list of numbers from 1 to 4096 and \"n\"";

/// What may stand at a key, where its type alone does not tell.
fn rule(key: &str) -> Option<&'static str> {
    Some(match key {
        "steps" => STEPS,
        "seconds" => "write a number, such as 2 or 0.5",
        "repeats" => "write a whole number from 1 to 100",
        "series" => "write a [[series]] for each line of the chart",
        "ceiling" => "write a list such as [{ layer = \"link\", series = \"one-link\", times = 2 }]",
        "pick" => "write a table such as { key = \"mtu\" }",
        "set" => "write a table such as { bs = \"4k\" }",
        "matrix" | "each" => "write a table of lists, such as { iodepth = [1, 8] }",
        "devices" | "writable" | "changeable" | "pairs" | "links" | "also" => {
            "write a list of texts in quotes"
        }
        _ => return None,
    })
}

/// The types that serde names.
fn of_type(expected: &str) -> String {
    let what = match expected {
        "f64" => "a number",
        "u32" | "u64" => "a whole number that is not negative",
        "a string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        "string or table" => "a text in quotes",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    format!("write {what}")
}

/// What stands there, as serde has it: a word for its kind, and itself.
fn there(found: &str) -> String {
    let kinds = [
        ("floating point ", ""),
        ("integer ", ""),
        ("boolean ", ""),
        ("string ", "the text "),
        ("sequence", "a list"),
        ("map", "a table"),
    ];
    let plain = kinds.iter().find_map(|(kind, word)| Some(format!("{word}{}", found.strip_prefix(kind)?)));
    plain.unwrap_or_else(|| found.to_owned()).replace('`', "")
}

/// The names in "expected one of `a`, `b`" or "expected `a` or `b`".
fn names(expected: &str) -> String {
    let quoted = expected.split('`').skip(1).step_by(2);
    quoted.collect::<Vec<_>>().join(", ")
}

/// The message, said plainly. `key`: that of the place.
pub(super) fn plain(message: &str, key: &str) -> String {
    let said = || {
        if let Some((unknown, may)) = message.strip_prefix("unknown field `").and_then(|m| m.split_once('`'))
        {
            return Some(format!("there is no key {unknown:?} here; possible are {}", names(may)));
        }
        if let Some((unknown, may)) =
            message.strip_prefix("unknown variant `").and_then(|m| m.split_once('`'))
        {
            return Some(format!("{unknown:?} is none of {}", names(may)));
        }
        if let Some(missing) = message.strip_prefix("missing field `").and_then(|m| m.strip_suffix('`')) {
            let rule = rule(missing).map(|rule| format!("; {rule}")).unwrap_or_default();
            return Some(format!("the key {missing:?} is missing{rule}"));
        }
        if message.starts_with("data did not match any variant of untagged enum") {
            return Some(rule(key).unwrap_or("write a number, a text in quotes, true or false").to_owned());
        }
        let wrong =
            message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        let (found, expected) = wrong?.split_once(", expected ")?;
        Some(format!(
            "it is {}; {}",
            there(found),
            rule(key).map_or_else(|| of_type(expected), str::to_owned)
        ))
    };
    said().unwrap_or_else(|| message.replace('\n', "; "))
}
