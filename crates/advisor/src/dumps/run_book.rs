//! Run books: the ordered commands for what cannot be applied from here, with checks before and after and what is disrupted.
//! Text for a person: nothing here runs anything. `DEVICE` and `VALUE` stand where a finding does not say them.

use serde::Serialize;

use super::{judge::Verdict, split::Document, view::View};

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// What it is for.
    pub what: &'static str,
    /// The command.
    pub command: String,
}

/// A run book, filled in for a finding.
#[derive(Clone, Debug, Serialize)]
pub struct RunBook {
    /// Its name.
    pub name: &'static str,
    /// What stops while it is gone through.
    pub disrupts: String,
    /// In order.
    pub steps: Vec<Step>,
}

struct Template {
    name: &'static str,
    disrupts: &'static str,
    /// Where the document has the device.
    device: &'static str,
    /// Which word of that path it is; 0 for none.
    word: usize,
    default: &'static str,
    steps: &'static [(&'static str, &'static str)],
}

const TEMPLATES: [Template; 10] = [
    Template {
        name: "aix-fc-queues",
        disrupts: "all disks and paths below DEVICE while it is taken away: with one path their file systems must be unmounted; with several, do one adapter after the other",
        device: "aix/device/*/num_io_queues",
        word: 2,
        default: "fcs0",
        steps: &[
            (
                "before: values now, and what is below",
                "lsattr -El DEVICE -a num_io_queues -a io_dma; lsdev -p DEVICE",
            ),
            ("before: the disks have another path", "lspath | grep -v Enabled"),
            ("before: the range", "lsattr -R -l DEVICE -a num_io_queues"),
            ("take the paths away", "rmdev -Rl DEVICE"),
            ("change queues and memory in one command", "chdev -l DEVICE -a num_io_queues=16 -a io_dma=256"),
            ("configure it again", "cfgmgr -l DEVICE"),
            ("after: the values", "lsattr -El DEVICE -a num_io_queues -a io_dma"),
            ("after: no single queue was logged", "errpt | grep 29FA8C20"),
            ("after: the paths are back", "lspath | grep -v Enabled"),
            (
                "back",
                "rmdev -Rl DEVICE; chdev -l DEVICE -a num_io_queues=OLD -a io_dma=OLD; cfgmgr -l DEVICE",
            ),
        ],
    },
    Template {
        name: "aix-adapter",
        disrupts: "the interface of DEVICE is away for some seconds: its connections stand still, and long ones may break",
        device: "aix/device/*/jumbo_size",
        word: 2,
        default: "ent0",
        steps: &[
            ("before: values now", "lsattr -El DEVICE"),
            ("before: another way to this machine", "netstat -rn"),
            ("take the interface away", "ifconfig INTERFACE detach"),
            ("change the adapter", "chdev -l DEVICE -a ATTRIBUTE=VALUE"),
            ("configure it again", "mkdev -l INTERFACE; cfgmgr -l DEVICE"),
            ("after: the values", "lsattr -El DEVICE -a ATTRIBUTE; lsattr -El INTERFACE -a mtu"),
            ("after: a whole packet gets through", "ping -c 3 -s 8972 -D PEER"),
        ],
    },
    Template {
        name: "aix-no",
        disrupts: "nothing; connections that stand keep the old value where the type is C",
        device: "aix/no/*",
        word: 0,
        default: "no",
        steps: &[
            ("before: the value now and at boot", "no -L NAME"),
            ("change it now and at the next boot", "no -p -o NAME=VALUE"),
            ("after", "no -L NAME"),
            ("back", "no -p -d NAME"),
        ],
    },
    Template {
        name: "aix-vmo",
        disrupts: "nothing; the pager takes it at once",
        device: "aix/vmo/*",
        word: 0,
        default: "vmo",
        steps: &[
            ("before: the value now and at boot", "vmo -L NAME"),
            ("change it now and at the next boot", "vmo -p -o NAME=VALUE"),
            ("after", "vmo -L NAME"),
            ("back", "vmo -p -d NAME"),
        ],
    },
    Template {
        name: "switch-port",
        disrupts: "the link goes down for some seconds when speed or mtu change; an LPAR on the port must be power-cycled to take a new speed",
        device: "switch/port/*/speed",
        word: 2,
        default: "ethernet 1/1",
        steps: &[
            ("before", "show interfaces DEVICE; show running-config interface DEVICE"),
            ("enter", "enable; configure terminal"),
            (
                "pause both ways",
                "interface DEVICE flowcontrol receive on force; interface DEVICE flowcontrol send on force",
            ),
            ("frame size", "interface DEVICE mtu 9000 force"),
            ("speed", "interface DEVICE speed 56000 force"),
            ("keep it", "configuration write"),
            (
                "after: speed, mtu, pause as set; no errors counted",
                "show interfaces DEVICE; show interfaces DEVICE counters",
            ),
            (
                "back",
                "no interface DEVICE speed; no interface DEVICE mtu; no interface DEVICE flowcontrol receive",
            ),
        ],
    },
    Template {
        name: "switch-hash",
        disrupts: "connections over a LAG may change their link; packets may arrive out of order for a moment",
        device: "switch/load-balance",
        word: 0,
        default: "the switch",
        steps: &[
            ("before", "show interfaces port-channel load-balance"),
            ("change", "port-channel load-balance ethernet source-destination-ip source-destination-port"),
            ("keep it", "configuration write"),
            ("after: the members' counters grow alike", "show interfaces port-channel counters"),
        ],
    },
    Template {
        name: "hmc-optmem",
        disrupts: "partitions are slower while memory and processors move; they go on running",
        device: "numa/available",
        word: 0,
        default: "SYSTEM",
        steps: &[
            (
                "before: the score now, and what it could be",
                "lsmemopt -m SYSTEM -o currscore; lsmemopt -m SYSTEM -o calcscore",
            ),
            ("before: in the partition", "numactl -H"),
            ("move this partition first", "optmem -m SYSTEM -o start -t affinity -p LPAR"),
            ("watch it", "lsmemopt -m SYSTEM"),
            ("after: nodes alike, near their adapters", "numactl -H"),
            ("stop it if it costs too much", "optmem -m SYSTEM -o stop"),
        ],
    },
    Template {
        name: "asmi-hddw",
        disrupts: "the managed system must be powered off and on; more memory is reserved by the hypervisor",
        device: "dma/*/rc",
        word: 0,
        default: "the slot",
        steps: &[
            ("before", "dmesg | grep create-pe-dma-window"),
            ("in ASMI", "System Configuration > I/O Adapter Enlarged Capacity: enable, with enough slots"),
            (
                "power the system off and on",
                "chsysstate -r sys -m SYSTEM -o off; chsysstate -r sys -m SYSTEM -o on",
            ),
            ("after: returned 0, window as large as the memory", "dmesg | grep create-pe-dma-window"),
        ],
    },
    Template {
        name: "scale-setting",
        disrupts: "the daemon of each node must start again: its mounts are away meanwhile; do one node after the other, servers of one pair never together",
        device: "scale/config/*",
        word: 0,
        default: "setting",
        steps: &[
            ("before: the value now", "mmdiag --config | grep -i NAME; mmlsconfig NAME"),
            ("before: the other nodes are well", "mmgetstate -a; mmhealth cluster show"),
            ("change it for the next start", "mmchconfig NAME=VALUE -N NODECLASS"),
            ("start one node again", "mmshutdown -N NODE; mmstartup -N NODE; mmgetstate -N NODE"),
            ("after: marked with ! and of the new value", "mmdiag --config | grep -i NAME"),
            ("back", "mmchconfig NAME=DEFAULT -N NODECLASS"),
        ],
    },
    Template {
        name: "scale-space",
        disrupts: "nothing that runs; what is deleted is gone",
        device: "df/*/percent",
        word: 1,
        default: "FS",
        steps: &[
            ("before: pools and inodes", "mmdf DEVICE"),
            ("who has it", "mmrepquota -j DEVICE; mmlssnapshot DEVICE"),
            (
                "delete what is not needed, or add disks",
                "mmdelsnapshot DEVICE SNAPSHOT; mmadddisk DEVICE -F STANZA",
            ),
            ("after", "mmdf DEVICE"),
        ],
    },
];

