//! Tree: a treap of documents whose every node carries the digest of all below it.
//!
//! A node's priority is the hash of its id, so the shape, and with it the root digest, depends on
//! the documents alone and not on the order in which they came.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::ControlFlow;

use blake3::Hash;

use super::proof::{Proof, Side, Step, node_digest};
use crate::document::Document;

type Link = Option<Box<Node>>;

/// Documents by id.
#[derive(Default)]
pub(crate) struct DigestTree {
    root: Link,
}

struct Node {
    document: Document,
    priority: Hash,
    /// Covers the document and both subtrees.
    digest: Hash,
    left: Link,
    right: Link,
}

impl DigestTree {
    /// Adds a document, in place of the one with the same id.
    pub(crate) fn insert(&mut self, document: Document) {
        self.root = Some(insert(self.root.take(), Node::new(document)));
    }

    /// Takes a document out.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Document> {
        remove(&mut self.root, id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Document> {
        let mut link = &self.root;
        loop {
            let node = link.as_deref()?;
            link = match id.cmp(&node.document.id) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some(&node.document),
                Ordering::Greater => &node.right,
            };
        }
    }

    /// The document, for changes that its digest does not cover.
    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut Document> {
        let mut link = &mut self.root;
        loop {
            let node = link.as_deref_mut()?;
            link = match id.cmp(&node.document.id) {
                Ordering::Less => &mut node.left,
                Ordering::Equal => return Some(&mut node.document),
                Ordering::Greater => &mut node.right,
            };
        }
    }

    /// Visits documents in order of id, from `from` on.
    pub(crate) fn visit(
        &self,
        from: &str,
        visitor: &mut dyn FnMut(&Document) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        visit(&self.root, from, visitor)
    }

    /// The digest of everything; zeros for an empty tree.
    pub(crate) fn root(&self) -> Hash {
        digest_of(&self.root)
    }

    pub(crate) fn prove(&self, id: &str) -> Option<Proof> {
        let mut steps = Vec::new();
        let (left, right) = prove(&self.root, id, &mut steps)?;
        Some(Proof { left, right, steps })
    }
}

impl Node {
    fn new(document: Document) -> Box<Self> {
        let priority = blake3::hash(document.id.as_bytes());
        let mut node = Box::new(Self {
            document,
            priority,
            digest: Hash::from_bytes([0; 32]),
            left: None,
            right: None,
        });
        node.seal();
        node
    }

    /// Renews the digest after a change below.
    #[inline(never)]
    fn seal(&mut self) {
        self.digest = node_digest(
            &digest_of(&self.left),
            &self.document.id,
            &self.document.digest,
            &digest_of(&self.right),
        );
    }

    fn outranks(&self, other: &Self) -> bool {
        self.priority.as_bytes() > other.priority.as_bytes()
    }
}

fn digest_of(link: &Link) -> Hash {
    link.as_ref()
        .map_or(Hash::from_bytes([0; 32]), |node| node.digest)
}

fn insert(link: Link, node: Box<Node>) -> Box<Node> {
    let Some(mut root) = link else { return node };
    match node.document.id.cmp(&root.document.id) {
        Ordering::Equal => root.document = node.document,
        Ordering::Less => {
            let left = insert(root.left.take(), node);
            if left.outranks(&root) {
                return rotate_right(root, left);
            }
            root.left = Some(left);
        }
        Ordering::Greater => {
            let right = insert(root.right.take(), node);
            if right.outranks(&root) {
                return rotate_left(root, right);
            }
            root.right = Some(right);
        }
    }
    root.seal();
    root
}

fn rotate_right(mut root: Box<Node>, mut left: Box<Node>) -> Box<Node> {
    root.left = left.right.take();
    root.seal();
    left.right = Some(root);
    left.seal();
    left
}

fn rotate_left(mut root: Box<Node>, mut right: Box<Node>) -> Box<Node> {
    root.right = right.left.take();
    root.seal();
    right.left = Some(root);
    right.seal();
    right
}

fn remove(link: &mut Link, id: &str) -> Option<Document> {
    let node = link.as_deref_mut()?;
    let removed = match id.cmp(&node.document.id) {
        Ordering::Less => remove(&mut node.left, id)?,
        Ordering::Greater => remove(&mut node.right, id)?,
        Ordering::Equal => {
            let node = *link.take()?;
            *link = merge(node.left, node.right);
            return Some(node.document);
        }
    };
    node.seal();
    Some(removed)
}

