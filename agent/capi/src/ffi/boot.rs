//! Recordings that begin with the guest.

use unikprof_agent::{BootMode, BootRecording, MAX_DEPTH, MAX_RECORDINGS};

use super::calls::{code_or, with_served};
use super::read;
use crate::abi::{
    self, UNIKPROF_MAX_RECORDINGS, UNIKPROF_MODE_CPU, UNIKPROF_MODE_OFF_CPU, UNIKPROF_MODE_WALL,
};
use crate::status::{Misuse, UNIKPROF_E_NULL, UNIKPROF_E_RECORDING, UNIKPROF_E_TOO_LATE};

const _: () = assert!(MAX_RECORDINGS == UNIKPROF_MAX_RECORDINGS as usize);
const _: () = assert!(MAX_DEPTH == 128, "as the header says");

/// Begins a recording before any client has come. Call it behind `unikprof_init`, and behind
/// `unikprof_install_caller_table` where there is a table; once clients are served it is too late. Each further
/// one takes another of the configuration's `recordings`. Arm the timer of this vCPU behind it
/// (`unikprof_deadline`); the others are kicked.
///
/// Answers the recording's id, above 0, or a code; UNIKPROF_E_RECORDING: `log` was told why, and the agent
/// serves without it.
///
/// # Safety
/// C's: `recording` is NULL or leads to a structure of its kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_start_at_boot(recording: *const abi::BootRecording) -> i64 {
    code_or(with_served(|served| {
        if served.begun {
            return Err(Misuse(UNIKPROF_E_TOO_LATE));
        }
        // SAFETY: the caller's promise, twice.
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

/// A number, or what stands for 0.
fn or<T: Default + PartialEq>(number: T, default: T) -> T {
    if number == T::default() {
        default
    } else {
        number
    }
}
