//! A job file of fio as a plan: each section is a series over the devices that are named. What it would touch does not come from
//! the file but from the command line, and what our engine does not know is refused with its line: nothing else of a job file
//! reaches fio, so that it can neither run a program nor write what was not named.

use std::fmt::Write;

use super::{Plan, PlanError, read::SECONDS_MAX};
use crate::engine::EngineKind;

/// Seconds of a cell where the file names no runtime.
const SECONDS: f64 = 60.0;
/// What our engine sets by itself, or what only names things.
const OURS: [&str; 12] = [
    "filename",
    "directory",
    "name",
    "description",
    "time_based",
    "group_reporting",
    "norandommap",
    "refill_buffers",
    "stonewall",
    "wait_for_previous",
    "new_group",
    "randrepeat",
];

#[derive(Clone)]
struct Setting {
    line: usize,
    key: String,
    value: String,
}

impl Plan {
    /// Reads one. `origin` names it in errors.
    pub fn of_fio(origin: &str, text: &str, short: bool) -> Result<Plan, PlanError> {
        let fail = |line: usize, key: &str, why: String| {
            Err(PlanError { origin: origin.to_owned(), line, key: key.to_owned(), why })
        };
        // A section [global] is for the jobs below it, as in fio.
        let mut global: Vec<Setting> = Vec::new();
        let mut sections: Vec<(String, Vec<Setting>)> = Vec::new();
        let mut in_global = false;
        for (n, whole) in text.lines().enumerate() {
            // As in fio, a comment may stand behind an option.
            let (line, words) = (n + 1, whole.split(['#', ';']).next().unwrap_or_default().trim());
            if words.is_empty() {
                continue;
            }
            if let Some(name) = words.strip_prefix('[') {
                let Some(name) = name.strip_suffix(']') else {
                    return fail(line, words, "a section is written [NAME]".into());
                };
                in_global = name == "global";
                if !in_global {
                    sections.push((name.to_owned(), global.clone()));
                }
                continue;
            }
            let (key, value) = words.split_once('=').unwrap_or((words, "1"));
            let (key, value) = (known(key.trim()), value.trim().to_owned());
            let list = match sections.last_mut() {
                _ if in_global => &mut global,
                Some((_, list)) => list,
                None => {
                    return fail(line, key, "an option stands below [global] or the [NAME] of a job".into());
                }
            };
            list.push(Setting { line, key: key.to_owned(), value });
        }
        if sections.is_empty() {
            return fail(1, "", "a job file of fio has a section [NAME] for each job".into());
        }
        let (mut plan, mut seconds) = (String::new(), None);
        for (n, (name, own)) in sections.iter().enumerate() {
            // The last of several counts, as in fio; what is not named is buffered there.
            let mut set = std::collections::BTreeMap::from([("direct".to_owned(), "false".to_owned())]);
            let mut runtime = (1, SECONDS);
            for Setting { line, key, value } in own {
                if OURS.contains(&key.as_str()) {
                    continue;
                }
                if key == "runtime" {
                    match self::seconds(value) {
                        Some(time) if (0.1..=SECONDS_MAX).contains(&time) => runtime = (*line, time),
                        _ => {
                            let why = format!("{value:?} is no time up to a day: write 60, 60s, 500ms or 2m");
                            return fail(*line, key, why);
                        }
                    }
                    continue;
                }
                let value = match (key.as_str(), value.as_str()) {
                    ("direct", "1") => "true",
                    ("direct", "0") => "false",
                    (_, value) => value,
                };
                if let Err(why) = EngineKind::Fio.check(key, value) {
                    return fail(*line, key, why);
                }
                set.insert(key.clone(), value.to_owned());
            }
            if *seconds.get_or_insert(runtime.1) != runtime.1 {
                let why =
                    format!("the job {name} lasts another time than those before; one file, one runtime");
                return fail(runtime.0, "runtime", why);
            }
            if !set.contains_key("rw") {
                return fail(1, "rw", format!("the job {name} has no rw"));
            }
            let set: Vec<String> =
                set.iter().map(|(key, value)| format!("{key} = {}", quoted(value))).collect();
            // Two sections may have one name.
            let name = if sections.iter().filter(|(other, _)| other == name).count() > 1 {
                format!("{name} {}", n + 1)
            } else {
                name.clone()
            };
            let _ = write!(
                plan,
                "\n[[series]]\nname = {}\nengine = 'fio'\nfigure = 'operations'\nset = {{ {} }}\n",
                quoted(&name),
                set.join(", ")
            );
        }
        let seconds = seconds.unwrap_or(SECONDS);
        let head = format!(
            "name = {}\ntitle = {}\nsource = 'a job file of fio'\nabout = 'Each job is a series, one after the other, over the \
             devices that are named.'\nstep = 'devices'\nsteps = '1..n'\nseconds = {seconds:?}\n",
            quoted(&plan_name(origin)),
            quoted(&format!("The jobs of {origin}"))
        );
        let text = format!("{head}{plan}\n[short]\nseconds = 1.0\nsteps = [1, 2]\n");
        Plan::parse(origin, &text, short)
    }
}

