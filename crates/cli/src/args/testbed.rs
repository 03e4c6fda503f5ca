//! Testbeds: several hosts on one machine.

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Testbed {
    /// Make one; it stays until `down`
    #[command(after_help = "Examples:
  ropewalk lab testbed up --name t1                          h1 and h2, 2 links of 1 Gbit/s, ECMP by ports
  ropewalk lab testbed up --links 4 --rate 500m --policy 0   ECMP by addresses: connections cannot help
  ropewalk lab testbed up --join subnets --hosts 5           each link a network of its own
  ropewalk lab testbed up --name six --hosts 6 --trees       six machines to try a cluster on
Links limit both directions. Addresses and hash keys are drawn anew each time; --seed repeats them.")]
    Up(TestbedUp),
    /// Remove testbeds, what runs in them included; also what a crash left behind
    #[command(after_help = "Examples:
  ropewalk lab testbed down t1
  ropewalk lab testbed down --all      all but those of tests that still run")]
    Down {
        /// Which [default: the only one]
        names: Vec<String>,
        /// All that no running process owns
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
    /// Testbeds with hosts, addresses, and the bytes each link has carried
    #[command(after_help = "Example:\n  ropewalk lab testbed status --json | jq '.[].link_bytes'")]
    Status {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Cut a link, let it lose one direction, or bring it back
    #[command(after_help = "Examples:
  ropewalk lab testbed link h1 2 cut     nothing passes, and no interface shows it
  ropewalk lab testbed link h1 2 down    the interface is taken down
  ropewalk lab testbed link h1 2 mute    what the host sends is lost; `deaf`: what is sent to it
  ropewalk lab testbed link h1 2 up      as it was made")]
    Link {
        /// The testbed [default: the only one]
        #[arg(long)]
        name: Option<String>,
        /// The host
        host: String,
        /// Its link, from 1
        link: u8,
        /// up, down, cut, mute, deaf
        state: lab::testbed::LinkState,
    },
    /// Run a command on a host
    #[command(after_help = "Examples:
  ropewalk lab testbed exec h1 ip route
  ropewalk lab testbed exec --name t1 h2 iperf3 -s")]
    Exec {
        /// The testbed [default: the only one]
        #[arg(long)]
        name: Option<String>,
        /// The host
        host: String,
        /// The command with its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// How the links of a host are used together.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum JoinBy {
    /// One address a host, routes over all links
    Ecmp,
    /// Each link a network with an address of its own
    Subnets,
}

#[derive(Args)]
pub struct TestbedUp {
    /// Letters and digits [default: drawn]
    #[arg(long)]
    pub name: Option<String>,
    /// Hosts, 2 to 32
    #[arg(long, default_value_t = 2)]
    pub hosts: u8,
    /// Links of each host, 1 to 8
    #[arg(long, default_value_t = 2)]
    pub links: u8,
    /// Rate of each link in each direction, bits a second, decimal: 500m, 1g
    #[arg(long, default_value = "1g")]
    pub rate: lab::testbed::BitRate,
    /// How the links of a host are used together
    #[arg(long, value_enum, default_value_t = JoinBy::Ecmp)]
    pub join: JoinBy,
    /// ECMP hash policy: 0 addresses only, 1 addresses and ports
    #[arg(long, default_value_t = 1)]
    pub policy: u8,
    /// Put a router (a switch for each subnet) between the hosts, as more than two have anyway
    #[arg(long)]
    pub routed: bool,
    /// Give each host a /var/lib, a /mnt and a name of its own, so that a cluster of several machines can be tried: each has
    /// its /var/lib/ropewalk, and sees its own mounts only
    #[arg(long)]
    pub trees: bool,
    /// Draw addresses and hash keys from this number, to repeat a testbed
    #[arg(long)]
    pub seed: Option<u64>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
