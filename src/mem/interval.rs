//! A tree of ranges whose nodes lie in the things that they stand for: it allocates nothing.
//!
//! A treap (ordered by start, balanced by a hash of the node's address) in which every node knows the largest
//! end below it, so that one walk down finds an overlap.
#![expect(unsafe_code, reason = "the tree links nodes that lie in elements")]

use std::ptr::NonNull;

/// A node of a tree, or one that is being put there: its place is valid, and only the tree reaches it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Linked(NonNull<Node>);

type Link = Option<Linked>;

/// The place of one range.
#[derive(Clone, Copy)]
pub(super) struct Node {
    start: usize,
    end: usize,
    max_end: usize,
    left: Link,
    right: Link,
}

impl Node {
    pub(super) const fn new() -> Node {
        Node {
            start: 0,
            end: 0,
            max_end: 0,
            left: None,
            right: None,
        }
    }
}

/// The tree. It owns nothing.
pub(super) struct IntervalTree {
    root: Link,
}

// SAFETY: the nodes are reached only through `&mut IntervalTree` or `&IntervalTree`, so whoever may use the tree
// may use them; the contract of `insert` keeps everybody else away.
unsafe impl Send for IntervalTree {}

impl Linked {
    /// # Safety
    ///
    /// Until the node was removed from its tree it stays where it is, and only the tree reaches it.
    unsafe fn new(node: NonNull<Node>) -> Linked {
        Linked(node)
    }

    /// Copies the node out: no reference to it is left.
    fn get(self) -> Node {
        // SAFETY: the node is valid, and the tree's alone (`new`); it is written by `set` alone.
        unsafe { self.0.read() }
    }

    fn set(self, node: Node) {
        // SAFETY: as above; `set` runs under `&mut IntervalTree`.
        unsafe { self.0.write(node) }
    }
}

fn max_end(link: Link) -> usize {
    link.map_or(0, |node| node.get().max_end)
}

/// Well mixed, so that the tree is balanced whatever the order of the addresses.
fn priority(node: Linked) -> u64 {
    (node.0.as_ptr() as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn key(node: Linked) -> (usize, usize) {
    (node.get().start, node.0.as_ptr() as usize)
}

/// Makes `node` the parent of the two.
fn adopt(node: Linked, left: Link, right: Link) -> Linked {
    let below = max_end(left).max(max_end(right));
    let Node { start, end, .. } = node.get();
    let max_end = below.max(end);
    node.set(Node {
        start,
        end,
        max_end,
        left,
        right,
    });
    node
}

/// Two trees: of the keys below `at`, and of the others.
fn split(tree: Link, at: (usize, usize)) -> (Link, Link) {
    let Some(node) = tree else {
        return (None, None);
    };
    let Node { left, right, .. } = node.get();
    if key(node) < at {
        let (low, high) = split(right, at);
        (Some(adopt(node, left, low)), high)
    } else {
        let (low, high) = split(left, at);
        (low, Some(adopt(node, high, right)))
    }
}

/// One tree of two; every key of `low` is below every key of `high`.
fn merge(low: Link, high: Link) -> Link {
    let (Some(a), Some(b)) = (low, high) else {
        return low.or(high);
    };
    if priority(a) > priority(b) {
        let Node { left, right, .. } = a.get();
        Some(adopt(a, left, merge(right, high)))
    } else {
        let Node { left, right, .. } = b.get();
        Some(adopt(b, merge(low, left), right))
    }
}

fn insert(tree: Link, new: Linked) -> Linked {
    match tree {
        Some(node) if priority(node) >= priority(new) => {
            let Node { left, right, .. } = node.get();
            if key(new) < key(node) {
                adopt(node, Some(insert(left, new)), right)
            } else {
                adopt(node, left, Some(insert(right, new)))
            }
        }
        _ => {
            let (left, right) = split(tree, key(new));
            adopt(new, left, right)
        }
    }
}

fn remove(tree: Link, old: Linked) -> Link {
    let node = tree.expect("the node is in the tree");
    let Node { left, right, .. } = node.get();
    if node == old {
        merge(left, right)
    } else if key(old) < key(node) {
        Some(adopt(node, remove(left, old), right))
    } else {
        Some(adopt(node, left, remove(right, old)))
    }
}

impl IntervalTree {
    pub(super) const fn new() -> IntervalTree {
        IntervalTree { root: None }
    }

    /// Puts the range `start..end` in.
    ///
    /// # Safety
    ///
    /// The node is in no tree. Until it was removed it stays where it is, and nobody but this tree reaches it.
    pub(super) unsafe fn insert(&mut self, node: NonNull<Node>, start: usize, end: usize) {
        // SAFETY: as the caller promises.
        let node = unsafe { Linked::new(node) };
        node.set(Node {
            start,
            end,
            max_end: end,
            left: None,
            right: None,
        });
        self.root = Some(insert(self.root, node));
    }

    /// Takes it out.
    ///
    /// # Safety
    ///
    /// The node is in this tree.
    pub(super) unsafe fn remove(&mut self, node: NonNull<Node>) {
        // SAFETY: it is in this tree until the call is over.
        let node = unsafe { Linked::new(node) };
        self.root = remove(self.root, node);
    }

    /// Whether a range of the tree shares a byte with `start..end`.
    pub(super) fn overlaps(&self, start: usize, end: usize) -> bool {
        let mut at = self.root;
        while let Some(node) = at {
            let Node {
                start: from,
                end: to,
                left,
                right,
                ..
            } = node.get();
            if from < end && start < to {
                return true;
            }
            // If the left side reaches past `start` and has no overlap, its farthest range begins at or after
            // `end`, and so does everything to the right.
            at = if max_end(left) > start { left } else { right };
        }
        false
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_a_plain_list_finds(steps in proptest::collection::vec((0u8..3, 0usize..40, 0usize..200, 1usize..40), 1..300)) {
            let mut nodes: Vec<Box<Node>> = (0..40).map(|_| Box::new(Node::new())).collect();
            let at: Vec<NonNull<Node>> = nodes.iter_mut().map(|n| NonNull::from(&mut **n)).collect();
            let mut model: Vec<Option<(usize, usize)>> = vec![None; 40];
            let mut tree = IntervalTree::new();
            for (what, i, start, len) in steps {
                match (what, model[i]) {
                    // SAFETY: the model says that node `i` is in no tree, and the boxes stay where they are.
                    (0, None) => { unsafe { tree.insert(at[i], start, start + len) }; model[i] = Some((start, start + len)); }
                    // SAFETY: the model says that node `i` is in the tree.
                    (1, Some(_)) => { unsafe { tree.remove(at[i]) }; model[i] = None; }
                    _ => {}
                }
                let found = model.iter().flatten().any(|&(a, b)| a < start + len && start < b);
                prop_assert_eq!(tree.overlaps(start, start + len), found);
            }
        }
    }

    #[test]
    fn a_thousand_sorted_ranges_stay_shallow() {
        let mut nodes: Vec<Node> = (0..1000).map(|_| Node::new()).collect();
        let mut tree = IntervalTree::new();
        for (i, node) in nodes.iter_mut().enumerate() {
            // SAFETY: each node is put in once; the vector does not move until the tree is gone.
            unsafe { tree.insert(NonNull::from(node), i * 10, i * 10 + 5) };
        }
        fn depth(link: Link) -> usize {
            link.map_or(0, |node| {
                1 + depth(node.get().left).max(depth(node.get().right))
            })
        }
        assert!(depth(tree.root) < 40, "{}", depth(tree.root));
        assert!(tree.overlaps(9994, 9999) && !tree.overlaps(9995, 10_000));
    }
}
