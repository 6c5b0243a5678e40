//! The xenstore daemon of the tests.

#![allow(unsafe_code, reason = "the daemon has the ring's page a second time")]

use std::boxed::Box;
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::{FakeXen, leak_page};
use crate::abi::xs_wire::{Header, message};
use crate::byte_ring::{Consumer, Producer};
use crate::channel::PolledChannel;
use crate::clock::Clock;
use crate::events::{EventChannels, Port};
use crate::page::SharedPage;
use crate::xenstore::{REPLIES, REQUESTS, Store, decode, encode};

/// Home of the guest, domain 1.
const HOME: &str = "/local/domain/1";

type Tamper = Box<dyn FnMut(&mut Header, &mut Vec<u8>) + Send>;
type Hook = Arc<Mutex<dyn FnMut(&FakeStore, &FakeXen) + Send>>;

/// A xenstore daemon for one guest, domain 1. Clones are the same daemon.
///
/// It runs whenever the guest notifies it or polls. To see how the guest stands a daemon that lies,
/// give it a [`tamper`](Self::tamper) or damage its ring.
#[derive(Clone, Default)]
pub struct FakeStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    nodes: BTreeMap<String, Vec<u8>>,
    generation: u64,
    watches: Vec<(String, String)>,
    transactions: BTreeMap<u32, Pending>,
    next_transaction: u32,
    conflicts: u32,
    connection: Option<Connection>,
    tamper: Option<Tamper>,
    hooks: Vec<Hook>,
    silent: bool,
}

struct Connection {
    page: SharedPage,
    port: Port,
    requests: Consumer,
    replies: Producer,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

struct Pending {
    nodes: BTreeMap<String, Vec<u8>>,
    generation: u64,
    changed: Vec<String>,
}

impl FakeStore {
    /// A daemon with an empty tree, not connected.
    #[must_use]
    pub fn new(_xen: &FakeXen) -> Self {
        Self::default()
    }

    /// Connects a guest that has the shared page mapped or not (it is mapped then).
    #[must_use]
    pub fn connect<'x>(&self, xen: &'x FakeXen) -> Store<PolledChannel<'static, &'x FakeXen>> {
        let shared = xen.map_shared_info();
        self.connect_with(
            xen,
            EventChannels::new(xen, shared),
            Clock::with_time_info(shared, &shared.vcpu_info[0].time),
        )
    }

