//! The network backend of the tests.

use std::format;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::FakeXen;
use super::store::FakeStore;
use crate::abi::netif::{RSP_OKAY, RxRequest, RxResponse, TxRequest, TxResponse};
use crate::abi::ring;
use crate::events::Port;
use crate::page::{PageIndex, SharedPage};
use crate::xenbus::XenbusState;

const FRONTEND: &str = "/local/domain/1/device/vif/0";
const BACKEND: &str = "/local/domain/0/backend/vif/1/0";
/// Domain of the backend.
const DOMAIN: u16 = 0;

const REQUEST_PRODUCER: PageIndex = PageIndex::at(ring::REQUEST_PRODUCER);
const REQUEST_EVENT: PageIndex = PageIndex::at(ring::REQUEST_EVENT);
const RESPONSE_PRODUCER: PageIndex = PageIndex::at(ring::RESPONSE_PRODUCER);
const RESPONSE_EVENT: PageIndex = PageIndex::at(ring::RESPONSE_EVENT);

/// The backend of `vif` 0 in domain 0. Clones are the same backend.
///
/// Honest by itself; [`tx`](Self::tx) and [`rx`](Self::rx) let a test write what an honest backend
/// would not.
#[derive(Clone)]
pub struct FakeNetback {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    connected: Option<Connected>,
    sent: Vec<Vec<u8>>,
    holds: bool,
    keeps_mapped: bool,
    connections: u32,
}

struct Connected {
    port: Port,
    tx: BackRing,
    rx: BackRing,
}

/// A backend's view of a ring, free to lie.
#[derive(Debug)]
pub struct BackRing {
    page: SharedPage,
    reference: u32,
    slot_size: usize,
    request_consumer: u32,
    response_producer: u32,
}

impl FakeNetback {
    /// A backend that offers its device in `daemon`'s tree, and connects when the guest does.
    #[must_use]
    pub fn new(_xen: &FakeXen, daemon: &FakeStore) -> Self {
        daemon.set(&format!("{FRONTEND}/backend"), BACKEND);
        daemon.set(&format!("{FRONTEND}/backend-id"), "0");
        daemon.set(&format!("{FRONTEND}/mac"), "00:16:3e:01:02:03");
        daemon.set(&format!("{FRONTEND}/state"), "1");
        daemon.set(&format!("{BACKEND}/feature-rx-copy"), "1");
        set_state(daemon, XenbusState::InitWait);
        let backend = Self { inner: Arc::default() };
        let watcher = backend.clone();
        daemon.hook(move |daemon, xen| watcher.follow(daemon, xen));
        backend
    }

