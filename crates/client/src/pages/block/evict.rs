//! Dropping what is clean.

use std::sync::Arc;

use base::units::UNIT;

use super::Block;
use crate::pages::{
    piece::{Data, Piece, State},
    queues::Tag,
};

impl Block {
    /// Drops the clean pieces with this tag.
    pub fn evict(&mut self, tag: &Arc<Tag>) {
        let first = self.at(tag.units.start).map_or(tag.units.start, |(start, _)| start);
        let starts: Vec<u32> = self
            .pieces
            .range(first..tag.units.end)
            .filter(|(_, p)| {
                let same = matches!(&p.data, Data::Shared { tag: Some(t), .. } if Arc::ptr_eq(t, tag));
                same && p.state == State::Clean
            })
            .map(|(&s, _)| s)
            .collect();
        starts.into_iter().for_each(|start| drop(self.take(start)));
    }

    /// Drops what is clean and known to be zeros, if this is the block's own tag; whether it is.
    pub fn evict_zeros(&mut self, tag: &Arc<Tag>) -> bool {
        if !self.entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.tag, tag)) {
            return false;
        }
        let zeros = |p: &Piece| p.state == State::Clean && matches!(p.data, Data::Zeros);
        let starts: Vec<u32> = self.pieces.iter().filter(|(_, p)| zeros(p)).map(|(&s, _)| s).collect();
        starts.into_iter().for_each(|start| drop(self.take(start)));
        true
    }

    /// The replacement entries of its clean pieces.
    pub fn tags(&self) -> Vec<Arc<Tag>> {
        let tag = |piece: &Piece| match &piece.data {
            Data::Shared { tag, .. } if piece.state == State::Clean => tag.clone(),
            _ => None,
        };
        self.pieces.values().filter_map(tag).collect()
    }

    /// Drops everything clean; returns how many bytes of memory that were.
    pub fn drop_clean(&mut self) -> u64 {
        let clean: Vec<u32> =
            self.pieces.iter().filter(|(_, p)| p.state == State::Clean).map(|(&s, _)| s).collect();
        let dropped = clean.into_iter().filter_map(|start| self.take(start));
        let units = dropped.map(|p| if matches!(p.data, Data::Zeros) { 0 } else { u64::from(p.units) });
        units.sum::<u64>() * UNIT as u64
    }
}
