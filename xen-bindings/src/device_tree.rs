//! The device tree that Xen's tools give a guest on aarch64: its address is in x0 at the entry.
//!
//! The tree is checked as a whole before anything of it is used: no bytes cause a panic or a read
//! outside of it.

#![allow(unsafe_code, reason = "the tree lies at an address that Xen names")]

use core::fmt;
use core::ops::Range;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node as _, Property as _};

/// The first word of a tree.
const MAGIC: u32 = 0xd00d_feed;
/// The maximum size of a tree by the boot protocol of arm64, in bytes.
const MAX_SIZE: u32 = 2 << 20;

/// The addresses of the interrupt controller's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// `arm,cortex-a15-gic`: the distributor and the interface of the processor.
    V2 {
        /// The distributor (GICD).
        distributor: u64,
        /// The processor's interface (GICC).
        interface: u64,
    },
    /// `arm,gic-v3`: the distributor and the redistributors, one behind the other.
    V3 {
        /// The distributor (GICD).
        distributor: u64,
        /// The redistributor (GICR) of the first vCPU.
        redistributors: u64,
    },
}

/// Why a tree is not that of a guest of Xen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceTreeError {
    /// There is no tree at the address, or it is too large.
    None,
    /// The tree is not well-formed.
    Malformed(dtoolkit::error::FdtParseError),
    /// The tree has no such node or property.
    Missing(&'static str),
}

impl fmt::Display for DeviceTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "no device tree of at most {MAX_SIZE} bytes"),
            Self::Malformed(error) => write!(f, "malformed device tree: {error}"),
            Self::Missing(what) => write!(f, "the device tree has no {what}"),
        }
    }
}

impl core::error::Error for DeviceTreeError {}

/// The device tree of a guest of Xen.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTree<'a>(Fdt<'a>);

impl<'a> DeviceTree<'a> {
    /// The tree at `address`, which memory maps one to one.
    ///
    /// # Safety
    /// `address` is the value of x0 at the entry: memory that holds a tree, or begins otherwise. It
    /// is not written while the result is used.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub unsafe fn read(address: u64) -> Result<Self, DeviceTreeError> {
        let start = core::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the caller's contract: two words are there, and behind the first word of a tree
        // its size.
        let [magic, size] = unsafe { start.cast::<[u32; 2]>().read_unaligned() }.map(u32::from_be);
        if magic != MAGIC || size > MAX_SIZE {
            return Err(DeviceTreeError::None);
        }
        // SAFETY: as above.
        Self::parse(unsafe { core::slice::from_raw_parts(start, size as usize) })
    }

    /// The tree of these bytes.
    ///
    /// # Errors
    /// If the bytes are not one well-formed tree, or it is not a guest's of Xen.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DeviceTreeError> {
        let tree = Self(Fdt::new(bytes).map_err(DeviceTreeError::Malformed)?);
        tree.compatible(&["xen,xen"]).map(|_| tree).ok_or(DeviceTreeError::Missing("Xen"))
    }

    /// The command line; empty if there is none.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn command_line(&self) -> Result<&'a str, DeviceTreeError> {
        let chosen = self.0.root().children().find(|it| it.name() == "chosen");
        let Some(arguments) = chosen.and_then(|chosen| chosen.property("bootargs")) else {
            return Ok("");
        };
        let missing = DeviceTreeError::Missing("command line in UTF-8");
        arguments.value_as::<&str>().map_err(|_| missing)
    }

    /// The guest's memory: guest-physical addresses.
    pub fn memory(&self) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let nodes = self.0.root().children();
        let nodes = nodes.filter(|node| node.name_without_address() == "memory");
        nodes.flat_map(regions).map(|[start, size]| start..start.saturating_add(size))
    }

    /// The interrupt controller.
    ///
    /// # Errors
    /// If there is none of version 2 or 3.
    pub fn interrupt_controller(&self) -> Result<Registers, DeviceTreeError> {
        let addresses = |names: &[&str]| {
            let mut regions = regions(self.compatible(names)?);
            let mut next = || regions.next().map(|[start, _]| start);
            Some((next()?, next()?))
        };
        if let Some((distributor, redistributors)) = addresses(&["arm,gic-v3"]) {
            return Ok(Registers::V3 { distributor, redistributors });
        }
        let version_2 = addresses(&["arm,cortex-a15-gic", "arm,gic-400"]);
        let (distributor, interface) =
            version_2.ok_or(DeviceTreeError::Missing("interrupt controller"))?;
        Ok(Registers::V2 { distributor, interface })
    }

    /// The first node below the root that is compatible with one of `names`.
    fn compatible(&self, names: &[&str]) -> Option<FdtNode<'a>> {
        let is_one = |node: &FdtNode<'a>| {
            let of_node = node.compatible();
            of_node.is_some_and(|mut of_node| of_node.any(|name| names.contains(&name)))
        };
        self.0.root().children().find(is_one)
    }
}

