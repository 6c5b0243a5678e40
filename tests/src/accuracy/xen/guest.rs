//! The guest on a Xen.

use anyhow::{Context as _, Result, bail};
use std::borrow::Borrow;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use unikprof_link::connection::Address;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Patience, Request, Session, Settings};
use unikprof_profile::caller_table;
use unikprof_profile::profile::Unwind;
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::{Force, ImageOptions, Images as SymbolImages, Symbolizer};

use super::steal;
use crate::accuracy::capture::Captured;
use crate::accuracy::guest::{Captures, Guest};
use crate::accuracy::images::Images;
use crate::accuracy::recorded::Recorded;
use crate::accuracy::truth::Truth;
use crate::lab::{
    GuestConfig, Lab, LabConfig, Processor, build_xen_guest, build_xen_guest_without_frame_pointers,
};
use crate::profiled::{
    CAPTURES_PORT, FEATURES, ORDERS_PORT, PROFILER_PORT, STATISTICS_PORT, address_of,
};

/// Its name in the lab.
pub(super) const GUEST: &str = "accuracy";
const ECHO_PORT: u16 = 7;

const BOOT: Duration = Duration::from_secs(60);
const DOM0: Duration = Duration::from_secs(60);
/// The maximum time that a load may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A guest on a Xen that follows orders; see `tests/guests/xen-guest/src/accuracy.rs`.
pub struct XenGuest<L: Borrow<Lab> = Lab> {
    lab: L,
    /// Its name in the lab.
    name: String,
    image: PathBuf,
    symbolizer: Symbolizer,
}

impl XenGuest {
    /// A guest that was built as the agent asks for, and a neighbour, which runs.
    pub fn with_frame_pointers() -> Result<XenGuest> {
        let image = build_xen_guest(FEATURES)?;
        XenGuest::start(&image, vec![steal::neighbour(&image)])
    }

    pub fn without_frame_pointers() -> Result<XenGuest> {
        let image = build_xen_guest_without_frame_pointers(Processor::X86_64, &["accuracy"])?;
        XenGuest::start(&image, Vec::new())
    }

    /// Boots a lab with the guest of this image, and others beside it.
    pub(crate) fn start(image: &Path, others: Vec<GuestConfig>) -> Result<XenGuest> {
        let mut guest = GuestConfig::new(GUEST, image);
        guest.command_line = format!(
            "profiler=open:{PROFILER_PORT} stats={STATISTICS_PORT} echo={ECHO_PORT} \
             orders={ORDERS_PORT} captures={CAPTURES_PORT}"
        );
        guest.ports = vec![PROFILER_PORT, STATISTICS_PORT, ECHO_PORT, ORDERS_PORT, CAPTURES_PORT];
        guest.processor = Some(1);
        // Half of it for captured samples.
        guest.memory_mb = 96;
        let mut guests = vec![guest];
        guests.extend(others);
        let lab = Lab::start(LabConfig { guests, ..LabConfig::default() })?;
        lab.wait_for_console(GUEST, "profiler on port", BOOT)?;
        XenGuest::of(lab, GUEST, image)
    }
}

impl<L: Borrow<Lab>> XenGuest<L> {
    /// The guest of this name, which runs this image with the feature `accuracy` and `orders=7002`.
    pub fn of(lab: L, name: &str, image: &Path) -> Result<XenGuest<L>> {
        let mut images = SymbolImages::new(ImageOptions::default());
        images.add_image(image, Force::No)?;
        Ok(XenGuest {
            lab,
            name: name.to_owned(),
            image: image.to_owned(),
            symbolizer: Symbolizer::new(images),
        })
    }