    /// Connects a guest that uses these event channels and this clock.
    #[must_use]
    pub fn connect_with<'x>(
        &self,
        xen: &FakeXen,
        events: EventChannels<&'x FakeXen>,
        clock: Clock<'static>,
    ) -> Store<PolledChannel<'static, &'x FakeXen>> {
        let port = xen.connected_port(0);
        let page = leak_page();
        // SAFETY: a leaked page; the daemon is the other side of the ring in it.
        let twin = unsafe { SharedPage::new(page.base(), page.frame()) };
        let mut inner = self.lock();
        inner.watches.clear();
        inner.transactions.clear();
        inner.connection = Some(Connection {
            requests: Consumer::attach(&twin, REQUESTS),
            replies: Producer::attach(&twin, REPLIES),
            page: twin,
            port,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        });
        drop(inner);
        let daemon = self.clone();
        xen.attach(port, move |xen| daemon.run(xen));
        Store::new(page, PolledChannel::new(events, clock, port))
    }

    /// Sets a node by its absolute path, and fires watches.
    pub fn set(&self, path: &str, value: &str) {
        let mut inner = self.lock();
        inner.nodes.insert(path.into(), value.into());
        inner.changed(path);
    }

    /// Removes a node and all below it, and fires watches.
    pub fn remove(&self, path: &str) {
        let mut inner = self.lock();
        remove_below(&mut inner.nodes, path);
        inner.changed(path);
    }

    /// The value of a node, by its absolute path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<String> {
        let inner = self.lock();
        inner.nodes.get(path).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// Makes the next `count` commits fail with EAGAIN.
    pub fn conflict(&self, count: u32) {
        self.lock().conflicts = count;
    }

    /// Changes every message before it is sent.
    pub fn tamper(&self, tamper: impl FnMut(&mut Header, &mut Vec<u8>) + Send + 'static) {
        self.lock().tamper = Some(Box::new(tamper));
    }

    /// Sends honest messages again.
    pub fn be_honest(&self) {
        self.lock().tamper = None;
    }

    /// Answers nothing any more, or again; requests wait meanwhile.
    pub fn be_silent(&self, silent: bool) {
        self.lock().silent = silent;
    }

    /// Sends `bytes` to the guest as they are.
    pub fn inject(&self, bytes: &[u8]) {
        if let Some(connection) = &mut self.lock().connection {
            connection.outgoing.extend_from_slice(bytes);
        }
    }

    /// The daemon's view of the ring's page.
    ///
    /// # Panics
    /// Where no guest is connected.
    #[must_use]
    pub fn ring(&self) -> SharedPage {
        match &self.lock().connection {
            // SAFETY: a leaked page; the test plays the daemon.
            Some(connection) => unsafe {
                SharedPage::new(connection.page.base(), connection.page.frame())
            },
            None => panic!("no guest is connected to the fake xenstore"),
        }
    }

    /// Calls `hook` after the guest has been served, as a backend that watches the tree.
    pub fn hook(&self, hook: impl FnMut(&Self, &FakeXen) + Send + 'static) {
        self.lock().hooks.push(Arc::new(Mutex::new(hook)));
    }

    /// Serves the guest.
    pub fn run(&self, xen: &FakeXen) {
        {
            let mut inner = self.lock();
            if inner.silent {
                return;
            }
            inner.serve();
        }
        let hooks: Vec<Hook> = self.lock().hooks.clone();
        for hook in hooks {
            if let Ok(mut hook) = hook.try_lock() {
                hook(self, xen);
            }
        }
        let mut inner = self.lock();
        if inner.flush()
            && let Some(connection) = &inner.connection
        {
            let port = connection.port;
            drop(inner);
            xen.raise(port);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl core::fmt::Debug for FakeStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FakeStore").field("nodes", &self.lock().nodes.len()).finish_non_exhaustive()
    }
}

impl Inner {
    fn serve(&mut self) {
        while let Some((header, body)) = self.take_request() {
            self.answer(header, &body);
            self.flush();
        }
    }

    fn take_request(&mut self) -> Option<(Header, Vec<u8>)> {
        let connection = self.connection.as_mut()?;
        let mut chunk = [0; 1024];
        while let Ok(count @ 1..) = connection.requests.read(&connection.page, &mut chunk) {
            connection.incoming.extend_from_slice(&chunk[..count]);
        }
        let header = decode(connection.incoming.first_chunk::<16>()?);
        let end = 16 + header.len as usize;
        if connection.incoming.len() < end {
            return None;
        }
        let body = connection.incoming.drain(..end).skip(16).collect();
        Some((header, body))
    }

    fn answer(&mut self, header: Header, body: &[u8]) {
        let (kind, reply) = match self.handle(header, body) {
            Ok(reply) => (header.kind, reply),
            Err(name) => (message::ERROR, format!("{name}\0").into_bytes()),
        };
        self.send(Header { kind, ..header }, reply);
        if header.kind == message::WATCH
            && let Some((path, token)) = self.watches.last().cloned()
        {
            self.send_watch(&path, &token);
        }
    }

