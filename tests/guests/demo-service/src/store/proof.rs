//! Proofs that a document is under a root digest.

use alloc::string::String;
use alloc::vec::Vec;

use blake3::{Hash, Hasher};
use serde_json_alloc::{Value, json};

use crate::hashing::update_text;

/// The digests beside the way from a document up to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// What lies below the document's own node.
    pub(crate) left: Hash,
    pub(crate) right: Hash,
    /// From the document's parent up to the root.
    pub(crate) steps: Vec<Step>,
}

/// One node on the way up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The side on which we came up.
    pub(crate) side: Side,
    pub(crate) id: String,
    pub(crate) document: Hash,
    /// The digest of the other side.
    pub(crate) sibling: Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Proof {
    /// The root digest that this proof gives for a document.
    #[cfg(test)]
    pub(crate) fn root(&self, id: &str, document: &Hash) -> Hash {
        let own = node_digest(&self.left, id, document, &self.right);
        self.steps.iter().fold(own, |below, step| match step.side {
            Side::Left => node_digest(&below, &step.id, &step.document, &step.sibling),
            Side::Right => node_digest(&step.sibling, &step.id, &step.document, &below),
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let steps: Vec<Value> = self.steps.iter().map(Step::to_json).collect();
        json!({
            "left": self.left.to_hex().as_str(),
            "right": self.right.to_hex().as_str(),
            "steps": steps,
        })
    }
}

impl Step {
    fn to_json(&self) -> Value {
        json!({
            "from": match self.side { Side::Left => "left", Side::Right => "right" },
            "id": self.id,
            "document": self.document.to_hex().as_str(),
            "sibling": self.sibling.to_hex().as_str(),
        })
    }
}

/// The digest of a node of the tree.
pub(crate) fn node_digest(left: &Hash, id: &str, document: &Hash, right: &Hash) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(left.as_bytes());
    update_text(&mut hasher, id);
    hasher.update(document.as_bytes());
    hasher.update(right.as_bytes());
    hasher.finalize()
}