    /// As [`Guest::record`], with the recording itself, and by the caller table. The truth's total
    /// is all that the vCPU ran while it was recorded.
    pub(crate) fn record_whole(
        &mut self,
        settings: &Settings,
        order: &str,
    ) -> Result<(Recorded, Recording)> {
        let mut session = self.session()?;
        let prepared = caller_table::prepare(&self.symbolizer, session.agent(), settings.unwind)?;
        session.start(&Settings { callers: prepared.table, ..settings.clone() })?;
        let knocking =
            network_ns(order).map(|ns| self.knock(Duration::from_nanos(ns))).transpose()?;
        let answer = self.order(order)?;
        drop(knocking);
        let path = self.lab.borrow().folder().join("accuracy.unikprof");
        let request = Request::Stop { recording: 0 };
        let outcome = record::fetch(&mut session, request, &path, &mut ())?;
        if let Some(reason) = outcome.incomplete {
            return Err(reason.into());
        }
        let recording = Recording::open(&path, Reading::Strict)?;
        let running_ns = recording.profile.vcpus().first();
        let running_ns = running_ns
            .and_then(|vcpu| vcpu.runstate.running_ns)
            .context("expected a recording with the vCPU's running time")?;
        let truth = Truth::parse(&format!("{answer} total={running_ns}"))?;
        let recorded = Recorded::open(&path, &self.symbolizer, truth)?;
        Ok((recorded, recording))
    }

    /// Has the guest do what a line says; answers its answer.
    pub(crate) fn order(&self, order: &str) -> Result<String> {
        let followed = || -> io::Result<String> {
            let mut stream = self.connect(ORDERS_PORT)?;
            writeln!(stream, "{order}")?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer)?;
            Ok(answer.trim_end().to_owned())
        };
        let answer = followed().with_context(|| format!("ordering {order:?}"))?;
        // Whether it is one, is known by its parts.
        Truth::parse(&answer).map(|_| answer)
    }

    /// Sends the guest a byte every so often and takes it back, until the result is dropped:
    /// something to wait for.
    fn knock(&self, every: Duration) -> Result<Knocking> {
        let mut stream = self.connect(ECHO_PORT).context("connecting to the guest's echo")?;
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut byte = [b'?'];
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                if stream.write_all(&byte).is_err() || stream.read_exact(&mut byte).is_err() {
                    return;
                }
            }
        });
        Ok(Knocking { stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn dom0(&self, script: &str) -> Result<String> {
        let output = self.lab.borrow().dom0(script, DOM0)?;
        if output.status == 0 {
            return Ok(output.text);
        }
        bail!("expected dom0 to run {script:?}: {}", output.text)
    }

    fn session(&self) -> Result<Session> {
        let address = address_of(self.lab.borrow(), &self.name, PROFILER_PORT)?;
        let address = Address::new(address.ip().to_string(), address.port());
        Ok(Session::open(address, Patience::default(), Interrupt::default())?)
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let address = address_of(self.lab.borrow(), &self.name, port).map_err(io::Error::other)?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl<L: Borrow<Lab>> Guest for XenGuest<L> {
    fn record(&mut self, settings: &Settings, command: &str) -> Result<Recorded> {
        self.record_whole(settings, command).map(|(recorded, _)| recorded)
    }

    fn capture(&mut self, load: &str, samples: usize) -> Result<Captures> {
        let load = load.replace(' ', "_");
        self.order(&format!("capture load={load} samples={samples}"))?;
        let taken = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            self.connect(CAPTURES_PORT)?.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = taken().context("taking captured samples")?;
        let samples = Captured::read_all(&bytes)?;
        let session = self.session()?;
        let callers =
            caller_table::prepare(&self.symbolizer, session.agent(), Unwind::Table)?.table;
        let images = Images::of_mappings(session.agent().mappings.iter(), &self.image, |_| {
            Some(self.image.clone())
        })?;
        Ok(Captures {
            samples,
            images,
            callers: callers.map_or_else(Vec::new, |table| table.rows().to_vec()),
        })
    }
}

/// The interval of the network's packets, where an order has one, in ns.
fn network_ns(order: &str) -> Option<u64> {
    order
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix("network_ns="))
        .and_then(|ns| ns.parse().ok())
}

/// A client that knocks; see [`XenGuest::knock`].
struct Knocking {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Knocking {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
