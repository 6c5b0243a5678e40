//! A tree of stacks with parent pointers, found or inserted in constant time.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use thiserror::Error;

/// A stack, named by its innermost step; [`NodeId::ROOT`] is the empty stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The empty stack, in every tree.
    pub const ROOT: NodeId = NodeId(0);

    /// The place of the node: parents have a smaller one than their children.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// More different stacks than a tree can number (2³² − 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("more than {} different stacks or frames in one profile", u32::MAX)]
pub struct TooManyStacks;

/// Stacks that share their callers. An item is a frame's (or a name's) number.
///
/// Eight bytes a node. Finding nodes again costs four more, and up to twelve for each node that
/// is not its parent's first child; most are: below the callers that stacks share, each goes its
/// own way.
#[derive(Debug, Clone)]
pub struct StackTree {
    /// The root stands for nothing at index 0.
    nodes: Vec<Node>,
    /// By node: its first child, or zero. Shorter than `nodes` after [`StackTree::shrink`].
    first_child: Vec<u32>,
    /// All other children.
    others: HashTable<u32>,
    /// Has secret keys, so that a hostile recording cannot choose stacks that collide.
    hasher: RandomState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    parent: u32,
    item: u32,
}

impl StackTree {
    /// A tree with nothing but the empty stack.
    pub fn new() -> StackTree {
        let root = Node { parent: 0, item: u32::MAX };
        StackTree {
            nodes: vec![root],
            first_child: vec![0],
            others: HashTable::new(),
            hasher: RandomState::new(),
        }
    }

    /// The stack that is `parent` and one `item` deeper; made if it is new.
    pub fn child(&mut self, parent: NodeId, item: u32) -> Result<NodeId, TooManyStacks> {
        if self.first_child.len() != self.nodes.len() {
            self.index_again()?;
        }
        let wanted = Node { parent: parent.0, item };
        let first = self.first_child[parent.index()];
        if first != 0 && self.nodes[first as usize] == wanted {
            return Ok(NodeId(first));
        }
        let next = u32::try_from(self.nodes.len()).ok().ok_or(TooManyStacks)?;
        let at = self.enter(wanted, next);
        if at == next {
            self.nodes.push(wanted);
            self.first_child.push(0);
        }
        Ok(NodeId(at))
    }

    /// How many nodes there are, the root included.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node's caller, or `None` for the root.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        (node != NodeId::ROOT).then(|| NodeId(self.nodes[node.index()].parent))
    }

    /// The node's item, or `None` for the root.
    #[inline]
    pub fn item(&self, node: NodeId) -> Option<u32> {
        (node != NodeId::ROOT).then(|| self.nodes[node.index()].item)
    }

    /// The items from this node to the root's child: innermost first.
    pub fn path(&self, node: NodeId) -> impl Iterator<Item = u32> + '_ {
        let mut at = node.0;
        std::iter::from_fn(move || {
            let Node { parent, item } = self.nodes[at as usize];
            let is_root = std::mem::replace(&mut at, parent) == 0;
            (!is_root).then_some(item)
        })
    }

    /// Every node but the root with its parent and item; parents come before their children.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, NodeId, u32)> + '_ {
        // `child` numbers the nodes with a `u32`.
        self.nodes
            .iter()
            .enumerate()
            .skip(1)
            .map(|(at, n)| (NodeId(at as u32), NodeId(n.parent), n.item))
    }

    /// Gives back the memory that only finding nodes needs; a later [`StackTree::child`] builds
    /// it again.
    pub(crate) fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
        self.first_child = Vec::new();
        self.others = HashTable::new();
    }

    fn index_again(&mut self) -> Result<(), TooManyStacks> {
        self.first_child = vec![0; self.nodes.len()];
        for at in 1..self.nodes.len() {
            let next = u32::try_from(at).map_err(|_| TooManyStacks)?;
            self.enter(self.nodes[at], next);
        }
        Ok(())
    }

    /// The place of a node below its parent: where it is known, or `next` after it was noted.
    fn enter(&mut self, node: Node, next: u32) -> u32 {
        let first = &mut self.first_child[node.parent as usize];
        if *first == 0 {
            *first = next;
            return next;
        }
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let hash = |node: Node| hasher.hash_one((node.parent, node.item));
        let is_same = |at: &u32| nodes[*at as usize] == node;
        let found = self.others.entry(hash(node), is_same, |at| hash(nodes[*at as usize]));
        *found.or_insert(next).get()
    }
}

