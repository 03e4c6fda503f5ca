//! Commands that stand in a text: they head listings, and they say what somebody has set or means to set.
//! A sentence that begins with a command's name is no command.

use super::listing::{Reader, Taken};

/// Programs whose command lines are known, and whether they take a word instead of an option first.
const PROGRAMS: [(&str, bool); 44] = [
    ("lsattr", false),
    ("lsdev", true),
    ("odmget", false),
    ("errpt", true),
    ("no", false),
    ("vmo", false),
    ("ioo", false),
    ("schedo", false),
    ("chdev", false),
    ("rmdev", false),
    ("mkdev", false),
    ("cfgmgr", false),
    ("ifconfig", true),
    ("entstat", false),
    ("ethtool", true),
    ("ppc64_cpu", false),
    ("lsslot", false),
    ("numactl", false),
    ("dmesg", true),
    ("nvme", true),
    ("mmchconfig", true),
    ("mmlsconfig", true),
    ("mmdiag", false),
    ("mmfsadm", true),
    ("mmlsfs", true),
    ("mmlscluster", true),
    ("mmlsnsd", true),
    ("mmdf", true),
    ("mmmount", true),
    ("df", false),
    ("mlnx_tune", false),
    ("optmem", false),
    ("gssgenvdisks", false),
    ("sysctl", false),
    ("lspci", false),
    ("multipath", false),
    ("ip", false),
    ("cat", true),
    ("vi", true),
    ("fio", false),
    ("gpfsperf", true),
    ("oslevel", false),
    ("lsmod", true),
    ("free", false),
];

/// The words of the command that stands in a line, without prompt, pipe and redirection.
pub(crate) fn command(line: &str) -> Option<Vec<String>> {
    let text = line.trim();
    let (rest, prompted) = without_prompt(text);
    let mut words =
        rest.split_whitespace().take_while(|word| !matches!(*word, "|" | ">" | ">>" | "&" | "&&" | ";"));
    let first = words.next()?;
    let program = first.rsplit('/').next()?;
    let (_, takes_word) = PROGRAMS.iter().find(|(name, _)| *name == program)?;
    let words: Vec<String> = std::iter::once(program.to_owned()).chain(words.map(str::to_owned)).collect();
    let second = words.get(1).map_or("", String::as_str);
    let alone = second.is_empty() && prompted;
    let shaped = second.starts_with('-')
        || (*takes_word && (prompted || second.contains(['/', '-'])) || first.contains('/'));
    // `cat` and `vi` of one file, `ip` of a sentence: what follows a program's name decides.
    (alone || shaped || (prompted && words.len() < 8)).then_some(words)
}

/// Without `# `, `$ `, `[root@host]> # `, `host# `; and whether there was one.
fn without_prompt(text: &str) -> (&str, bool) {
    let bare = |rest: &'static str| move |c: char| rest.contains(c);
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(_, rest)| rest);
    // A time stamp of the kernel stands in brackets as well.
    if let Some(rest) = bracketed.filter(|rest| rest.starts_with(['>', '#', '$'])) {
        return (rest.trim_start_matches(bare(">#$ ")), true);
    }
    if text.starts_with(['#', '$']) {
        return (text.trim_start_matches(bare("#$ ")), true);
    }
    match text.find(['#', '$']) {
        Some(at) if at <= 40 && !text[..at].contains(' ') => (text[at + 1..].trim_start(), true),
        _ => (text, false),
    }
}

/// A prompt of MLNX-OS with a command, which heads what follows it.
pub(crate) fn is_switch_prompt(line: &str) -> bool {
    line.split_once(" [standalone").or_else(|| line.split_once(" (config")).is_some_and(|(host, rest)| {
        !host.trim().contains(' ') && (rest.contains(" # ") || rest.contains(" > "))
    })
}

/// The device a command is about: what follows `-l` or `-El`, else its last word that is no option.
pub(crate) fn subject(command: &[String]) -> Option<String> {
    let after = |option: &dyn Fn(&str) -> bool| {
        command.iter().skip(1).position(|w| option(w)).and_then(|at| command.get(at + 2)).cloned()
    };
    let subject = match command.first()?.as_str() {
        "lsattr" | "chdev" | "rmdev" | "cfgmgr" | "mkdev" => {
            after(&|word| word.starts_with('-') && word.ends_with('l'))?
        }
        "cat" | "vi" => command.get(1)?.rsplit('/').next()?.to_owned(),
        "ethtool" | "ifconfig" | "entstat" | "nvme" | "mmlsfs" | "mmdf" => {
            command.iter().skip(1).find(|word| !word.starts_with('-'))?.clone()
        }
        _ => return None,
    };
    (!subject.starts_with('-')).then_some(subject)
}