/// The addresses and sizes in a node's property `reg`, as far as they are 64-bit numbers.
fn regions<'a>(node: FdtNode<'a>) -> impl Iterator<Item = [u64; 2]> + use<'a> {
    let regions = node.reg().ok().flatten();
    regions
        .into_iter()
        .flatten()
        .map_while(|region| Some([region.address().ok()?, region.size().ok()?]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtoolkit::model::{DeviceTree as Model, DeviceTreeNode, DeviceTreeProperty};

    use super::*;

    fn node(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
        let mut node = DeviceTreeNode::builder(name).unwrap();
        for (name, value) in properties {
            node = node.property(DeviceTreeProperty::new(*name, *value).unwrap());
        }
        node.build()
    }

    fn cells(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
    }

    /// As Xen's tools make it, with a controller of this version.
    fn tree(version: u32) -> Vec<u8> {
        let controller: &[u8] = match version {
            2 => b"arm,cortex-a15-gic\0",
            _ => b"arm,gic-v3\0",
        };
        let mut model = Model::new();
        let two = 2_u32.to_be_bytes();
        model.root = node("", &[("#address-cells", &two), ("#size-cells", &two)]);
        let memory = cells(&[0x4000_0000, 0x400_0000]);
        let registers = cells(&[0x300_1000, 0x1000, 0x300_2000, 0x1000]);
        let children = [
            node("chosen", &[("bootargs", b"load=50 ip=xenstore\0")]),
            node("memory@40000000", &[("reg", &memory)]),
            node(
                "interrupt-controller@3001000",
                &[("compatible", controller), ("reg", &registers)],
            ),
            node("hypervisor", &[("compatible", b"xen,xen-4.17\0xen,xen\0"), ("reg", &memory)]),
        ];
        children.into_iter().for_each(|child| model.root.add_child(child));
        model.to_dtb()
    }

    #[test]
    fn a_guests_tree_is_read() {
        let bytes = tree(3);
        let tree_3 = DeviceTree::parse(&bytes).unwrap();
        assert_eq!(tree_3.command_line().unwrap(), "load=50 ip=xenstore");
        let mut memory = tree_3.memory();
        assert_eq!(memory.next(), Some(0x4000_0000..0x4400_0000));
        assert_eq!(memory.next(), None);
        let [distributor, other] = [0x300_1000, 0x300_2000];
        let version_3 = Registers::V3 { distributor, redistributors: other };
        assert_eq!(tree_3.interrupt_controller().unwrap(), version_3);
        let version_2 = Registers::V2 { distributor, interface: other };
        let bytes = tree(2);
        let tree_2 = DeviceTree::parse(&bytes).unwrap();
        assert_eq!(tree_2.interrupt_controller().unwrap(), version_2);
        // SAFETY: the bytes hold a tree.
        let read = unsafe { DeviceTree::read(bytes.as_ptr().expose_provenance() as u64) };
        assert_eq!(read.unwrap().interrupt_controller().unwrap(), version_2);
    }

    #[test]
    fn what_is_no_tree_of_a_guest_of_xen_is_told() {
        let mut bytes = tree(3);
        let at = bytes.windows(8).rposition(|it| it == b"xen,xen\0").unwrap();
        bytes[at] = b'b';
        let error = DeviceTree::parse(&bytes).unwrap_err();
        assert_eq!(error, DeviceTreeError::Missing("Xen"));
        bytes[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        for first in [0xd0, 0] {
            bytes[0] = first;
            // SAFETY: the bytes are longer than two words, and no more is read if the size is too
            // large.
            let read = unsafe { DeviceTree::read(bytes.as_ptr().expose_provenance() as u64) };
            assert_eq!(read.unwrap_err(), DeviceTreeError::None);
        }
    }

    /// Guards against a panic, and a read outside of the bytes, for any of them: cut trees, and
    /// trees with some words or bytes replaced, those of lengths, offsets, tokens and cells among
    /// them.
    #[test]
    fn no_bytes_panic() {
        let whole = tree(3);
        let look = |bytes: &[u8]| {
            let Ok(tree) = DeviceTree::parse(bytes) else {
                return false;
            };
            let _ = (tree.command_line(), tree.interrupt_controller());
            tree.memory().count();
            true
        };
        (0..whole.len()).for_each(|length| assert!(!look(&whole[..length]), "{length}"));
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % below
        };
        let mut accepted = 0;
        const TRIES: usize = 100_000;
        for _ in 0..TRIES {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let word = random(bytes.len() / 4) * 4;
                let value = [0, 1, 2, 3, 4, 9, 8 * random(64) as u32, u32::MAX][random(8)];
                match random(2) {
                    0 => bytes[word..word + 4].copy_from_slice(&value.to_be_bytes()),
                    _ => bytes[word + random(4)] = random(256) as u8,
                }
            }
            accepted += usize::from(look(&bytes));
        }
        // Both were tried: trees that are refused, and strange ones that are not.
        assert!((TRIES / 20..TRIES).contains(&accepted), "{accepted}");
    }
}
