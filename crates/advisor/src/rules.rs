//! The rules. Each is a plain function of facts and context that gives findings with their evidence.
//! Thresholds without a source are own choices: they stand in [`Context`] and can be changed.

use std::time::Duration;

use base::{ByteSize, tunables::Tunables, units::human_size};
use serde::{Deserialize, Serialize};

use crate::host::{Bond, BondMode, HostFacts, TcpBuffers};

/// A page of a FUSE request, in bytes.
const FUSE_PAGE_BYTES: u64 = 4096;
/// Memory of a cached inode, by Storage Scale's rule.
const FILE_BYTES: u64 = 3 << 10;

/// What rules need to know beside the host.
#[derive(Clone, Debug)]
pub struct Context {
    /// The node's tunables.
    pub tunables: Tunables,
    /// The block size of the file system.
    pub block_size: ByteSize,
    /// Round-trip time between nodes under load.
    pub round_trip: Duration,
    /// Receive and send buffer that a program asks for itself (SO_RCVBUF, SO_SNDBUF); none leaves them to
    /// the kernel.
    pub socket_buffer: Option<ByteSize>,
    /// The share of the memory above which the memory formula is a warning; above all of it, it is critical.
    pub memory_share_max: f64,
    /// Larger FUSE requests bring nothing more.
    pub fuse_request_useful_max: ByteSize,
}

impl Default for Context {
    fn default() -> Context {
        Context {
            tunables: Tunables::default(),
            block_size: ByteSize(4 << 20),
            round_trip: Duration::from_micros(500),
            socket_buffer: None,
            memory_share_max: 0.8,
            fuse_request_useful_max: ByteSize(4 << 20),
        }
    }
}

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something has no effect or could be better.
    Note,
    /// Throughput is lost.
    Warning,
    /// It will fail.
    Critical,
}

/// What a rule found on a host.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// When the rule applies.
    pub trigger: &'static str,
    /// The facts that made it apply here.
    pub evidence: Vec<String>,
    /// What to do and why.
    pub advice: String,
    /// The command that does it, to be run by hand.
    pub command: Option<String>,
}

/// One rule.
pub struct Rule {
    /// Its number in the catalogue.
    pub id: &'static str,
    /// When it applies.
    pub trigger: &'static str,
    check: fn(&HostFacts, &Context) -> Vec<Draft>,
}

struct Draft {
    severity: Severity,
    evidence: Vec<String>,
    advice: String,
    command: Option<String>,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "R1",
        trigger: "bond in mode balance-alb with a transmit hash policy set",
        check: inert_policy,
    },
    Rule {
        id: "R2",
        trigger: "bond in mode 802.3ad or balance-xor with policy layer2 or layer2+3, and more than one connection a peer",
        check: policy_without_ports,
    },
    Rule { id: "R3", trigger: "bond in mode balance-rr", check: round_robin },
    Rule {
        id: "R8",
        trigger: "a socket buffer above the kernel's limit, or below bandwidth × round-trip time",
        check: socket_buffers,
    },
    Rule { id: "R17", trigger: "the memory formula of the tunables exceeds the memory", check: memory },
    Rule { id: "F1", trigger: "the largest FUSE request is smaller than a block", check: fuse_pages },
    Rule { id: "F2", trigger: "FUSE over io_uring is switched off", check: fuse_uring },
];