    fn handle(&mut self, header: Header, body: &[u8]) -> Result<Vec<u8>, &'static str> {
        let done = || Ok(b"OK\0".to_vec());
        let mut parts = body.splitn(2, |byte| *byte == 0);
        let path = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let rest = parts.next().unwrap_or_default();
        let full = absolute(&path);
        let transaction = header.transaction_id;
        match header.kind {
            message::READ => self.nodes(transaction)?.get(&full).cloned().ok_or("ENOENT"),
            message::DIRECTORY => {
                let nodes = self.nodes(transaction)?;
                let below = format!("{full}/");
                let mut names: Vec<&str> = nodes
                    .keys()
                    .filter_map(|key| key.strip_prefix(&below))
                    .filter_map(|name| name.split('/').next())
                    .collect();
                names.dedup();
                if names.is_empty() && !nodes.contains_key(&full) {
                    return Err("ENOENT");
                }
                Ok(names.iter().flat_map(|name| format!("{name}\0").into_bytes()).collect())
            }
            message::WRITE => {
                if full.starts_with("/local/domain/0") {
                    return Err("EACCES");
                }
                self.nodes(transaction)?.insert(full.clone(), rest.to_vec());
                self.touched(transaction, full);
                done()
            }
            message::MKDIR => {
                self.nodes(transaction)?.entry(full.clone()).or_default();
                self.touched(transaction, full);
                done()
            }
            message::RM => {
                remove_below(self.nodes(transaction)?, &full);
                self.touched(transaction, full);
                done()
            }
            message::WATCH => {
                let watch = (path, text(rest));
                if self.watches.contains(&watch) {
                    return Err("EEXIST");
                }
                self.watches.push(watch);
                done()
            }
            message::UNWATCH => {
                let watch = (path, text(rest));
                let before = self.watches.len();
                self.watches.retain(|other| *other != watch);
                if self.watches.len() == before { Err("ENOENT") } else { done() }
            }
            message::TRANSACTION_START => {
                self.next_transaction += 1;
                let (nodes, generation) = (self.nodes.clone(), self.generation);
                let pending = Pending { nodes, generation, changed: Vec::new() };
                self.transactions.insert(self.next_transaction, pending);
                Ok(format!("{}\0", self.next_transaction).into_bytes())
            }
            message::TRANSACTION_END => {
                let pending = self.transactions.remove(&transaction).ok_or("ENOENT")?;
                if path != "T" {
                    return done();
                }
                if self.conflicts > 0 || pending.generation != self.generation {
                    self.conflicts = self.conflicts.saturating_sub(1);
                    return Err("EAGAIN");
                }
                self.nodes = pending.nodes;
                for changed in pending.changed {
                    self.changed(&changed);
                }
                done()
            }
            message::GET_DOMAIN_PATH => Ok(format!("/local/domain/{path}\0").into_bytes()),
            _ => Err("ENOSYS"),
        }
    }

    fn nodes(&mut self, transaction: u32) -> Result<&mut BTreeMap<String, Vec<u8>>, &'static str> {
        match transaction {
            0 => Ok(&mut self.nodes),
            id => Ok(&mut self.transactions.get_mut(&id).ok_or("ENOENT")?.nodes),
        }
    }

    fn touched(&mut self, transaction: u32, path: String) {
        match self.transactions.get_mut(&transaction) {
            Some(pending) => pending.changed.push(path),
            None => self.changed(&path),
        }
    }

    fn changed(&mut self, path: &str) {
        self.generation += 1;
        let hit = |watched: &str| {
            let watched = absolute(watched);
            path == watched || path.starts_with(&format!("{watched}/"))
        };
        let fired: Vec<_> = self.watches.iter().filter(|(path, _)| hit(path)).cloned().collect();
        for (_, token) in fired {
            self.send_watch(path, &token);
        }
    }

    fn send_watch(&mut self, path: &str, token: &str) {
        let body = format!("{path}\0{token}\0").into_bytes();
        self.send(Header { kind: message::WATCH_EVENT, ..Header::default() }, body);
    }

    fn send(&mut self, header: Header, mut body: Vec<u8>) {
        let mut header = Header { len: body.len() as u32, ..header };
        if let Some(tamper) = &mut self.tamper {
            tamper(&mut header, &mut body);
        }
        if let Some(connection) = &mut self.connection {
            connection.outgoing.extend_from_slice(&encode(header));
            connection.outgoing.extend_from_slice(&body);
        }
    }

    /// Moves bytes into the ring as far as there is room; returns whether any moved.
    fn flush(&mut self) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        match connection.replies.write(&connection.page, &connection.outgoing) {
            Ok(count) => {
                connection.outgoing.drain(..count);
                count > 0
            }
            Err(_) => false,
        }
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.into() } else { format!("{HOME}/{path}") }
}

fn remove_below(nodes: &mut BTreeMap<String, Vec<u8>>, path: &str) {
    let below = format!("{path}/");
    nodes.retain(|key, _| key != path && !key.starts_with(&below));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}
