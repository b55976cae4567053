//! Counts the locked instructions of a job. Callgrind counts how often a scenario executes each
//! instruction; the bytes in this process's memory say which instructions are locked.
#![expect(unsafe_code, reason = "reads the instructions of this program")]

use std::hint::black_box;
use std::slice;

use super::scenario;

/// The length of the longest x86 instruction, in bytes.
const LONGEST: usize = 15;

/// A marker function. Its address here and in callgrind's output tells where callgrind loads the
/// program.
#[inline(never)]
pub(crate) extern "C" fn callgrind_finds_this() {
    black_box(());
}

/// Returns the locked instructions per job of a scenario; `Err` if they cannot be counted here.
pub(crate) fn instructions(scenario: &str) -> Result<f64, String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("locked instructions are known for x86-64 alone".to_owned());
    }
    scenario::per_job(|jobs| count(scenario, jobs))
}

/// Returns how many locked instructions of this program a scenario executes.
fn count(scenario: &str, jobs: u64) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = std::env::temp_dir().join(format!("bars-locked-{}", std::process::id()));
    let options = [
        "--dump-instr=yes",
        "--dump-line=no",
        "--compress-strings=no",
        "--compress-pos=no",
        &format!("--callgrind-out-file={}", out.display()),
    ];
    let ended = scenario::callgrind(scenario, jobs, &options);
    let text = std::fs::read_to_string(&out);
    _ = std::fs::remove_file(&out);
    ended?;
    let text = text.map_err(|error| format!("callgrind wrote nothing: {error}"))?;
    let (mut executed, mut marker) = (Vec::new(), None);
    let (mut is_ours, mut is_marker, mut is_of_call) = (false, false, false);
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_ours = object == this.to_string_lossy();
        } else if let Some(name) = line.strip_prefix("fn=") {
            is_marker = name.contains("callgrind_finds_this");
        } else if line.starts_with("calls=") {
            // The next line has the cost of the called function.
            is_of_call = true;
        } else if let Some((address, count)) = line
            .strip_prefix("0x")
            .and_then(|line| line.split_once(' '))
        {
            let address = usize::from_str_radix(address, 16).map_err(|error| error.to_string())?;
            let count: u64 = count.trim().parse().map_err(|_| line.to_owned())?;
            if is_ours && !is_of_call {
                executed.push((address, count));
                marker = marker.or(is_marker.then_some(address));
            }
            is_of_call = false;
        }
    }
    let marker = marker.ok_or_else(|| format!("callgrind names no marker in {scenario}"))?;
    let here = callgrind_finds_this as extern "C" fn() as usize;
    let locked = executed.iter().filter(|(address, _)| {
        let at = here.wrapping_sub(marker).wrapping_add(*address);
        // SAFETY: the other process executed the instruction at this place of the same program,
        // whose text this process has mapped. More text or constants follow it.
        let bytes = unsafe { slice::from_raw_parts(at as *const u8, LONGEST) };
        is_locked(bytes)
    });
    Ok(locked.map(|(_, count)| count).sum())
}

/// Returns true for an instruction with the prefix `lock`, and for an exchange (`xchg`) with
/// memory, which locks without a prefix.
fn is_locked(bytes: &[u8]) -> bool {
    let is_prefix = |byte: u8| matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x64 | 0x65);
    let mut rest = bytes.iter().copied();
    let opcode = rest.find(|&byte| !is_prefix(byte) && !(0x40..0x50).contains(&byte));
    match opcode {
        Some(0xf0) => true,
        Some(0x86 | 0x87) => rest.next().is_some_and(|modes| modes >> 6 != 3),
        _ => false,
    }
}
