//! A guest of a lab, as the cases see it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use unikprof_tests::guest_statistics::GuestStatistics;
use unikprof_tests::lab::{Lab, build_xen_guest};
use unikprof_tests::profiled::{FEATURES, STATISTICS_PORT, address_of, profiler_address};

use super::Client;

/// The time for a script, a save of a guest among them, on a busy machine.
const DOM0: Duration = Duration::from_secs(600);

/// A client that is given [`Guest::program`] as the image.
pub(crate) fn client_at(address: SocketAddr) -> Client {
    Client::of(address).with_image(Guest::program())
}

/// A guest with a profiler.
pub(crate) struct Guest<'a> {
    lab: &'a Lab,
    name: &'a str,
}

impl<'a> Guest<'a> {
    /// The guest of this name, with no recording left over from an earlier case.
    pub(crate) fn of(lab: &'a Lab, name: &'a str) -> Guest<'a> {
        let guest = Guest { lab, name };
        let client = guest.client();
        let status = client.status();
        for one in status["recordings"].as_array().into_iter().flatten() {
            if let Some(name) = one["name"].as_str() {
                client.must(&["stop", "--discard", "--name", name]);
            }
        }
        guest
    }

    /// The guest of this name, whatever it records.
    pub(crate) fn of_recording(lab: &'a Lab, name: &'a str) -> Guest<'a> {
        Guest { lab, name }
    }

    /// The guest's own counts.
    pub(crate) fn statistics(&self) -> GuestStatistics {
        GuestStatistics::read(self.port(STATISTICS_PORT)).unwrap()
    }

    /// The image that all guests of these cases run.
    pub(crate) fn program() -> &'static Path {
        static IMAGE: OnceLock<std::path::PathBuf> = OnceLock::new();
        IMAGE.get_or_init(|| build_xen_guest(FEATURES).unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        profiler_address(self.lab, self.name).unwrap()
    }

    /// The address of another port of the guest.
    pub(crate) fn port(&self, port: u16) -> SocketAddr {
        address_of(self.lab, self.name, port).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        client_at(self.address())
    }

    /// A client that is given the image that this guest runs, if it is another one.
    pub(crate) fn client_with_image(&self) -> Client {
        self.client().with_image(self.lab.kernel(self.name).unwrap())
    }

    /// Runs a script in dom0, in which `$ID` is the domain's number; answers what it printed.
    pub(crate) fn dom0(&self, script: &str) -> String {
        let id = self.lab.domain_id(self.name).unwrap();
        let output = self.lab.dom0(&format!("ID={id}; {script}"), DOM0).unwrap();
        assert_eq!(output.status, 0, "{script}: {}", output.text);
        output.text
    }
}
