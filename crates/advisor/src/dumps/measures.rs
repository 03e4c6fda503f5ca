//! Figures that an article states: rates, operations, steps of a scaling test, sizes of test files.
//! They are kept with what they are of, so that rules can add them up and compare them.

use super::{
    says::Says,
    text::{count_word, number},
};

/// Reads the figures of one line.
pub(super) fn measures(says: &mut Says, line: &str, words: &[&str]) {
    rates(says, line, words);
    by_transport(says, line, words);
    devices(says, line, words);
    steps(says, words);
    generations(says, line, words);
    files(says, line, words);
    limits(says, line, words);
    on_the_wire(says, line, words);
}

/// The number in a word such as `~5`, `42000`, `38961`, `400K`, `12.5`.
fn figure(word: &str) -> Option<f64> {
    let word = word.trim_start_matches('~');
    match word.strip_suffix(['K', 'k']) {
        Some(thousands) => thousands.parse::<f64>().ok().map(|n| n * 1000.0),
        None => word.replace(',', "").parse().ok(),
    }
}

/// Rates of a whole and of a core, and of single connections against what a link can carry.
fn rates(says: &mut Says, line: &str, words: &[&str]) {
    let lower = line.to_lowercase();
    for (at, pair) in words.windows(2).enumerate() {
        let Some(value) = figure(pair[0]) else { continue };
        match pair[1] {
            "GBps"
                if (lower.starts_with("average")
                    || lower.trim_start_matches(['•', ' ']).starts_with("average"))
                // `Average and peak ... are A GBps and B GBps`: the first is the average.
                && !words[..at].contains(&"GBps") =>
            {
                says.say(&["average-gbps"], pair[0]);
            }
            "MBps" if words.get(at + 2) == Some(&"per") && words.get(at + 3) == Some(&"core") => {
                says.say(&["mbps-per-core"], pair[0]);
                if let Some(cores) = words[at..].windows(2).find(|p| p[1] == "cores").map(|p| p[0]) {
                    says.say(&["cores"], cores);
                }
            }
            "GB/s" => {
                let what = if lower.contains("theoretical") && lower.contains("up to") {
                    "link-can"
                } else if lower.contains("single tcp connection") && lower.contains("only") {
                    "single-connection"
                } else if lower.contains("limited to") {
                    "at-most"
                } else {
                    continue;
                };
                says.say(&["gb-per-second", what], &value.to_string());
            }
            _ => {}
        }
    }
}

/// `Streaming Write, 1.00 GBytes/second RDMA; 753 MBytes/second IPoIB`, also with the transport before its figure.
fn by_transport(says: &mut Says, line: &str, words: &[&str]) {
    let transport = |word: &str| {
        if word == "RDMA" { Some("RDMA") } else { word.starts_with("IPo").then_some("IPoIB") }
    };
    for word in words.iter().filter(|w| w.starts_with("IPo") && **w != "IPoIB") {
        says.say(&["spelling", "IPoIB"], word);
    }
    let Some(start) = line.find("Streaming ") else { return };
    // The last of them is what the figures are of: a title may stand before it.
    let start = line.rfind("Streaming ").unwrap_or(start);
    let measure: Vec<&str> = line[start..]
        .split_whitespace()
        .map(|w| w.trim_matches(|c: char| !c.is_alphanumeric()))
        .take(3)
        .take_while(|w| ["Streaming", "DRAM", "Disk", "Read", "Write"].contains(w))
        .collect();
    let measure = measure.join(" ");
    for (at, word) in words.iter().enumerate() {
        let unit = words.get(at + 1).map_or("", |unit| *unit).to_lowercase();
        let scale = match unit.as_str() {
            "gbytes/second" => 1000.0,
            "mbytes/second" => 1.0,
            _ => continue,
        };
        let Some(value) = figure(word) else { continue };
        let behind = words.get(at + 2).and_then(|w| transport(w));
        let before = words[..at].iter().rev().take(4).find_map(|w| transport(w));
        if let Some(transport) = behind.or(before) {
            says.say(&["throughput", &measure, transport], &format!("{} MB/s", value * scale));
        }
    }
}

/// `with 28 devices ... hitting 28.9 million`: operations a second of so many devices.
fn devices(says: &mut Says, line: &str, words: &[&str]) {
    if !line.contains("IOPS") {
        return;
    }
    let mut count = None;
    for pair in words.windows(2) {
        if pair[1].starts_with("devices") {
            count = count_word(pair[0]).or(count);
        }
        if pair[1] == "million"
            && let (Some(count), Some(value)) = (count, figure(pair[0]))
        {
            says.say(&["iops", &format!("{count} devices")], &format!("{value} million"));
        }
    }
}

