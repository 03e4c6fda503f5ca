//! What a host says about itself. Every fact is optional: `None` is "not to be seen", never "no".

use serde::{Deserialize, Serialize};

/// The facts of one host.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: Option<String>,
    /// CPUs online.
    pub cpus: Option<u32>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory nodes, by number.
    pub numa_nodes: Option<Vec<NumaNode>>,
    /// Network interfaces but loopback, by name.
    pub nics: Option<Vec<Nic>>,
    /// Bonds, by name; empty where the bonding driver has none.
    pub bonds: Option<Vec<Bond>>,
    /// `net.ipv4.fib_multipath_hash_policy`: 0 addresses only, 1 addresses and ports, 2 and 3 see the kernel's
    /// documentation.
    pub fib_multipath_hash_policy: Option<u32>,
    /// `net.core.rmem_max`: the largest receive buffer a program may ask for, in bytes.
    pub rmem_max: Option<u64>,
    /// `net.core.wmem_max`: the largest send buffer a program may ask for, in bytes.
    pub wmem_max: Option<u64>,
    /// `net.ipv4.tcp_rmem`: receive buffers the kernel sizes itself.
    pub tcp_rmem: Option<TcpBuffers>,
    /// `net.ipv4.tcp_wmem`: send buffers the kernel sizes itself.
    pub tcp_wmem: Option<TcpBuffers>,
    /// Whether FUSE over io_uring is switched on (`enable_uring` of the module).
    pub fuse_enable_uring: Option<bool>,
    /// `fs.fuse.max_pages_limit`: the largest FUSE request, in pages of 4 KiB.
    pub fuse_max_pages_limit: Option<u64>,
}

/// One memory node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// CPUs in it.
    pub cpus: Option<u32>,
    /// Memory in it, in bytes.
    pub memory_bytes: Option<u64>,
}

/// One network interface.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Link speed in Mbit/s; virtual interfaces mostly have none.
    pub speed_mbps: Option<u32>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// `up`, `down`, `unknown`, ...
    pub state: Option<String>,
    /// Whether a device stands behind it.
    pub physical: bool,
    /// The memory node of its device.
    pub numa_node: Option<u32>,
}

/// The smallest, first and largest buffer of a connection, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "said above")]
pub struct TcpBuffers {
    pub min: u64,
    pub default: u64,
    pub max: u64,
}

/// How a bond spreads packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum BondMode {
    BalanceRr,
    ActiveBackup,
    BalanceXor,
    Broadcast,
    #[serde(rename = "802.3ad")]
    Ieee8023ad,
    BalanceTlb,
    BalanceAlb,
}

impl BondMode {
    /// Every mode with its number, its name and what `/proc/net/bonding` calls it.
    pub(crate) const ALL: [(BondMode, u8, &'static str, &'static str); 7] = [
        (BondMode::BalanceRr, 0, "balance-rr", "load balancing (round-robin)"),
        (BondMode::ActiveBackup, 1, "active-backup", "fault-tolerance (active-backup)"),
        (BondMode::BalanceXor, 2, "balance-xor", "load balancing (xor)"),
        (BondMode::Broadcast, 3, "broadcast", "fault-tolerance (broadcast)"),
        (BondMode::Ieee8023ad, 4, "802.3ad", "IEEE 802.3ad Dynamic link aggregation"),
        (BondMode::BalanceTlb, 5, "balance-tlb", "transmit load balancing"),
        (BondMode::BalanceAlb, 6, "balance-alb", "adaptive load balancing"),
    ];

    /// The kernel's number.
    pub fn number(self) -> u8 {
        BondMode::ALL.iter().find(|m| m.0 == self).map_or(0, |m| m.1)
    }
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        BondMode::ALL.iter().find(|m| m.0 == self).map_or("", |m| m.2)
    }
    /// From sysfs (`802.3ad 4`) or `/proc/net/bonding` (`IEEE 802.3ad Dynamic link aggregation`, perhaps with
    /// a remark behind).
    pub fn parse(text: &str) -> Option<BondMode> {
        let first = text.split_whitespace().next()?;
        BondMode::ALL.iter().find(|m| first == m.2 || text.trim().starts_with(m.3)).map(|m| m.0)
    }
}

/// One bond.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bond {
    /// Its name.
    pub name: String,
    /// How it spreads packets.
    pub mode: Option<BondMode>,
    /// Its hash, such as `layer3+4`; not all modes use it.
    pub xmit_hash_policy: Option<String>,
    /// The interfaces it is made of.
    pub slaves: Vec<String>,
}