/// The run books that a document's verdicts call for, each once.
pub fn run_books(doc: &Document, verdicts: &[Verdict]) -> Vec<RunBook> {
    let view = View::new(doc);
    let called = |name: &str| verdicts.iter().find(|v| !v.judgement.good && v.run_book == Some(name));
    TEMPLATES.iter().filter_map(|template| filled(template, called(template.name)?, &view)).collect()
}

/// Disks as Linux names them: what stands on one is no file system of Storage Scale.
const DISKS: [&str; 7] = ["sd", "nvme", "vd", "xvd", "md", "mapper", "dm-"];

/// Nothing where the book is not about what was found.
fn filled(template: &Template, verdict: &Verdict, view: &View<'_>) -> Option<RunBook> {
    // The device of the evidence, else the first one that the document has.
    let hits = view.all(template.device);
    let lines = &verdict.judgement.evidence;
    let hit =
        lines.iter().find_map(|(line, _)| hits.iter().find(|h| h.line() == *line)).or_else(|| hits.first());
    let device = hit.filter(|_| template.word > 0).map_or(template.default, |hit| hit.word(template.word));
    if template.name == "scale-space" && DISKS.iter().any(|disk| device.starts_with(disk)) {
        return None;
    }
    let device = device.strip_prefix("ethernet ").map_or_else(|| device.to_owned(), ports);
    // What is to be changed: the name before the value that is judged.
    let names = lines.iter().filter_map(|(_, text)| text.split_once(" = ")?.0.rsplit(' ').next());
    let known = |name: &&str| template.name != "scale-setting" || super::import::knows(name);
    let name = names.clone().find(known).unwrap_or("NAME");
    let fill = |text: &str| {
        let text = text.replace("INTERFACE", &device.replacen("ent", "en", 1)).replace("DEVICE", &device);
        // Whole words only: NODENAME is no NAME.
        text.split(' ')
            .map(|word| match word.strip_prefix("NAME") {
                Some(rest) if rest.is_empty() || rest.starts_with(['=', ';']) => format!("{name}{rest}"),
                _ => word.replace("ATTRIBUTE", name),
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    let steps = template.steps.iter().map(|(what, command)| Step { what, command: fill(command) }).collect();
    Some(RunBook { name: template.name, disrupts: fill(template.disrupts), steps })
}

/// Ports as a switch names them, `1/1` or `1/1-1/4`, of a path, in which all is divided by dashes.
fn ports(written: &str) -> String {
    let mut numbers = written.split('-');
    let mut name = "ethernet".to_owned();
    for divided in [' ', '/', '-', '/'] {
        let Some(number) = numbers.next() else { break };
        name.push(divided);
        name.push_str(number);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{super::judge::ROWS, *};

    #[test]
    fn ports_have_their_slashes_again() {
        for (path, name) in
            [("1-1", "1/1"), ("1-n", "1/n"), ("1-1-18", "1/1-18"), ("1-1-1-4", "1/1-1/4"), ("mgmt0", "mgmt0")]
        {
            assert_eq!(ports(path), format!("ethernet {name}"));
        }
    }

    #[test]
    fn every_run_book_is_named_by_a_rule_and_the_other_way_round() {
        let named = |name: &str| ROWS.iter().any(|row| row.run_book.as_deref() == Some(name));
        for template in &TEMPLATES {
            let first = template.steps.first().map_or("", |(what, _)| *what);
            assert!(first.starts_with("before") && !template.disrupts.is_empty(), "{}", template.name);
            assert!(template.steps.iter().any(|(what, _)| what.starts_with("after")), "{}", template.name);
            assert!(named(template.name), "no rule calls {}", template.name);
        }
        for name in ROWS.iter().filter_map(|row| row.run_book.as_deref()) {
            assert!(TEMPLATES.iter().any(|t| t.name == name), "{name}");
        }
    }
}