/// A test that adds clients step by step, and what is foreseen from it.
fn steps(says: &mut Says, words: &[&str]) {
    let at = |pattern: &[&str]| {
        words
            .windows(pattern.len())
            .position(|w| w.iter().zip(pattern).all(|(a, b)| a.eq_ignore_ascii_case(b) || *b == "#"))
    };
    if let Some(i) = at(&["Every", "#", "clients", "adds"])
        && let (Some(clients), Some(gain)) =
            (count_word(words[i + 1]), words[i + 4..].iter().find_map(|w| figure(w)))
    {
        says.say(&["steps", "clients"], &clients.to_string());
        says.say(&["steps", "gain"], &gain.to_string());
    }
    if let Some(i) = at(&["last", "client", "adds", "another", "#"])
        && let Some(gain) = figure(words[i + 4])
    {
        says.say(&["steps", "last-gain"], &gain.to_string());
    }
    if let Some(i) = at(&["maximum", "of", "#", "clients"]) {
        says.say(&["steps", "reached"], words[i + 2]);
    }
    if let Some(i) = at(&["another", "#", "clients"]) {
        says.say(&["steps", "more"], words[i + 1]);
        if let Some(claim) =
            words[i..].iter().find_map(|w| w.strip_suffix('K').and_then(|n| n.parse::<f64>().ok()))
        {
            says.say(&["steps", "claim"], &(claim * 1000.0).to_string());
        }
    }
}

/// Generations of InfiniBand, and whether they are of a fabric or of an adapter.
fn generations(says: &mut Says, line: &str, words: &[&str]) {
    for word in words {
        let generation = word.split('-').next().unwrap_or(word);
        if ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR"].contains(&generation) {
            let of = if line.contains("HCA") { "adapter" } else { "fabric" };
            says.say(&["infiniband", of], generation);
        }
    }
}

/// Sizes of files that tests read, and a record size that is called otherwise.
fn files(says: &mut Says, line: &str, words: &[&str]) {
    for pair in words.windows(2) {
        if pair[1].starts_with("file") {
            let size = pair[0].strip_suffix("Byte").unwrap_or(pair[0]).trim_end_matches('B');
            if size.ends_with(['G', 'M', 'T']) && number(size).is_some() {
                says.say(&["file-size"], pair[0]);
            }
        }
    }
    if let Some((_, rest)) = line.split_once("database size") {
        let size = rest.split_whitespace().find_map(|w| w.parse::<u32>().ok());
        if let Some(size) = size.filter(|_| rest.contains("Kbyte") || rest.contains("KB")) {
            says.say(&["database-size-kib"], &size.to_string());
        }
    }
}

/// What kept a test from more: a share of what was expected, too few clients, a rate that fell while it ran.
fn limits(says: &mut Says, line: &str, words: &[&str]) {
    let percent = |word: &&str| word.trim_end_matches('%').parse::<f64>().ok();
    // `around 75% of the expected value`, `up to 97% of the target expected`; punctuation takes the sign off.
    for group in words.windows(5) {
        if let [share, "of", "the", rest @ ..] = group
            && rest.contains(&"expected")
            && line.contains(&format!("{share}% of the"))
            && let Some(share) = percent(share)
        {
            says.say(&["share-of-expected"], &share.to_string());
        }
    }
    let lower = line.to_lowercase();
    let fewness = ["insufficient configuration of clients", "but rather the number of clients"];
    if fewness.iter().any(|words| lower.contains(words)) {
        says.say(&["clients"], "too few");
    } else if lower.contains("not with the number of clients") {
        says.say(&["clients"], "enough");
    }
    if lower.contains("drop-off")
        && lower.contains("long period")
        && let Some(fell) = line.split_once('(').and_then(|(_, rest)| rest.split_once("%)"))
        && let Some(fell) = percent(&fell.0)
    {
        says.say(&["fell-while-running"], &fell.to_string());
    }
}

/// Operations a second and their size, the rate that each device shows for them, and counters that are short for it.
fn on_the_wire(says: &mut Says, line: &str, words: &[&str]) {
    for (at, word) in words.iter().enumerate() {
        let next = |n: usize| words.get(at + n).copied().unwrap_or_default();
        if next(1) == "write"
            && next(2) == "IOPS"
            && let Some(rate) = figure(word)
        {
            says.say(&["synchronous", "iops"], &rate.to_string());
        }
        if word.ends_with('K')
            && next(1) == "synchronous"
            && next(2) == "write"
            && let Some(size) = number(word)
        {
            says.say(&["synchronous", "bytes"], &size.to_string());
        }
        if let Some(rate) = word.strip_suffix("MB/sec").and_then(figure)
            && line.contains("per-device network throughput")
        {
            says.say(&["synchronous", "mbps-per-device"], &rate.to_string());
        }
    }
    for bits in ["32", "64"] {
        if line.contains("counters") && line.contains(&format!("{bits}-bit")) {
            says.say(&["counter-bits"], bits);
        }
    }
}
