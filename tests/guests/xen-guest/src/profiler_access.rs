//! The profiler's access settings and keys.
//!
//! In a guest with the feature `keys`, keys come from xenstore, from the domain's `data/unikprof`:
//! `view`, `view-2`, `control`, `control-2`, and `trace` and `trace-2`, each a line as
//! `unikprof-client keygen` makes it. The second ones are for the time in which keys are changed.
//! The guest, dom0 and other privileged domains can read them, but no other guest:
//!
//! ```text
//! xenstore-write /local/domain/$(xl domid NAME)/data/unikprof/view "$(grep -v '^#' view.key)"
//! ```
//!
//! They must exist when the guest starts its network, so create the domain paused (`xl create -p`).

#[cfg(feature = "keys")]
use alloc::boxed::Box;

use unikprof_agent::Access;
#[cfg(feature = "keys")]
use unikprof_agent::{Key, Keys, Role};
#[cfg(feature = "keys")]
use xen_sys_lite::Errno;
#[cfg(feature = "keys")]
use xen_sys_lite::xenstore::{StoreError, Tree};

use crate::command_line::CommandLine;
use crate::println;
use crate::store::GuestStore;

#[cfg(feature = "keys")]
const NODES: [(&str, Role); 6] = [
    ("data/unikprof/view", Role::View),
    ("data/unikprof/view-2", Role::View),
    ("data/unikprof/control", Role::Control),
    ("data/unikprof/control-2", Role::Control),
    ("data/unikprof/trace", Role::Trace),
    ("data/unikprof/trace-2", Role::Trace),
];

/// Reads `profiler=keys:PORT` or `profiler=open:PORT`: the access and the port. Prints the reason
/// and returns `None` if no client can be served.
pub(crate) fn find(
    command_line: CommandLine,
    #[cfg_attr(not(feature = "keys"), allow(unused_variables))] store: &mut GuestStore,
) -> Option<(Access<'static>, u16)> {
    let service = command_line.value("profiler").and_then(|value| {
        let (access, port) = value.split_once(':')?;
        let port: u16 = port.parse().ok().filter(|&port| port != 0)?;
        Some((access, port))
    });
    match service {
        #[cfg(feature = "keys")]
        Some(("keys", port)) => Some((Access::Keys(keys(store)), port)),
        Some(("open", port)) => Some((Access::Open, port)),
        _ => {
            println!(
                "xen-guest: the profiler serves nobody: profiler=keys:PORT serves who has a key, \
                 profiler=open:PORT would serve everybody"
            );
            None
        }
    }
}

#[cfg(feature = "keys")]
fn keys(store: &mut GuestStore) -> &'static Keys {
    let mut keys = Keys::new();
    for (node, role) in NODES {
        let mut buffer = [0; 256];
        let key = match store.read_text(node, &mut buffer) {
            Ok(text) => Key::parse(text),
            Err(StoreError::Refused(Errno::ENOENT)) => continue,
            Err(error) => {
                println!("xen-guest: {node}: {error}");
                continue;
            }
        };
        match key {
            Ok(key) => {
                let id = key.id();
                match keys.add(role, key) {
                    Ok(()) => println!("xen-guest: key {id} for {role:?}"),
                    Err(error) => println!("xen-guest: {node}: {error}"),
                }
            }
            Err(error) => println!("xen-guest: {node}: {error}"),
        }
    }
    Box::leak(Box::new(keys))
}
