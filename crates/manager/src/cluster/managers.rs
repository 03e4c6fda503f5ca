//! The managers that there are, where there can be several: their names and addresses, in the map, by which everybody finds the
//! active one. Which one that is does not stand here: etcd says so.

use wire::{map::ManagerEntry, mgr::MgrError};

use super::{
    Cluster, Step, StoreOp,
    nodes::{addr_texts, check_addrs, check_word},
};
use crate::keys::{self, ManagerRecord};

/// Most managers of a cluster: every process asks them one after the other for the active one.
const MANAGERS_MAX: usize = 7;

fn no<T>(text: String) -> Result<T, MgrError> {
    Err(MgrError::Config(text))
}

impl Cluster {
    /// One more manager, or one at other addresses.
    pub(super) fn set_manager(&mut self, entry: &ManagerEntry, step: &mut Step) -> Result<(), MgrError> {
        check_word("manager", &entry.name)?;
        let entry = ManagerEntry { name: entry.name.clone(), addrs: addr_texts(&check_addrs(&entry.addrs)?) };
        if self.map.managers.contains(&entry) {
            return Ok(());
        }
        let others = || self.map.managers.iter().filter(|other| other.name != entry.name);
        if let Some(other) = others().find(|other| other.addrs.iter().any(|addr| entry.addrs.contains(addr)))
        {
            return no(format!(
                "{} is the address of manager {}; give each manager addresses of its own",
                entry.addrs.join(", "),
                other.name
            ));
        }
        if others().count() >= MANAGERS_MAX {
            return no(format!(
                "there are {MANAGERS_MAX} managers already; remove one that is not used any more"
            ));
        }
        step.put(keys::manager_key(&entry.name), &ManagerRecord { addrs: entry.addrs.clone() });
        step.notes.push(format!("manager {} is at {}", entry.name, entry.addrs.join(", ")));
        self.map.managers.retain(|other| other.name != entry.name);
        let at = self.map.managers.partition_point(|other| other.name < entry.name);
        self.map.managers.insert(at, entry);
        self.bump();
        Ok(())
    }

    /// One is none any more. Asking again is harmless.
    pub(super) fn remove_manager(&mut self, name: &str, step: &mut Step) -> Result<(), MgrError> {
        if !self.map.managers.iter().any(|manager| manager.name == name) {
            return Ok(());
        }
        self.map.managers.retain(|manager| manager.name != name);
        step.store.push(StoreOp::Delete(keys::manager_key(name)));
        step.notes.push(format!("manager {name} is none any more"));
        self.bump();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wire::mgr::{MgrReply, MgrRequest};

    use super::*;
    use crate::cluster::stage::{NOBODY, Stage};

    fn entry(name: &str, addr: &str) -> ManagerEntry {
        ManagerEntry { name: name.into(), addrs: vec![addr.into()] }
    }

    #[test]
    fn managers_stand_in_the_map_also_after_a_restart() {
        let mut stage = Stage::running(4, "2+2p");
        let ask = |stage: &mut Stage, request| match stage.ask(NOBODY, request) {
            MgrReply::Done => Ok(()),
            MgrReply::Error(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        };
        let first = stage.cluster.map().epoch;
        for (name, addr) in [("b", "192.0.2.2:7450"), ("a", "192.0.2.1:7450"), ("b", "192.0.2.3:7450")] {
            ask(&mut stage, MgrRequest::ManagerSet(entry(name, addr))).unwrap();
        }
        for (name, addr, why) in [
            ("c", "192.0.2.3:7450", "address of manager b"),
            ("c", "nowhere", "no address"),
            ("", "192.0.2.4:1", "no name of a manager"),
        ] {
            let error = ask(&mut stage, MgrRequest::ManagerSet(entry(name, addr))).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let expected = [entry("a", "192.0.2.1:7450"), entry("b", "192.0.2.3:7450")];
        assert_eq!(stage.cluster.map().managers, expected);
        assert!(stage.cluster.map().epoch > first, "everybody hears of it");
        stage.restart();
        assert_eq!(stage.cluster.map().managers, expected);
        for _ in 0..2 {
            ask(&mut stage, MgrRequest::ManagerRemove { name: "a".into() }).unwrap();
            stage.restart();
            assert_eq!(stage.cluster.map().managers, expected[1..]);
        }
        for n in 0..MANAGERS_MAX {
            let set = MgrRequest::ManagerSet(entry(&format!("m{n}"), &format!("192.0.2.9:{}", n + 1)));
            assert_eq!(ask(&mut stage, set).is_ok(), n + 1 < MANAGERS_MAX);
        }
    }
}