/// Joins two trees, all ids of the first below all ids of the second.
fn merge(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, tree) | (tree, None) => tree,
        (Some(mut left), Some(mut right)) => {
            if left.outranks(&right) {
                left.right = merge(left.right.take(), Some(right));
                left.seal();
                Some(left)
            } else {
                right.left = merge(Some(left), right.left.take());
                right.seal();
                Some(right)
            }
        }
    }
}

fn visit(
    link: &Link,
    from: &str,
    visitor: &mut dyn FnMut(&Document) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let Some(node) = link else {
        return ControlFlow::Continue(());
    };
    if from <= &*node.document.id {
        visit(&node.left, from, visitor)?;
        visitor(&node.document)?;
    }
    visit(&node.right, from, visitor)
}

/// Gives the digests below the document, and pushes the steps above it from the bottom up.
fn prove(link: &Link, id: &str, steps: &mut Vec<Step>) -> Option<(Hash, Hash)> {
    let node = link.as_ref()?;
    let (below, side, sibling) = match id.cmp(&node.document.id) {
        Ordering::Equal => return Some((digest_of(&node.left), digest_of(&node.right))),
        Ordering::Less => (prove(&node.left, id, steps)?, Side::Left, &node.right),
        Ordering::Greater => (prove(&node.right, id, steps)?, Side::Right, &node.left),
    };
    steps.push(Step {
        side,
        id: node.document.id.as_ref().into(),
        document: node.document.digest,
        sibling: digest_of(sibling),
    });
    Some(below)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Random;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::String;
    use serde_json_alloc::json;

    fn document(id: &str, number: u64) -> Document {
        Document::new(id.into(), json!({ "number": number })).unwrap()
    }

    fn depth(link: &Link) -> usize {
        link.as_ref()
            .map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
    }

    fn assert_sealed(link: &Link) {
        let Some(node) = link else { return };
        let (left, right) = (digest_of(&node.left), digest_of(&node.right));
        let expected = node_digest(&left, &node.document.id, &node.document.digest, &right);
        assert_eq!(node.digest, expected);
        for child in [&node.left, &node.right] {
            assert!(child.as_ref().is_none_or(|child| node.outranks(child)));
            assert_sealed(child);
        }
    }

    #[test]
    fn behaves_as_a_map_and_stays_sealed() {
        let mut random = Random::new(11);
        let mut tree = DigestTree::default();
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        for round in 0..4000 {
            let id = format!("{}", random.below(300));
            if random.chance(40) {
                let removed = tree.remove(&id);
                assert_eq!(removed.is_some(), model.remove(&id).is_some());
            } else {
                tree.insert(document(&id, round));
                model.insert(id, round);
            }
        }
        assert_sealed(&tree.root);
        let mut visited = Vec::new();
        let _ = tree.visit("", &mut |document| {
            visited.push((
                String::from(&*document.id),
                document.value["number"].as_u64().unwrap(),
            ));
            ControlFlow::Continue(())
        });
        assert!(visited.into_iter().eq(model));
    }

    #[test]
    fn the_root_does_not_depend_on_the_order() {
        let (mut up, mut down) = (DigestTree::default(), DigestTree::default());
        for number in 0..200 {
            up.insert(document(&format!("{number}"), number));
        }
        down.insert(document("extra", 0));
        for number in (0..200).rev() {
            down.insert(document(&format!("{number}"), number));
        }
        assert_ne!(up.root(), down.root());
        down.remove("extra").unwrap();
        assert_eq!(up.root(), down.root());
    }

    #[test]
    fn stays_shallow_when_filled_in_order() {
        let mut tree = DigestTree::default();
        for number in 0..1000 {
            tree.insert(document(&format!("{number:04}"), 0));
        }
        assert!(depth(&tree.root) <= 35, "{}", depth(&tree.root));
    }

    #[test]
    fn proofs_lead_to_the_root_and_only_for_the_right_document() {
        let mut tree = DigestTree::default();
        for number in 0..100 {
            tree.insert(document(&format!("{number}"), number));
        }
        for number in 0..100 {
            let id = format!("{number}");
            let proof = tree.prove(&id).unwrap();
            assert_eq!(proof.root(&id, &document(&id, number).digest), tree.root());
            assert_ne!(
                proof.root(&id, &document(&id, number + 1).digest),
                tree.root()
            );
        }
        assert!(tree.prove("absent").is_none());
    }
}
