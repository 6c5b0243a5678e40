//! Recordings that begin when the guest starts.

use unikprof_agent::{BootMode, BootRecording, MAX_DEPTH, MAX_RECORDINGS};

use super::calls::{code_or, with_served};
use super::read;
use crate::abi::{
    self, UNIKPROF_MAX_RECORDINGS, UNIKPROF_MODE_CPU, UNIKPROF_MODE_OFF_CPU, UNIKPROF_MODE_WALL,
};
use crate::status::{Misuse, UNIKPROF_E_NULL, UNIKPROF_E_RECORDING, UNIKPROF_E_TOO_LATE};

const _: () = assert!(MAX_RECORDINGS == UNIKPROF_MAX_RECORDINGS as usize);
const _: () = assert!(MAX_DEPTH == 128, "as the header says");

/// Begins a recording before any client connects. Call it after `unikprof_init`, and after
/// `unikprof_install_caller_table` if there is a table, but before any client may have connected.
/// Each recording takes one of the configuration's `recordings`. Afterwards, arm the timer of this
/// vCPU (`unikprof_deadline`); the other vCPUs are kicked.
///
/// Returns the recording's id, above 0, or an error code; UNIKPROF_E_RECORDING: the reason was
/// passed to `log`, and the agent runs without the recording.
///
/// # Safety
///
/// For C: `recording` is NULL or points to a valid structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_start_at_boot(recording: *const abi::BootRecording) -> i64 {
    code_or(with_served(|served| {
        if served.begun {
            return Err(Misuse(UNIKPROF_E_TOO_LATE));
        }
        // SAFETY: guaranteed by the caller, twice.
        let (wanted, name) = unsafe {
            let wanted = read::structure(recording)?;
            (wanted, read::text(wanted.name, read::NAME)?)
        };
        let refused = Misuse(UNIKPROF_E_RECORDING);
        let default = BootRecording::always_on(name.ok_or(Misuse(UNIKPROF_E_NULL))?);
        let recording = BootRecording {
            mode: match wanted.mode {
                UNIKPROF_MODE_CPU => BootMode::Cpu,
                UNIKPROF_MODE_WALL => BootMode::Wall,
                UNIKPROF_MODE_OFF_CPU => BootMode::OffCpu,
                _ => return Err(refused),
            },
            period_ns: or(wanted.period_ns, default.period_ns),
            depth: or(wanted.depth, default.depth),
            duration_ns: wanted.duration_ns,
            delay_ns: wanted.delay_ns,
            max_age_ns: wanted.max_age_ns,
            max_bytes: wanted.max_bytes,
            ..default
        };
        let id = served.service.start_at_boot(&recording);
        let id = id.map_err(|_| refused)?;
        served.records = true;
        Ok(i64::try_from(id).unwrap_or(i64::MAX))
    }))
}

/// Returns `number`, or `default` if it is 0.
fn or<T: Default + PartialEq>(number: T, default: T) -> T {
    if number == T::default() { default } else { number }
}