    /// Path of the backend's directory.
    #[must_use]
    pub const fn path() -> &'static str {
        BACKEND
    }

    /// Path of the frontend's directory.
    #[must_use]
    pub const fn frontend_path() -> &'static str {
        FRONTEND
    }

    /// Frames the guest has sent, which are taken out.
    #[must_use]
    pub fn sent(&self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.lock().sent)
    }

    /// Gives the guest a frame; `false` where it has posted no buffer.
    pub fn deliver(&self, xen: &FakeXen, frame: &[u8]) -> bool {
        self.deliver_with_flags(xen, frame, 0)
    }

    /// Gives the guest a frame with `NETRXF_*` flags.
    pub fn deliver_with_flags(&self, xen: &FakeXen, frame: &[u8], flags: u16) -> bool {
        self.rx(xen, |rx| {
            let Some(request) = rx.take_request::<RxRequest>() else {
                return false;
            };
            let filled = xen
                .granted(DOMAIN, request.grant, true)
                .is_ok_and(|page| page.write_bytes(0, frame).is_ok());
            let status = if filled { frame.len() as i16 } else { -1 };
            rx.respond(RxResponse { id: request.id, offset: 0, flags, status });
            true
        })
        .unwrap_or(false)
    }

    /// Leaves requests to send unanswered, or answers them again.
    pub fn hold(&self, xen: &FakeXen, holds: bool) {
        self.lock().holds = holds;
        self.serve(xen);
    }

    /// Keeps the rings mapped when it closes, as a backend that hangs.
    pub fn keep_mapped(&self, keeps: bool) {
        self.lock().keeps_mapped = keeps;
    }

    /// Times it has connected.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.lock().connections
    }

    /// Works on the transmit ring, then notifies the guest; `None` where it is not connected.
    pub fn tx<T>(&self, xen: &FakeXen, work: impl FnOnce(&mut BackRing) -> T) -> Option<T> {
        self.on_ring(xen, |connected| work(&mut connected.tx))
    }

    /// Works on the receive ring, then notifies the guest; `None` where it is not connected.
    pub fn rx<T>(&self, xen: &FakeXen, work: impl FnOnce(&mut BackRing) -> T) -> Option<T> {
        self.on_ring(xen, |connected| work(&mut connected.rx))
    }

    fn on_ring<T>(&self, xen: &FakeXen, work: impl FnOnce(&mut Connected) -> T) -> Option<T> {
        let mut inner = self.lock();
        let connected = inner.connected.as_mut()?;
        let result = work(connected);
        let port = connected.port;
        drop(inner);
        xen.raise(port);
        Some(result)
    }

    /// Follows the state the guest writes, as a backend that watches it.
    fn follow(&self, daemon: &FakeStore, xen: &FakeXen) {
        let read = |path: String| daemon.get(&path)?.parse::<u64>().ok();
        let frontend = read(format!("{FRONTEND}/state")).map(XenbusState::from_number);
        let state = read(format!("{BACKEND}/state")).map(XenbusState::from_number);
        match (frontend, state) {
            (Some(XenbusState::Initialising), Some(XenbusState::Closed)) => {
                set_state(daemon, XenbusState::InitWait);
            }
            (Some(XenbusState::Connected), Some(XenbusState::InitWait))
                if self.connect(daemon, xen).is_some() =>
            {
                set_state(daemon, XenbusState::Connected);
            }
            (Some(XenbusState::Closing), Some(XenbusState::Connected | XenbusState::InitWait)) => {
                self.disconnect(xen);
                set_state(daemon, XenbusState::Closing);
            }
            (Some(XenbusState::Closed), Some(state)) if state != XenbusState::Closed => {
                self.disconnect(xen);
                set_state(daemon, XenbusState::Closed);
            }
            _ => {}
        }
    }

    fn connect(&self, daemon: &FakeStore, xen: &FakeXen) -> Option<()> {
        let number = |node: &str| daemon.get(&format!("{FRONTEND}/{node}"))?.parse::<u32>().ok();
        if number("request-rx-copy")? != 1 || number("feature-rx-notify")? != 1 {
            return None;
        }
        let port = Port(number("event-channel")?);
        xen.bind(port, DOMAIN).ok()?;
        let ring = |reference: u32, slot_size| {
            let page = xen.map(DOMAIN, reference, true).ok()?;
            Some(BackRing { page, reference, slot_size, request_consumer: 0, response_producer: 0 })
        };
        let connected = Connected {
            port,
            tx: ring(number("tx-ring-ref")?, 12)?,
            rx: ring(number("rx-ring-ref")?, 8)?,
        };
        let mut inner = self.lock();
        inner.connected = Some(connected);
        inner.connections += 1;
        drop(inner);
        let backend = self.clone();
        xen.attach(port, move |xen| backend.serve(xen));
        Some(())
    }

    fn disconnect(&self, xen: &FakeXen) {
        let mut inner = self.lock();
        if let Some(connected) = inner.connected.take()
            && !inner.keeps_mapped
        {
            xen.unmap(connected.tx.reference);
            xen.unmap(connected.rx.reference);
        }
    }

    /// Sends what the guest has asked for.
    fn serve(&self, xen: &FakeXen) {
        let mut inner = self.lock();
        let Inner { connected: Some(connected), sent, holds: false, .. } = &mut *inner else {
            return;
        };
        let mut answered = false;
        while let Some(request) = connected.tx.take_request::<TxRequest>() {
            let mut frame = std::vec![0; usize::from(request.size)];
            let read = xen
                .granted(DOMAIN, request.grant, false)
                .is_ok_and(|page| page.read_bytes(usize::from(request.offset), &mut frame).is_ok());
            if read {
                sent.push(frame);
            }
            let status = if read { RSP_OKAY } else { -1 };
            answered |= connected.tx.respond(TxResponse { id: request.id, status });
        }
        let port = connected.port;
        drop(inner);
        if answered {
            xen.raise(port);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl core::fmt::Debug for FakeNetback {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FakeNetback")
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl BackRing {
    /// The next request, if there is one.
    pub fn take_request<T: crate::page::Plain>(&mut self) -> Option<T> {
        if self.page.load_index(REQUEST_PRODUCER) == self.request_consumer {
            self.page.store_index(REQUEST_EVENT, self.request_consumer.wrapping_add(1));
            return None;
        }
        let request = self.page.read(self.offset(self.request_consumer)).ok()?;
        self.request_consumer = self.request_consumer.wrapping_add(1);
        Some(request)
    }

    /// Writes a response into the next slot; returns whether the guest asked for a notification.
    pub fn respond<T: crate::page::Plain>(&mut self, response: T) -> bool {
        let written = self.page.write(self.offset(self.response_producer), response);
        self.response_producer = self.response_producer.wrapping_add(1);
        self.page.store_index(RESPONSE_PRODUCER, self.response_producer);
        written.is_ok() && self.page.load_index(RESPONSE_EVENT) == self.response_producer
    }

    /// Sets the response producer to whatever a lying backend wants.
    pub fn jump(&mut self, producer: u32) {
        self.page.store_index(RESPONSE_PRODUCER, producer);
    }

    const fn offset(&self, index: u32) -> usize {
        ring::ENTRIES + (index % ring::entries(self.slot_size)) as usize * self.slot_size
    }
}

fn set_state(daemon: &FakeStore, state: XenbusState) {
    daemon.set(&format!("{BACKEND}/state"), &format!("{}", state.number()));
}
