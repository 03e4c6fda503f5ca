//! fio on devices and files: one job section for each, as a job over several would submit to them from one
//! thread and stall. The command is the source's (FACTS D-04) with JSON output.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    context::{Context, EngineError},
    near_far, nvme,
    process::{Running, command},
};
use crate::{
    cell::{Cell, Figures, Latency},
    plan::{Figure, Params, Step},
    targets::Device,
};

/// Whether such a load writes.
pub fn writes(params: &Params) -> bool {
    params.get("rw").is_some_and(|rw| !matches!(rw.as_str(), "read" | "randread"))
}

/// Runs one cell: over as many devices as the step has, or with as many jobs on all of them.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let devices = chosen(cell, context)?;
    let write = writes(&cell.params);
    if let Some(device) = devices.iter().find(|device| write && !device.writable) {
        let path = device.path.display();
        return Err(EngineError::Target(format!("{path} is not named as writable, and this load writes")));
    }
    let mut changed = nvme::set(&cell.params, devices, context)?;
    let outcome = load(cell, devices, context);
    changed.back()?;
    outcome
}

fn load(cell: &Cell, devices: &[Device], context: &Context<'_>) -> Result<Figures, EngineError> {
    let mut fio = command(None, "fio");
    fio.args(["--output-format=json", "--refill_buffers", "--time_based", "--norandommap"]);
    // Jobs that are processes begin sessions of their own, and outlive a run that is ended.
    if !cell.params.contains_key("thread") {
        fio.arg("--thread");
    }
    if !cell.params.contains_key("direct") {
        fio.arg("--direct=1");
    }
    if cell.of != Step::Devices {
        fio.arg(format!("--numjobs={}", cell.step));
    }
    for (key, value) in &cell.params {
        match key.as_str() {
            "direct" => fio.arg(format!("--direct={}", u8::from(value == "true"))),
            key if nvme::KEYS.contains(&key) || near_far::KEYS.contains(&key) => &mut fio,
            _ => fio.arg(format!("--{key}={value}")),
        };
    }
    fio.args(near_far::options(&cell.params)?);
    fio.arg(format!("--runtime={}ms", (context.seconds * 1000.0) as u64)).arg("--group_reporting");
    // A path with a colon would be a list to fio.
    for (i, device) in devices.iter().enumerate() {
        let path = device.path.display().to_string().replace(':', "\\:");
        fio.arg(format!("--name=job{}", i + 1)).arg(format!("--filename={path}")).arg("--new_group");
    }
    let text = Running::start(fio, "fio", context.seconds * 1.5 + 60.0, context)?.output(context)?;
    let jobs: Vec<String> = devices.iter().map(|device| device.path.display().to_string()).collect();
    figures(&text, &jobs, context.figure)
}

fn chosen<'a>(cell: &Cell, context: &'a Context<'_>) -> Result<&'a [Device], EngineError> {
    let devices = &context.targets.devices;
    if cell.of != Step::Devices {
        let none = || EngineError::Target("no device or file is named".into());
        return if devices.is_empty() { Err(none()) } else { Ok(devices) };
    }
    let (first, last) = (cell.first as usize, (cell.first + cell.step) as usize);
    devices.get(first..last).filter(|list| !list.is_empty()).ok_or_else(|| {
        EngineError::Target(format!("the step needs {} devices and {} are named", last, devices.len()))
    })
}

