//! Duty 1 for lists: gathered and scattered in order, however they are cut.

use super::rig::Rig;
use super::shape::Shape;
use super::suite::watched;
use crate::device::Device;

const CELL: usize = 4096;
const LONGEST: u32 = 8;

/// Duty 1: lists of 1 to 8 Segments on either side, as far as the capabilities go; a destination may have more room
/// than is needed.
///
/// # Panics
///
/// If bytes arrive in another place or order, or a byte between the pieces changes.
pub fn lists_are_gathered_and_scattered(device: &Device) {
    watched("lists_are_gathered_and_scattered", device, |device| {
        let caps = device.info().caps();
        let Some(dma) = &caps.dma else {
            panic!("the device {} does not copy", device.info().name());
        };
        let longest = dma.max_list_len.min(LONGEST) as usize;
        let depth = caps.max_depth.min(16);
        let mut rig = Rig::new(device, depth, CELL);
        for from in 1..=longest {
            for to in 1..=longest {
                let mut all: Vec<u32> = (0..depth).collect();
                rig.dice.shuffle(&mut all);
                for &index in &all {
                    let len = longest + rig.dice.below(1500);
                    let room = rig.dice.below(40);
                    let shape = Shape::lists(CELL, len, from, to, room, &mut rig.dice);
                    rig.prepare(index, &shape);
                }
                rig.submit_all(&all);
                rig.drain();
            }
        }
        rig.finish();
    });
}