/// Applies every rule; the most severe findings first.
pub fn advise(facts: &HostFacts, context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in RULES {
        findings.extend((rule.check)(facts, context).into_iter().map(|draft| Finding {
            rule: rule.id,
            severity: draft.severity,
            trigger: rule.trigger,
            evidence: draft.evidence,
            advice: draft.advice,
            command: draft.command,
        }));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// What the tunables can take at most: page pool, cached inodes (by Storage Scale's rule), registered I/O
/// memory.
pub fn memory_bytes(tunables: &Tunables) -> u64 {
    tunables
        .pagepool()
        .0
        .saturating_add(FILE_BYTES * u64::from(tunables.max_files_to_cache()))
        .saturating_add(u64::from(tunables.io_dma_mib()) << 20)
}

fn bonds_in<'a>(facts: &'a HostFacts, modes: &'a [BondMode]) -> impl Iterator<Item = (&'a Bond, BondMode)> {
    let bonds = facts.bonds.as_deref().unwrap_or_default().iter();
    bonds.filter_map(|bond| Some((bond, bond.mode?))).filter(|(_, mode)| modes.contains(mode))
}

fn bond_evidence(bond: &Bond, mode: BondMode) -> Vec<String> {
    let mut evidence = vec![format!("{}: mode {} ({})", bond.name, mode.name(), mode.number())];
    if let Some(policy) = &bond.xmit_hash_policy {
        evidence.push(format!("{}: transmit hash policy {policy}", bond.name));
    }
    if !bond.slaves.is_empty() {
        evidence.push(format!("{}: interfaces {}", bond.name, bond.slaves.join(", ")));
    }
    evidence
}

fn inert_policy(facts: &HostFacts, _: &Context) -> Vec<Draft> {
    let bonds = bonds_in(facts, &[BondMode::BalanceAlb]);
    // layer2 is the kernel's default: nobody chose it.
    bonds
        .filter(|(bond, _)| bond.xmit_hash_policy.as_deref().is_some_and(|policy| policy != "layer2"))
        .map(|(bond, mode)| Draft {
            severity: Severity::Note,
            evidence: bond_evidence(bond, mode),
            advice: format!(
                "balance-alb does not use the policy: one peer stays on one interface. Drop the policy, or use \
                 802.3ad with layer3+4 on {} and link aggregation on the switch.",
                bond.name
            ),
            command: None,
        })
        .collect()
}

fn policy_without_ports(facts: &HostFacts, context: &Context) -> Vec<Draft> {
    let connections = context.tunables.max_tcp_conns_per_node_conn();
    if connections == base::tunables::ConnCount::Count(1) {
        return Vec::new();
    }
    bonds_in(facts, &[BondMode::Ieee8023ad, BondMode::BalanceXor])
        .filter(|(bond, _)| bond.slaves.len() != 1)
        .filter(|(bond, _)| matches!(bond.xmit_hash_policy.as_deref(), Some("layer2" | "layer2+3")))
        .map(|(bond, mode)| {
            let mut evidence = bond_evidence(bond, mode);
            evidence.push(format!("maxTcpConnsPerNodeConn = {connections}"));
            Draft {
                severity: Severity::Warning,
                evidence,
                advice: format!(
                    "The policy of {} does not look at ports, so all connections to a peer leave by one interface. \
                     Use layer3+4; the switch needs a hash with ports as well for the way back.",
                    bond.name
                ),
                command: Some(format!("ip link set dev {} type bond xmit_hash_policy layer3+4", bond.name)),
            }
        })
        .collect()
}

fn round_robin(facts: &HostFacts, _: &Context) -> Vec<Draft> {
    bonds_in(facts, &[BondMode::BalanceRr])
        .map(|(bond, mode)| Draft {
            severity: Severity::Warning,
            evidence: bond_evidence(bond, mode),
            advice: format!(
                "Round robin spreads the packets of one connection over all interfaces; they arrive out of order \
                 and TCP takes that for loss. Use 802.3ad with layer3+4 on {} and several connections.",
                bond.name
            ),
            command: None,
        })
        .collect()
}

fn socket_buffers(facts: &HostFacts, context: &Context) -> Vec<Draft> {
    let receive = Direction {
        verb: "receive",
        limit_name: "net.core.rmem_max",
        limit: facts.rmem_max,
        auto_name: "net.ipv4.tcp_rmem",
        auto: facts.tcp_rmem,
    };
    let send = Direction {
        verb: "send",
        limit_name: "net.core.wmem_max",
        limit: facts.wmem_max,
        auto_name: "net.ipv4.tcp_wmem",
        auto: facts.tcp_wmem,
    };
    [receive, send].iter().flat_map(|direction| direction.check(facts, context)).collect()
}

/// The sysctls of one direction.
struct Direction {
    verb: &'static str,
    limit_name: &'static str,
    limit: Option<u64>,
    auto_name: &'static str,
    auto: Option<TcpBuffers>,
}

impl Direction {
    fn check(&self, facts: &HostFacts, context: &Context) -> Vec<Draft> {
        let mut drafts = Vec::new();
        if let (Some(ByteSize(asked)), Some(limit)) = (context.socket_buffer, self.limit)
            && asked > limit
        {
            drafts.push(Draft {
                severity: Severity::Warning,
                evidence: vec![
                    format!("{} buffer asked for: {asked}", self.verb),
                    format!("{} = {limit}", self.limit_name),
                ],
                advice: format!("The kernel silently cuts the buffer to {}. Raise it.", self.limit_name),
                command: Some(format!("sysctl -w {}={asked}", self.limit_name)),
            });
        }
        let Some((nic, speed)) = fastest_nic(facts) else { return drafts };
        // A buffer that a program asks for is cut to the limit; without one the kernel grows it to `auto.max`.
        let largest = match context.socket_buffer {
            Some(ByteSize(asked)) => self.limit.map(|limit| asked.min(limit)),
            None => self.auto.map(|auto| auto.max),
        };
        let in_flight = (f64::from(speed) * 1e6 / 8.0 * context.round_trip.as_secs_f64()) as u64;
        if let Some(largest) = largest
            && largest < in_flight
        {
            let need = in_flight.next_power_of_two();
            let command = match (context.socket_buffer, self.auto) {
                (None, Some(auto)) => {
                    format!("sysctl -w {}='{} {} {need}'", self.auto_name, auto.min, auto.default)
                }
                _ => format!("sysctl -w {}={need}", self.limit_name),
            };
            drafts.push(Draft {
                severity: Severity::Warning,
                evidence: vec![
                    format!("{nic}: {speed} Mbit/s"),
                    format!("{speed} Mbit/s × {:?} = {in_flight} bytes in flight", context.round_trip),
                    format!("largest {} buffer of a connection: {largest} bytes", self.verb),
                ],
                advice: format!("One connection cannot fill {nic} with this {} buffer. Raise it.", self.verb),
                command: Some(command),
            });
        }
        drafts
    }
}

fn fastest_nic(facts: &HostFacts) -> Option<(&str, u32)> {
    // A bond reports the sum of its interfaces, but a connection uses one of them.
    let nics = facts.nics.as_deref()?.iter().filter(|nic| nic.physical);
    nics.filter_map(|nic| Some((nic.name.as_str(), nic.speed_mbps?))).max_by_key(|(_, speed)| *speed)
}

fn memory(facts: &HostFacts, context: &Context) -> Vec<Draft> {
    let Some(have) = facts.memory_bytes else { return Vec::new() };
    let tunables = &context.tunables;
    let need = memory_bytes(tunables);
    let severity = if need > have {
        Severity::Critical
    } else if need as f64 > have as f64 * context.memory_share_max {
        Severity::Warning
    } else {
        return Vec::new();
    };
    let room = (have as f64 * context.memory_share_max) as u64;
    let others = need - tunables.pagepool().0;
    let fitting = ByteSize(room.saturating_sub(others) >> 20 << 20);
    // Below its least value the page pool is not what has to shrink.
    let fits = tunables.clone().set("pagepool", &fitting.to_string()).is_ok();
    vec![Draft {
        severity,
        evidence: vec![
            format!("memory: {}", human_size(have)),
            format!("pagepool = {}", tunables.pagepool()),
            format!("maxFilesToCache = {} × 3 KiB", tunables.max_files_to_cache()),
            format!("io_dma_mib = {}", tunables.io_dma_mib()),
            format!("together: {}", human_size(need)),
        ],
        advice:
            "The tunables can take more memory than this host has to give. Lower pagepool or maxFilesToCache."
                .to_owned(),
        command: fits.then(|| format!("ropewalk config set pagepool={fitting}")),
    }]
}

fn fuse_pages(facts: &HostFacts, context: &Context) -> Vec<Draft> {
    let Some(limit) = facts.fuse_max_pages_limit else { return Vec::new() };
    let wanted = context.block_size.0.min(context.fuse_request_useful_max.0).div_ceil(FUSE_PAGE_BYTES);
    if limit >= wanted {
        return Vec::new();
    }
    let largest = ByteSize(limit.saturating_mul(FUSE_PAGE_BYTES));
    vec![Draft {
        severity: Severity::Warning,
        evidence: vec![
            format!("fs.fuse.max_pages_limit = {limit} (requests of at most {largest})"),
            format!("block size {}", context.block_size),
        ],
        advice: format!(
            "A block of {} is cut into several requests. Raise the limit before mounting.",
            context.block_size
        ),
        command: Some(format!("sysctl -w fs.fuse.max_pages_limit={wanted}")),
    }]
}

fn fuse_uring(facts: &HostFacts, _: &Context) -> Vec<Draft> {
    if facts.fuse_enable_uring != Some(false) {
        return Vec::new();
    }
    vec![Draft {
        severity: Severity::Note,
        evidence: vec!["/sys/module/fuse/parameters/enable_uring = N".to_owned()],
        advice:
            "This kernel has FUSE over io_uring, switched off: a mount cannot use it. Switch it on before \
                 mounting; `options fuse enable_uring=1` in /etc/modprobe.d keeps it."
                .to_owned(),
        command: Some("echo Y > /sys/module/fuse/parameters/enable_uring".to_owned()),
    }]
}
