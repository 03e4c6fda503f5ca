//! What is far of a fio load on a machine with several NUMA nodes: its threads, its buffers, or the kernel thread that polls its
//! rings; the rest is on node 0.

use std::fs;

use super::context::EngineError;
use crate::plan::Params;

/// Keys that mean something here and are no option of fio.
pub(super) const KEYS: [&str; 2] = ["far", "polled"];
/// The node where all is that is not far, and the other one.
const NEAR: u32 = 0;
const FAR: u32 = 1;

/// Options of fio for the keys of a cell; none without `far`.
pub(super) fn options(params: &Params) -> Result<Vec<String>, EngineError> {
    of(params, |node| {
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let list = fs::read_to_string(&path).map_err(|e| EngineError::Target(format!("{path}: {e}")))?;
        first(&list).ok_or_else(|| EngineError::Target(format!("{path}: NUMA node {node} has no CPU")))
    })
}

fn of(
    params: &Params,
    first_cpu: impl Fn(u32) -> Result<u32, EngineError>,
) -> Result<Vec<String>, EngineError> {
    let Some(far) = params.get("far") else { return Ok(Vec::new()) };
    let on = |what: &str| if far == what { FAR } else { NEAR };
    let mut all = vec![
        format!("--numa_cpu_nodes={}", on("threads")),
        format!("--numa_mem_policy=bind:{}", on("buffers")),
    ];
    let polled = params.get("polled").is_some_and(|polled| polled == "true");
    if polled {
        all.push("--sqthread_poll=1".into());
        all.push(format!("--sqthread_poll_cpu={}", first_cpu(on("rings"))?));
    } else if far == "rings" {
        return Err(EngineError::Target(
            "rings are far only where a kernel thread polls them: polled = true".into(),
        ));
    }
    Ok(all)
}

/// The first CPU of a list as the kernel writes it: `8-15,24-31`.
fn first(list: &str) -> Option<u32> {
    list.trim().split([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_far_at_a_time() {
        let cell = |far: &str, polled: &str| {
            let params = Params::from([("far".to_owned(), far.to_owned()), ("polled".into(), polled.into())]);
            of(&params, |node| Ok(node * 8 + 2)).map(|all| all.join(" "))
        };
        let near = "--numa_cpu_nodes=0 --numa_mem_policy=bind:0";
        assert_eq!(cell("nothing", "false").unwrap(), near);
        assert_eq!(cell("threads", "false").unwrap(), "--numa_cpu_nodes=1 --numa_mem_policy=bind:0");
        assert_eq!(cell("buffers", "false").unwrap(), "--numa_cpu_nodes=0 --numa_mem_policy=bind:1");
        let polled = |cpu| format!("{near} --sqthread_poll=1 --sqthread_poll_cpu={cpu}");
        assert_eq!(
            (cell("nothing", "true").unwrap(), cell("rings", "true").unwrap()),
            (polled(2), polled(10))
        );
        assert!(cell("rings", "false").unwrap_err().to_string().contains("polled = true"));
        assert!(options(&Params::new()).unwrap().is_empty());
        assert_eq!((first("8-15,24-31\n"), first("3\n"), first("\n")), (Some(8), Some(3), None));
    }
}