impl Default for StackTree {
    fn default() -> Self {
        StackTree::new()
    }
}

impl PartialEq for StackTree {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
    }
}

/// The children of nodes, in the order of an array: for walks from the root down.
#[derive(Debug)]
pub struct ChildLists {
    /// `children[first[n]..first[n + 1]]` are the children of node `n`.
    first: Vec<u32>,
    children: Vec<NodeId>,
}

impl ChildLists {
    /// The nodes that are `listed`. Two passes over the tree; eight bytes a node.
    pub fn of(tree: &StackTree, listed: impl Fn(NodeId) -> bool) -> ChildLists {
        let mut first = vec![0_u32; tree.node_count() + 1];
        let all = || tree.iter().filter(|(node, ..)| listed(*node));
        for (_, parent, _) in all() {
            first[parent.index() + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let mut children = vec![NodeId::ROOT; first[tree.node_count()] as usize];
        for (node, parent, _) in all().rev() {
            let end = &mut first[parent.index() + 1];
            *end -= 1;
            children[*end as usize] = node;
        }
        // Every end has walked back to its list's start: shift them into place.
        first.remove(0);
        first.push(children.len() as u32);
        ChildLists { first, children }
    }

    /// In the order of their numbers.
    #[inline]
    pub fn of_node(&self, node: NodeId) -> &[NodeId] {
        &self.children[self.first[node.index()] as usize..self.first[node.index() + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equal_stacks_are_one_node() {
        let mut tree = StackTree::new();
        let a = tree.child(NodeId::ROOT, 1).unwrap();
        let b = tree.child(a, 2).unwrap();
        assert_eq!(tree.child(NodeId::ROOT, 1), Ok(a));
        assert_ne!(tree.child(NodeId::ROOT, 2), Ok(b), "another caller is another stack");
        assert_eq!(tree.path(b).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(tree.parent(NodeId::ROOT), None);
    }

    #[test]
    fn many_nodes_are_found_again_after_the_index_grew_or_was_dropped() {
        let mut tree = StackTree::new();
        let mut last = NodeId::ROOT;
        let nodes: Vec<NodeId> = (0..10_000)
            .map(|i| {
                last = tree.child(if i % 3 == 0 { NodeId::ROOT } else { last }, i).unwrap();
                last
            })
            .collect();
        tree.shrink();
        let len = tree.node_count();
        let mut last = NodeId::ROOT;
        for (i, node) in (0..10_000).zip(nodes) {
            last = tree.child(if i % 3 == 0 { NodeId::ROOT } else { last }, i).unwrap();
            assert_eq!(last, node);
        }
        assert_eq!(tree.node_count(), len);
    }

    #[test]
    fn child_lists_hold_each_node_once_under_its_parent() {
        let mut tree = StackTree::new();
        let a = tree.child(NodeId::ROOT, 1).unwrap();
        let b = tree.child(NodeId::ROOT, 2).unwrap();
        let c = tree.child(a, 3).unwrap();
        let d = tree.child(a, 4).unwrap();
        let lists = ChildLists::of(&tree, |_| true);
        assert_eq!(lists.of_node(NodeId::ROOT), [a, b]);
        assert_eq!(lists.of_node(a), [c, d]);
        assert!(lists.of_node(b).is_empty() && lists.of_node(d).is_empty());
    }
}
