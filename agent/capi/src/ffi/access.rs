//! Who is served: everybody, or clients with a key.

use unikprof_agent::Access;

use crate::abi::{self, UNIKPROF_ACCESS_KEYS, UNIKPROF_ACCESS_OPEN};
use crate::status::{Misuse, UNIKPROF_E_ACCESS};

#[cfg(feature = "noise")]
pub(super) use keyed::Keys;
#[cfg(not(feature = "noise"))]
pub(super) use open::Keys;

/// Checks `access` of the configuration, without reading the keys.
pub(super) fn check(config: &abi::Config) -> Result<(), Misuse> {
    match config.access {
        // Reject keys that are never checked: they show a mistake in the configuration.
        UNIKPROF_ACCESS_OPEN if config.key_count == 0 => Ok(()),
        UNIKPROF_ACCESS_KEYS => Ok(()),
        _ => Err(Misuse(UNIKPROF_E_ACCESS)),
    }
}

/// Reads the configuration's keys into `place`, which is empty; erases them if one of them cannot
/// be used.
///
/// # Safety
///
/// The configuration's keys are NULL, or point to as many keys as it says.
pub(super) unsafe fn read_keys(
    config: &abi::Config,
    place: &mut Option<Keys>,
) -> Result<(), Misuse> {
    if config.access != UNIKPROF_ACCESS_KEYS {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let read = unsafe { Keys::read(config, place) };
    if read.is_err() {
        *place = None;
    }
    read
}

/// The agent's access setting.
pub(super) fn access(keys: Option<&'static Keys>) -> Access<'static> {
    keys.map_or(Access::Open, Keys::access)
}

#[cfg(feature = "noise")]
mod keyed {
    use unikprof_agent::{Access, Key, MAX_KEYS, Role};

    use super::super::read;
    use crate::abi::{
        self, UNIKPROF_MAX_KEYS, UNIKPROF_ROLE_CONTROL, UNIKPROF_ROLE_TRACE, UNIKPROF_ROLE_VIEW,
    };
    use crate::status::{Misuse, UNIKPROF_E_KEYS, UNIKPROF_E_NULL};

    const _: () = assert!(MAX_KEYS == UNIKPROF_MAX_KEYS as usize);

    /// The agent's keys; erased when they are dropped.
    pub(in super::super) struct Keys(unikprof_agent::Keys);

    impl Keys {
        /// # Safety
        ///
        /// See [`read_keys`](super::read_keys).
        pub(super) unsafe fn read(
            config: &abi::Config,
            place: &mut Option<Self>,
        ) -> Result<(), Misuse> {
            let refused = Misuse(UNIKPROF_E_KEYS);
            if config.key_count == 0 || config.key_count > UNIKPROF_MAX_KEYS {
                return Err(refused);
            }
            let keys = place.insert(Self(unikprof_agent::Keys::new()));
            if config.keys.is_null() {
                return Err(Misuse(UNIKPROF_E_NULL));
            }
            for index in 0..config.key_count as usize {
                // SAFETY: `key_count` of them are there, by the caller's promise.
                let key = unsafe { read::structure(config.keys.add(index))? };
                // SAFETY: guaranteed by the caller.
                let text = unsafe { read::text(key.text, read::KEY)? };
                let text = text.ok_or(Misuse(UNIKPROF_E_NULL))?;
                let role = match key.role {
                    UNIKPROF_ROLE_VIEW => Role::View,
                    UNIKPROF_ROLE_CONTROL => Role::Control,
                    UNIKPROF_ROLE_TRACE => Role::Trace,
                    _ => return Err(refused),
                };
                let key = Key::parse(text).map_err(|_| refused)?;
                keys.0.add(role, key).map_err(|_| refused)?;
            }
            Ok(())
        }

        pub(super) fn access(&'static self) -> Access<'static> {
            Access::Keys(&self.0)
        }
    }
}

/// In an archive without cryptography there are no keys.
#[cfg(not(feature = "noise"))]
mod open {
    use unikprof_agent::Access;

    use crate::abi;
    use crate::status::{Misuse, UNIKPROF_E_UNSUPPORTED};

    /// Has no value.
    pub(in super::super) enum Keys {}

    impl Keys {
        /// # Safety
        ///
        /// There are no requirements.
        pub(super) unsafe fn read(_: &abi::Config, _: &mut Option<Self>) -> Result<(), Misuse> {
            Err(Misuse(UNIKPROF_E_UNSUPPORTED))
        }

        pub(super) fn access(&'static self) -> Access<'static> {
            match *self {}
        }
    }
}
