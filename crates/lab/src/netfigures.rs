//! The figures of the transport, each beside the raw figure of the same run: what `ropewalk lab net-figures`
//! prints. Servers and clients are processes of their own, on testbeds in namespaces of their own.
//!
//! Addresses, hash keys and, where a row does not fix them, the number of links, the hash policy and the way
//! the hosts are joined are drawn for each run; the transport is told none of it.

mod figure;
mod links;
mod loopback;
mod process;
mod rails;
mod sizing;
mod transfer;

pub use figure::{Figure, FigureError, Run, Settings};

/// A group of figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Two links of 1 Gbit/s, policy 1: placed, and left to chance.
    Links2,
    /// Four links of 500 Mbit/s, policy 1.
    Links4,
    /// Number of links, policy and join drawn for each run.
    Drawn,
    /// Two subnets; links cut under load, and back.
    Rails,
    /// ECMP by addresses only: connections cannot help.
    Policy0,
    /// Bulk over loopback against iperf3.
    Loopback,
    /// Requests of one byte over loopback against a raw echo.
    Rr,
    /// Payloads pushed by the client against payloads fetched by the server.
    Transfer,
    /// Connections proposed by cluster size.
    Sizing,
}

impl Group {
    /// All of them, in the order in which they run.
    pub const ALL: [Group; 9] = [
        Group::Links2,
        Group::Links4,
        Group::Drawn,
        Group::Rails,
        Group::Policy0,
        Group::Loopback,
        Group::Rr,
        Group::Transfer,
        Group::Sizing,
    ];

    /// As written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Group::Links2 => "links2",
            Group::Links4 => "links4",
            Group::Drawn => "drawn",
            Group::Rails => "rails",
            Group::Policy0 => "policy0",
            Group::Loopback => "loopback",
            Group::Rr => "rr",
            Group::Transfer => "transfer",
            Group::Sizing => "sizing",
        }
    }
}

impl std::str::FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Group, String> {
        let names = || Group::ALL.map(Group::name).join(", ");
        let found = Group::ALL.into_iter().find(|g| g.name() == text);
        found.ok_or_else(|| format!("unknown group {text:?}: {}", names()))
    }
}

/// Measures one group. `tell` is called with what is being done now.
pub fn measure(
    group: Group,
    settings: &Settings,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Figure>, FigureError> {
    match group {
        Group::Links2 => links::fixed("links2", 2, 1_000_000_000, settings, tell),
        Group::Links4 => links::fixed("links4", 4, 500_000_000, settings, tell),
        Group::Drawn => links::drawn(settings, tell),
        Group::Rails => rails::rails(settings, tell),
        Group::Policy0 => links::policy0(settings, tell),
        Group::Loopback => loopback::bulk(settings, tell),
        Group::Rr => loopback::rr(settings, tell),
        Group::Transfer => transfer::transfer(settings, tell),
        Group::Sizing => Ok(sizing::sizing()),
    }
}
