// Stacks merged into a tree. A node comes after its caller; node 0 is the root.

/** A tree of labels with the nodes' callers and callees. */
export class Tree {
  constructor(parent, label) {
    this.parent = parent;
    this.label = label;
    this.length = parent.length;
    this.first = new Int32Array(this.length);
    this.next = new Int32Array(this.length);
    for (let node = this.length - 1; node > 0; node -= 1) {
      this.next[node] = this.first[parent[node]];
      this.first[parent[node]] = node;
    }
  }

  /** From the depths and labels of a walk from the roots. */
  static fromDepths(depths, labels) {
    const parent = new Int32Array(depths.length + 1);
    const label = new Int32Array(depths.length + 1).fill(-1);
    const path = [0];
    for (let at = 0; at < depths.length; at += 1) {
      const depth = depths[at];
      parent[at + 1] = path[depth - 1];
      label[at + 1] = labels[at];
      path[depth] = at + 1;
    }
    return new Tree(parent, label);
  }

  /** By node: whether no caller has the same label. */
  get outermost() {
    if (!this.outermostNodes) {
      const found = new Uint8Array(this.length);
      const active = new Set();
      this.walk(
        (node) => {
          const isNew = !active.has(this.label[node]);
          found[node] = Number(isNew);
          if (isNew) active.add(this.label[node]);
        },
        (node) => {
          if (found[node]) active.delete(this.label[node]);
        },
      );
      this.outermostNodes = found;
    }
    return this.outermostNodes;
  }

  /** Depth first, from the roots' side. */
  walk(enter, leave) {
    let node = this.first[0];
    while (node !== 0) {
      enter(node);
      if (this.first[node] !== 0) {
        node = this.first[node];
        continue;
      }
      leave(node);
      while (node !== 0 && this.next[node] === 0) {
        node = this.parent[node];
        if (node !== 0) leave(node);
      }
      node = this.next[node];
    }
  }

  /** The counts of stacks through each node, from those that end there; of the root, of all that are shown. */
  totals(own) {
    const total = own.slice();
    total[0] = 0;
    for (let node = this.length - 1; node > 0; node -= 1) total[this.parent[node]] += total[node];
    return total;
  }

  /** Each label's own and total counts; a stack counts once for a label. */
  functions(own, total, labels) {
    const sums = { own: new Float64Array(labels), total: new Float64Array(labels) };
    const { outermost } = this;
    for (let node = 1; node < this.length; node += 1) {
      sums.own[this.label[node]] += own[node];
      if (outermost[node]) sums.total[this.label[node]] += total[node];
    }
    return sums;
  }

  /** The count of all stacks that contain a label for which `matches` is not 0. */
  matched(total, matches) {
    const inside = new Uint8Array(this.length);
    let sum = 0;
    for (let node = 1; node < this.length; node += 1) {
      const above = inside[this.parent[node]];
      inside[node] = above || matches[this.label[node]];
      if (!above && inside[node]) sum += total[node];
    }
    return sum;
  }

  /** By node: 1 if it or a caller has the label. */
  below(label) {
    const inside = new Uint8Array(this.length);
    for (let node = 1; node < this.length; node += 1) {
      inside[node] = Number(inside[this.parent[node]] === 1 || this.label[node] === label);
    }
    return inside;
  }

  /** By node: 1 if it is `top` or below it. */
  inside(top) {
    const inside = new Uint8Array(this.length);
    inside[top] = 1;
    for (let node = top + 1; node < this.length; node += 1) inside[node] = inside[this.parent[node]];
    return inside;
  }

  /** Labels from the root's side to the node. */
  path(node) {
    const labels = [];
    for (let at = node; at !== 0; at = this.parent[at]) labels.push(this.label[at]);
    return labels.reverse();
  }
}

/** Builds trees node by node. */
class Builder {
  constructor(labels) {
    this.labels = labels;
    this.parent = [0];
    this.label = [-1];
    this.known = new Map();
  }

  child(parent, label) {
    const key = parent * this.labels + label;
    let node = this.known.get(key);
    if (node === undefined) {
      node = this.parent.length;
      this.known.set(key, node);
      this.parent.push(parent);
      this.label.push(label);
    }
    return node;
  }

  finish() {
    return new Tree(Int32Array.from(this.parent), Int32Array.from(this.label));
  }
}

/**
 * The tree with labels replaced by `rename`; where that gives -1 the frame is left out and its callees are its
 * caller's. With `collapse`, a frame below one of the same label is left out too. `hidden` is the label of stacks of
 * which no frame is left. Also gives each old node's new one.
 */
export function derive(tree, rename, collapse, hidden, labels) {
  const builder = new Builder(labels);
  const to = new Int32Array(tree.length);
  for (let node = 1; node < tree.length; node += 1) {
    const parent = to[tree.parent[node]];
    const label = rename[tree.label[node]];
    if (label === -1) to[node] = parent === 0 ? builder.child(0, hidden) : parent;
    else if (builder.label[parent] === hidden && label !== hidden) to[node] = builder.child(0, label);
    else if (collapse && builder.label[parent] === label) to[node] = parent;
    else to[node] = builder.child(parent, label);
  }
  return { tree: builder.finish(), to };
}

/** Counts of a tree's nodes as those of a derived one. */
export function carry(own, to, length) {
  const carried = new Float64Array(length);
  for (let node = 1; node < own.length; node += 1) carried[to[node]] += own[node];
  return carried;
}

/**
 * What calls a function, from its innermost call in each stack outwards: a tree, and for each old node where stacks that end
 * there are counted; 0 for stacks without the function. The `folded` nodes, from the outermost on, are one with the label
 * `labels`.
 */
export function callers(tree, label, labels, folded = []) {
  const builder = new Builder(labels + 1);
  const isFolded = new Set(folded);
  const to = new Int32Array(tree.length);
  for (let node = 1; node < tree.length; node += 1) {
    to[node] = to[tree.parent[node]];
    if (tree.label[node] !== label) continue;
    to[node] = builder.child(0, label);
    let up = tree.parent[node];
    for (; up !== 0 && !isFolded.has(up); up = tree.parent[up]) to[node] = builder.child(to[node], tree.label[up]);
    if (up !== 0) to[node] = builder.child(to[node], labels);
  }
  return withNodes(builder.finish(), to);
}

/** What a function calls, from its outermost call in each stack inwards, likewise. */
export function callees(tree, label, labels) {
  const builder = new Builder(labels);
  const to = new Int32Array(tree.length);
  for (let node = 1; node < tree.length; node += 1) {
    const above = to[tree.parent[node]];
    if (above !== 0) to[node] = builder.child(above, tree.label[node]);
    else if (tree.label[node] === label) to[node] = builder.child(0, label);
  }
  return withNodes(builder.finish(), to);
}

/** A tree of a part of the stacks, with the nodes that those end in. */
function withNodes(tree, to) {
  const nodes = [];
  for (let node = 1; node < to.length; node += 1) if (to[node] !== 0) nodes.push(node);
  return { tree, to, nodes: Int32Array.from(nodes) };
}

/** Counts carried to such a tree; those of all other stacks are left out. */
export function carryPart(own, { tree, to, nodes }) {
  const carried = new Float64Array(tree.length);
  for (const node of nodes) carried[to[node]] += own[node];
  return carried;
}