/// Reads fio's JSON: one entry for each group, which is one device.
fn figures(text: &str, jobs: &[String], figure: Figure) -> Result<Figures, EngineError> {
    let bad = |why: String| EngineError::Output { program: "fio".into(), why };
    // Warnings may stand before the JSON.
    let start = text.find('{').ok_or_else(|| bad("no JSON in it".into()))?;
    let root: Value = serde_json::from_str(&text[start..]).map_err(|e| bad(e.to_string()))?;
    let list = root["jobs"].as_array().ok_or_else(|| bad("no \"jobs\"".into()))?;
    let mut sum = Figures::default();
    let mut parts = BTreeMap::new();
    let mut weighted = [0.0; 4];
    for (i, job) in list.iter().enumerate() {
        if let Some(code) = job["error"].as_i64().filter(|&code| code != 0) {
            let why = std::io::Error::from_raw_os_error(code as i32).to_string();
            return Err(EngineError::Failed { program: "fio".into(), why });
        }
        let mut own = Figures::default();
        for way in ["read", "write"] {
            let number = |key: &str| job[way][key].as_f64().unwrap_or_default();
            let operations = number("iops");
            own.operations += operations;
            own.bytes += number("bw_bytes");
            let clat = &job[way]["clat_ns"];
            let us = |value: &Value| value.as_f64().unwrap_or_default() / 1e3;
            let of = |p: &str| us(&clat["percentile"][p]);
            let latency = [us(&clat["mean"]), of("50.000000"), of("99.000000"), of("99.900000")];
            for (sum, value) in weighted.iter_mut().zip(latency) {
                *sum += value * operations;
            }
            let max = us(&clat["max"]);
            let worst = sum.latency.get_or_insert_default();
            worst.max = worst.max.max(max);
        }
        sum.operations += own.operations;
        sum.bytes += own.bytes;
        if list.len() == jobs.len() {
            parts.insert(jobs[i].clone(), own.value(figure));
        }
    }
    if sum.operations <= 0.0 {
        return Err(bad("no operation was done".into()));
    }
    let [mean, p50, p99, p999] = weighted.map(|value| value / sum.operations);
    let max = sum.latency.unwrap_or_default().max;
    sum.latency = Some(Latency { mean, p50, p99, p999, max });
    sum.parts = parts;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(iops: f64, error: i32) -> String {
        format!(
            "{{\"error\":{error},\"read\":{{\"iops\":{iops},\"bw_bytes\":{},\"clat_ns\":{{\"mean\":2000,\
             \"max\":9000,\"percentile\":{{\"50.000000\":1000}}}}}},\"write\":{{\"iops\":0}}}}",
            iops * 4096.0
        )
    }

    #[test]
    fn changed_output_is_refused_or_means_something() {
        let texts = [
            format!("fio: a warning\n{{\"jobs\":[{},{}]}}", job(100.0, 0), job(300.0, 0)),
            format!("{{\"jobs\":[{}]}}", job(1.0, 5)),
        ];
        crate::mutate::mutated(&texts.map(String::into_bytes), 20_000, |bytes| {
            let names = ["a".to_owned(), "b".to_owned()];
            let _ = super::figures(&String::from_utf8_lossy(bytes), &names, Figure::Bytes);
        });
    }

    #[test]
    fn reads_fio_json_and_refuses_other_text() {
        let text = format!("fio: a warning\n{{\"jobs\":[{},{}]}}", job(100.0, 0), job(300.0, 0));
        let names = ["a".to_owned(), "b".to_owned()];
        let figures = super::figures(&text, &names, Figure::Operations).unwrap();
        assert_eq!((figures.operations, figures.bytes), (400.0, 400.0 * 4096.0));
        assert_eq!((figures.parts["a"], figures.parts["b"]), (100.0, 300.0));
        let latency = figures.latency.unwrap();
        assert_eq!((latency.mean, latency.p50, latency.max), (2.0, 1.0, 9.0));
        let failed = format!("{{\"jobs\":[{}]}}", job(1.0, 5));
        assert!(super::figures(&failed, &names, Figure::Bytes).unwrap_err().to_string().contains("error"));
        for text in ["", "{", "{}", "{\"jobs\":[]}"] {
            assert!(super::figures(text, &names, Figure::Bytes).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_load_that_is_ended() {
        use std::{
            os::unix::ffi::OsStrExt,
            path::Path,
            sync::atomic::{AtomicBool, Ordering},
            time::{Duration, Instant},
        };

        use crate::{cell::Role, observe::LoadGroups, targets::Targets};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("load");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let size = 1 << 20;
        let device = Device {
            path: path.clone(),
            writable: false,
            size,
            kind: String::new(),
            disk: String::new(),
            file: true,
        };
        let set = [("rw", "randread"), ("bs", "4k"), ("direct", "false")];
        let params = set.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (plan, series, role) = ("p".into(), "s".into(), Role::Point);
        let cell = Cell { plan, series, role, of: Step::Workers, step: 2, first: 0, params, repeat: 0 };
        let targets = Targets { devices: vec![device], ..Targets::default() };
        // Processes that were started with the file's name.
        let load = || {
            let named = |pid: &Path| {
                let line = std::fs::read(pid.join("cmdline")).unwrap_or_default();
                line.windows(path.as_os_str().len()).any(|part| part == path.as_os_str().as_bytes())
            };
            let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
            all.filter(|pid| named(pid)).collect::<Vec<_>>()
        };
        let threads = || {
            load()
                .iter()
                .map(|pid| std::fs::read_dir(pid.join("task")).map_or(0, Iterator::count))
                .sum::<usize>()
        };
        let stop = AtomicBool::new(false);
        let until = |what: &str, so: &dyn Fn() -> bool| {
            let end = Instant::now() + Duration::from_secs(60);
            while !so() {
                assert!(Instant::now() < end, "{what}: {:?}", load());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let ended = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                let groups = LoadGroups::default();
                let context = Context {
                    targets: &targets,
                    work: dir.path(),
                    part: 0,
                    seconds: 600.0,
                    figure: Figure::Operations,
                    stop: &stop,
                    groups: &groups,
                    ropewalk: None,
                    commands: Default::default(),
                    began: Default::default(),
                    led: None,
                };
                super::run(&cell, &context)
            });
            until("both jobs are there", &|| threads() >= 3);
            stop.store(true, Ordering::Relaxed);
            run.join().unwrap()
        });
        assert!(matches!(ended, Err(EngineError::Stopped)), "{ended:?}");
        until("nothing is left", &|| load().is_empty());
    }
}
