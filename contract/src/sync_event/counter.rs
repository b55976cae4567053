//! Checks of adapter duty 4: the memory of a sync event's counter.

use super::events::{Events, step, watched};
use crate::rig::{Dice, wait_for};
use tokio_doca::device::contract::{EventConfig, EventJob, Processor};
use tokio_doca::error::ErrorKind;
use tokio_doca::{
    Mmap,
    mem::{Access, BufInventory},
};

/// Checks adapter duty 4 for a counter in the application's memory: the counter is exactly those
/// eight bytes, starts with their value, and releases the memory at its end. Devices that refuse
/// such memory pass.
///
/// # Panics
///
/// Panics if the counter is elsewhere, if other bytes change, or if the memory is not released.
pub fn a_counter_lies_where_it_was_told(events: impl Into<Events>) {
    watched("a_counter_lies_where_it_was_told", events, |events| {
        const AT: usize = 64;
        let device = &events.device;
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder().device(device).access(access).alloc(4096);
        let mmap = mmap.expect("memory");
        let mut bytes = Dice::new(4).bytes(mmap.len());
        let whole = || BufInventory::with_capacity(1).buf(&mmap, ..).expect("all");
        let filled = whole();
        filled.set_data(0, bytes.len()).expect("no job has it");
        filled.copy_in(0, &bytes).expect("no job has it");
        let mut config = EventConfig::new(Processor::Cpu, Processor::Dpu);
        let backing = mmap.counter("a counter", device, AT);
        config.backing = Some(backing.expect("eight bytes of it"));
        let counter = match device.adapter().open_event(config) {
            Err(error) if error.kind() == ErrorKind::NotSupported => return,
            counter => counter.expect("a sync event in memory"),
        };
        let mut value = u64::from_ne_bytes(bytes[AT..AT + 8].try_into().expect("eight"));
        for job in [EventJob::Get, EventJob::Add(3), EventJob::Set(77)] {
            let answer = step(&mut value, job);
            assert_eq!(
                counter.perform(job),
                Ok(answer),
                "adapter duty 4: the counter is the eight bytes"
            );
            bytes[AT..AT + 8].copy_from_slice(&value.to_ne_bytes());
            let mut found = vec![0; bytes.len()];
            filled.copy_out(0, &mut found).expect("no job has it");
            assert!(
                found == bytes,
                "adapter duty 4: the counter is the eight bytes, and no others change"
            );
        }
        counter.stop();
        drop((counter, filled));
        wait_for(
            events.deadline,
            "adapter duty 4: the memory is let go of",
            || mmap.stop().is_ok(),
        );
    });
}