/// A device that a line of its own names, as in `# ent3` above what belongs to it.
pub(crate) fn device_heading(line: &str) -> Option<String> {
    let word = line.trim().strip_prefix('#')?.trim();
    let shaped = word.len() <= 15
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.ends_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_alphanumeric());
    shaped.then(|| word.to_owned())
}

/// Takes a command line: what it sets becomes entries.
pub(crate) fn line(r: &mut Reader, text: &str) -> Taken {
    let Some(words) = command(text) else { return Taken::No };
    let args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let program = words[0].as_str();
    let device = subject(&words);
    let device = device.as_deref().unwrap_or("?");
    r.entry(&["command", program], &args.join(" "));
    match program {
        "chdev" => {
            for (key, value) in options(&args, "-a").filter_map(|pair| pair.split_once('=')) {
                r.entry(&["aix", "chdev", device, key], value);
            }
        }
        "rmdev" | "cfgmgr" => r.entry(&["aix", program, device], args.first().unwrap_or(&"")),
        "no" | "vmo" | "ioo" | "schedo" => {
            for (key, value) in options(&args, "-o").filter_map(|pair| pair.split_once('=')) {
                r.entry(&["aix", program, key], value);
            }
        }
        "ethtool" => {
            let table = match args.first() {
                Some(&"-G" | &"--set-ring") => "ring",
                Some(&"-K" | &"--offload" | &"--features") => "offload",
                Some(&"-C" | &"--coalesce") => "coalesce",
                Some(&"-L" | &"--set-channels") => "channels",
                Some(&"-A" | &"--pause") => "pause",
                _ => return Taken::Read,
            };
            for pair in args.get(2..).unwrap_or_default().chunks_exact(2) {
                r.entry(&["linux", "ethtool", device, table, pair[0]], pair[1]);
            }
        }
        "ppc64_cpu" => {
            for (key, value) in args.iter().filter_map(|a| a.trim_start_matches('-').split_once('=')) {
                r.entry(&["power", key], value);
            }
        }
        "mmchconfig" => {
            for (key, value) in args
                .iter()
                .filter(|a| !a.starts_with('-'))
                .flat_map(|a| a.split(','))
                .filter_map(|p| p.split_once('='))
            {
                r.entry(&["scale", "mmchconfig", key], value);
            }
        }
        "sysctl" => {
            for (key, value) in args.iter().filter_map(|pair| pair.split_once('=')) {
                r.entry(&["linux", "sysctl", key], value);
            }
        }
        "gssgenvdisks" | "fio" => {
            let mut rest = args.iter().peekable();
            while let Some(option) = rest.next() {
                let Some(name) = option.strip_prefix("--") else { continue };
                match name.split_once('=') {
                    Some((key, value)) => r.entry(&[program, key], value),
                    None => match rest.next_if(|value| !value.starts_with('-')) {
                        Some(value) => r.entry(&[program, name], value),
                        None => r.entry(&[program, name], "yes"),
                    },
                }
            }
        }
        "nvme" if args.contains(&"8") || args.contains(&"0x08") => {
            r.entry(&["nvme", "coalescing", args[0]], options(&args, "-v").next().unwrap_or("?"));
        }
        _ => {}
    }
    Taken::Read
}

/// What follows each `name` among the arguments.
fn options<'a>(args: &'a [&'a str], name: &'a str) -> impl Iterator<Item = &'a str> {
    args.windows(2).filter(move |pair| pair[0] == name).map(|pair| pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_with_any_prompt_and_no_sentences() {
        for (line, words) in [
            ("[root@n1]> # lsattr -El ent3", "lsattr -El ent3"),
            ("# lsdev | grep fcs", "lsdev"),
            ("    #rmdev -Rl fcs0", "rmdev -Rl fcs0"),
            ("root@n1:~# mmlsconfig", "mmlsconfig"),
            ("/usr/lpp/mmfs/samples/perf/gpfsperf create seq /f -r 1m &", "gpfsperf create seq /f -r 1m"),
            ("nvme get-feature /dev/nvme0 -f 8", "nvme get-feature /dev/nvme0 -f 8"),
            ("no -a output", "no -a output"),
        ] {
            assert_eq!(command(line).map(|w| w.join(" ")).as_deref(), Some(words), "{line}");
        }
        for line in
            ["no value was changed in this test", "ethtool is a program for cards", "# en3", "cat sat", ""]
        {
            assert_eq!(command(line), None, "{line}");
        }
        assert_eq!(
            subject(&command("# lsattr -l fcs0 -a num_io_queues -R").unwrap()).as_deref(),
            Some("fcs0")
        );
        assert_eq!(subject(&command("# rmdev -Rl fcs0").unwrap()).as_deref(), Some("fcs0"));
        assert_eq!(
            (device_heading("  # ent3").as_deref(), device_heading("# a comment")),
            (Some("ent3"), None)
        );
    }
}
