//! The parsers of all kinds of listings.

use super::{
    aix_devices, aix_tables, linux_host, linux_net, linux_nvme, listing::Parser, power, scale_config,
    scale_state, switch,
};

/// Every parser. Where two would begin at a line the first one that finds a value takes it.
pub(super) static PARSERS: std::sync::LazyLock<Vec<Parser>> = std::sync::LazyLock::new(|| {
    let mut all = Vec::new();
    all.extend(scale_config::PARSERS);
    all.extend(scale_state::PARSERS);
    all.extend(aix_tables::PARSERS);
    all.extend(switch::PARSERS);
    all.extend(power::PARSERS);
    all.extend(linux_net::PARSERS);
    all.extend(linux_host::PARSERS);
    all.extend(linux_nvme::PARSERS);
    all.extend(aix_devices::PARSERS);
    all
});
