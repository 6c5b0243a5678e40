//! The demo's guest: an agent, and a service that has something to do, on threads of this program.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) use linux::start;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(super) fn start(
    _ends: &std::sync::Arc<std::sync::atomic::AtomicBool>,
) -> Result<unikprof_link::connection::Address, super::DemoError> {
    Err(super::DemoError::Unsupported)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
    use std::thread;
    use std::time::Duration;

    use unikprof_agent::Access;
    use unikprof_agent::hosted::{self, Config, Guest};
    use unikprof_demo_service::{RequestGenerator, Service};

    use crate::demo::DemoError;
    use unikprof_link::connection::Address;

    /// How many notes each vCPU's service keeps.
    const NOTES: usize = 128;

    /// Deep enough for a service that was not optimised.
    const STACK_BYTES: usize = 2 << 20;

    /// How a vCPU spends its time.
    #[derive(Clone, Copy)]
    enum Load {
        /// Requests wait all the time.
        Busy,
        /// A burst of requests comes now and then.
        Bursts,
    }

    /// Starts the guest, whose vCPUs serve until `ends` is set; gives the address at which its
    /// agent listens.
    pub(in crate::demo) fn start(ends: &Arc<AtomicBool>) -> Result<Address, DemoError> {
        let guest = hosted::start(Config {
            vcpus: 2,
            memory_bytes: 4 << 20,
            // A debug build of this program has 455,000 rows, 4.5 MB, the C library included.
            caller_table_bytes: 8 << 20,
            guest_name: Some("demo".into()),
            trace_functions: 100,
            // On loopback, for as long as the demo runs: nothing of it is secret.
            // Compiled without optimisation the agent's work takes many times longer.
            cpu_share_permille: if cfg!(debug_assertions) { 1000 } else { 100 },
            ..Config::new(Access::Open)
        })
        .map_err(DemoError::Agent)?;
        for (seed, load) in [(1, Load::Busy), (2, Load::Bursts)] {
            let ends = Arc::clone(ends);
            thread::Builder::new()
                .name(format!("vcpu{seed}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    if let Err(error) = serve(guest, seed, load, &ends) {
                        tell!("error: {}", DemoError::Agent(error));
                    }
                })
                .map_err(DemoError::Start)?;
        }
        let address = guest.address();
        Ok(Address::new(address.ip().to_string(), address.port()))
    }

    /// One vCPU's work.
    fn serve(guest: Guest, seed: u64, load: Load, ends: &AtomicBool) -> Result<(), hosted::Error> {
        const BURST: usize = 100;
        const PAUSE: Duration = Duration::from_millis(20);
        /// By all vCPUs.
        static SERVED: AtomicI64 = AtomicI64::new(0);
        let vcpu = guest.register_thread()?;
        // Names of its own for what it does; a request takes microseconds, so it tells of many at a
        // time.
        let agent = guest.agent();
        let names = ["batch", "burst", "requests served"].map(|name| agent.event_name(name));
        let [Ok(batch), Ok(burst), Ok(requests)] = names else {
            return Ok(());
        };
        let span = match load {
            Load::Busy => batch,
            Load::Bursts => burst,
        };
        let mut service = Service::new(seed, NOTES);
        let mut response = Vec::new();
        let mut generator = RequestGenerator::new(seed, NOTES);
        while !ends.load(Relaxed) {
            let work = agent.span(span);
            for request in generator.by_ref().take(BURST) {
                service.handle(&request, &mut response);
            }
            drop(work);
            let served = SERVED.fetch_add(BURST as i64, Relaxed) + BURST as i64;
            if let Load::Bursts = load {
                agent.counter(requests, served);
                vcpu.block(|| thread::sleep(PAUSE));
            }
        }
        Ok(())
    }
}
