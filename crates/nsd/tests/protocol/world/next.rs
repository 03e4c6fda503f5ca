//! What may happen next in a state.

use wire::map::PdiskState;

use super::{Bounds, DISKS, K, Phase, State, WIDTH, Without};

impl State {
    pub fn next(&self, bounds: Bounds, without: Without) -> Vec<(String, State)> {
        let mut all = Vec::new();
        let mut step = |label: String, change: &dyn Fn(&mut State)| {
            let mut next = self.clone();
            change(&mut next);
            next.send(without);
            if next != *self {
                all.push((label, next));
            }
        };
        // Messages.
        for message in &self.net {
            let label =
                format!("deliver {:?} to disk {} slot {}", message.version, message.disk, message.slot);
            step(label, &|s| s.deliver(message, without, bounds));
        }
        // The writer.
        if let Some(writer) = &self.writer {
            let free = writer.write.is_none() || without == Without::NextWhenComplete;
            if free && self.history.len() <= bounds.writes {
                for touched in [1, 2, 3] {
                    let first = touched == 3 || touched == 1 && bounds.short;
                    if writer.known.versions[0].is_some() || first {
                        step(format!("write {touched:#b}"), &|s| s.begin(touched));
                    }
                }
            }
            if let Some(next) = self.complete(without) {
                step("complete".into(), &|s| *s = next.clone());
            }
            if writer.view < self.map().epoch {
                step("writer gets the map".into(), &|s| {
                    let epoch = s.map().epoch;
                    if let Some(w) = &mut s.writer {
                        let before = std::mem::replace(&mut w.view, epoch);
                        let map = s.maps.last().unwrap();
                        if let Some(write) = &mut w.write {
                            // Who was away meanwhile is asked again.
                            write.acked.retain(|d| map.states[*d].written() && map.changed[*d] <= before);
                        }
                    }
                });
            }
            let view = self.map_at(writer.view);
            for slot in 0..WIDTH {
                // What is on its way to another place stays known there.
                let written = view.places().iter().any(|&(s, d)| s == slot && view.states[d].written());
                if writer.complete[slot].is_some() && !written {
                    step(format!("the writer forgets slot {slot}"), &|s| {
                        s.writer.iter_mut().for_each(|w| w.complete[slot] = None);
                    });
                }
            }
            for (slot, disk) in view.places() {
                if let Some(version) = writer.complete[slot]
                    && self.alive[disk]
                {
                    step(format!("adopt slot {slot} on disk {disk}"), &|s| s.disks[disk].adopt(version));
                }
            }
            if self.crashes < bounds.crashes {
                step("the writer crashes".into(), &|s| {
                    s.crashes += 1;
                    s.writer = None;
                    s.phase = Phase::Crashed;
                });
            }
        }
        // The next session.
        match self.phase {
            Phase::Crashed => step("fence".into(), &|s| {
                s.change(|m| m.session = None);
                s.phase = Phase::Fencing;
            }),
            Phase::Fencing => {
                let map = self.map();
                let reach = map.table.iter().all(|d| map.states[*d] != PdiskState::Ok || self.alive[*d]);
                if (self.in_force() || without == Without::Fence || !bounds.fence) && reach {
                    step("seal".into(), &|s| {
                        let grant = s.grant + 1;
                        let places = s.map().places();
                        for (_, d) in places {
                            if s.alive[d] && s.map().states[d].written() && bounds.sealing {
                                s.disks[d].sealed = s.disks[d].sealed.max(grant);
                            }
                        }
                        s.phase = Phase::Sealed;
                    });
                }
            }
            Phase::Sealed => step("resolve".into(), &|s| match s.resolve(without) {
                Some(true) => {}
                Some(false) => s.phase = Phase::Stuck,
                None => s.succeed(without),
            }),
            Phase::Writing | Phase::Stuck => {}
        }
        // Servers and pdisks.
        let map = self.map();
        for d in 0..DISKS {
            let used = map.places().iter().any(|(_, p)| *p == d);
            if !used {
                continue;
            }
            if self.alive[d] && self.have[d] < map.epoch {
                step(format!("server {d} gets the map"), &|s| s.have[d] = s.map().epoch);
            }
            if self.alive[d] && self.deaths < bounds.deaths && map.table.contains(&d) {
                step(format!("disk {d} dies"), &|s| {
                    s.alive[d] = false;
                    s.deaths += 1;
                });
            }
            let ok = map.table.iter().filter(|o| **o != d && map.states[**o] == PdiskState::Ok).count();
            if !self.alive[d] && map.states[d] == PdiskState::Ok && ok >= K {
                step(format!("disk {d} is missing"), &|s| {
                    s.change(|m| {
                        m.states[d] = PdiskState::Missing;
                        m.changed[d] = m.epoch;
                    });
                });
            }
            if !self.alive[d] {
                step(format!("disk {d} is back"), &|s| {
                    s.alive[d] = true;
                    (s.disks[d].touched, s.disks[d].held) = (false, None);
                    if s.map().states[d] == PdiskState::Missing {
                        s.change(|m| {
                            m.states[d] = match without {
                                Without::CatchUp => PdiskState::Ok,
                                _ => PdiskState::Returning,
                            };
                            m.changed[d] = m.epoch;
                        });
                    }
                    s.have[d] = s.map().epoch;
                });
            }
            let may = self.in_force() || without == Without::MapInForceBeforeCatchUp;
            if map.states[d] == PdiskState::Returning && self.alive[d] && may && self.pending.is_none() {
                let slot = map.table.iter().position(|t| *t == d);
                step(format!("disk {d} catches up"), &|s| {
                    if slot.is_none_or(|slot| s.settle(slot, d, without)) {
                        s.change(|m| {
                            m.states[d] = PdiskState::Ok;
                            m.changed[d] = m.epoch;
                        });
                    }
                });
            }
        }
        for (slot, d) in map.table.iter().copied().enumerate() {
            let may = bounds.repairs && self.in_force() && self.pending.is_none() && self.alive[d];
            if may && map.states[d] == PdiskState::Ok && self.disks[d].adopted.is_some() {
                step(format!("disk {d} makes its strip anew"), &|s| s.repair(slot, d));
            }
        }
        if let Some((d, stored)) = &self.pending {
            step(format!("what was asked for is stored on disk {d}"), &|s| {
                s.disks[*d].install(stored.clone(), without == Without::InstallOnlyOverOlder);
                s.pending = None;
            });
        }
        // A move of strip 0, or of the parity, to the fourth disk.
        if bounds.moves && !self.moved {
            for slot in [0, K] {
                step(format!("strip {slot} is to move"), &|s| {
                    s.moved = true;
                    s.change(|m| {
                        m.moving = Some((slot, 3, m.epoch));
                        m.table_changed = m.epoch;
                    });
                });
            }
        }
        if let Some((slot, to, _)) = map.moving {
            let may = self.in_force() || without == Without::MapInForceBeforeCatchUp;
            if !self.filled && may && self.alive[to] && self.pending.is_none() {
                step("the new place looks".into(), &|s| s.filled = s.settle(slot, to, without));
            }
            if self.filled || without == Without::AllThereBeforeSwitch {
                step("switch".into(), &|s| {
                    s.change(|m| {
                        m.table[slot] = to;
                        m.moving = None;
                        m.table_changed = m.epoch;
                    });
                });
            }
        }
        all
    }
}