/// A plan's name from the file's: `fio-` and what a name may hold of it.
fn plan_name(origin: &str) -> String {
    let stem = std::path::Path::new(origin).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let good = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    "fio-".chars().chain(stem.chars().map(good)).take(64).collect()
}

/// The name under which our engine knows an option.
fn known(key: &str) -> &str {
    match key {
        "readwrite" => "rw",
        "blocksize" => "bs",
        other => other,
    }
}

/// fio's times: seconds without a unit.
fn seconds(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit)
}

/// A text as TOML has it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: &str = "; the source's shape\n[global]\ndirect=1\nioengine=libaio\nbs=4k\nruntime=120\ntime_based\n\
                        filename=/dev/sda\n\n[reads]\nrw=randread\niodepth=64\n[writes]\nreadwrite=randwrite\nbs=64k\n";

    #[test]
    fn each_job_is_a_series_over_what_is_named() {
        let plan = Plan::of_fio("x.fio", JOBS, false).unwrap();
        assert_eq!((plan.series.len(), plan.seconds), (2, 120.0));
        let set = |n: usize, key: &str| plan.series[n].set.get(key).map(String::as_str);
        assert_eq!(
            (set(0, "rw"), set(0, "bs"), set(0, "iodepth")),
            (Some("randread"), Some("4k"), Some("64"))
        );
        assert_eq!(
            (set(1, "rw"), set(1, "bs"), set(1, "direct")),
            (Some("randwrite"), Some("64k"), Some("true"))
        );
        assert_eq!(set(0, "filename"), None);
        assert!(
            plan.targets.devices.is_empty() && plan.targets.writable.is_empty(),
            "only what is named is touched"
        );
        assert_eq!(Plan::of_fio("x.fio", JOBS, true).unwrap().seconds, 1.0);
    }

    #[test]
    fn what_is_not_known_is_named_with_its_line() {
        for (from, to, line, said) in [
            ("iodepth=64", "exec_prerun=rm -rf /", 12, "exec_prerun"),
            ("ioengine=libaio", "ioengine=external:/tmp/x.so", 4, "io_uring"),
            ("runtime=120", "runtime=soon", 6, "no time"),
            ("[reads]", "[reads", 10, "[NAME]"),
            ("rw=randread\n", "", 1, "no rw"),
            ("runtime=120", "runtime=0", 6, "no time"),
            ("rw=randread", "rw=randread\nruntime=5", 6, "another time"),
            ("[global]", "", 3, "[global]"),
        ] {
            let error = Plan::of_fio("x.fio", &JOBS.replacen(from, to, 1), false).unwrap_err();
            assert!(error.line == line && error.to_string().contains(said), "{to}: {error}");
        }
        assert!(Plan::of_fio("x.fio", "", false).is_err());
        // Names are data, whatever is in them.
        let odd = JOBS.replace("[writes]", "[reads]").replace("[reads]", "[a\"]\\]");
        assert_eq!(Plan::of_fio("x.fio", &odd, false).unwrap().series[1].name, "a\"]\\ 2");
    }

    #[test]
    fn a_file_is_read_as_fio_reads_it() {
        let text = "[a]\nrw = read ; in order\n[global]\nbs=1m # large\n[b]\nrw=write\n";
        let plan = Plan::of_fio("/x/My jobs.fio", text, false).unwrap();
        assert_eq!(plan.name, "fio-my-jobs");
        let set = |n: usize, key: &str| plan.series[n].set.get(key).map(String::as_str);
        assert_eq!((set(0, "bs"), set(1, "bs")), (None, Some("1m")), "[global] is for what is below it");
        assert_eq!(set(0, "direct"), Some("false"), "fio's own default");
    }

    #[test]
    fn changed_job_files_never_panic() {
        crate::mutate::mutated(&[JOBS.into()], 3_000, |bytes| {
            let _ = Plan::of_fio("x", &String::from_utf8_lossy(bytes), false);
        });
    }
}
