//! A tree of ranges that allocates nothing: its nodes lie in the elements that have these ranges.
//!
//! An AVL tree, ordered by start, in which every node knows the largest end below it, so that one
//! walk down finds an overlap. Its height is at most 1.45 times the logarithm of how many ranges it
//! has, in whatever order they come and go. No function is recursive.
#![expect(unsafe_code, reason = "the tree links nodes that lie in elements")]

use std::ptr::NonNull;

use arrayvec::ArrayVec;

/// A node of a tree, or one that is being inserted: its address is valid, and only the tree reaches
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Linked(NonNull<Node>);

type Link = Option<Linked>;

/// The nodes from the root down to a link of the tree. A tree of this height has more nodes than
/// memory has bytes.
type Path = ArrayVec<Linked, 96>;

/// The node of one range.
#[derive(Clone, Copy)]
pub(super) struct Node {
    start: usize,
    end: usize,
    max_end: usize,
    left: Link,
    right: Link,
    /// The height of the tree below this node, with the node itself.
    height: u32,
}

impl Node {
    pub(super) const fn new() -> Node {
        Node {
            start: 0,
            end: 0,
            max_end: 0,
            left: None,
            right: None,
            height: 0,
        }
    }
}

/// The tree. It does not own its nodes.
pub(super) struct IntervalTree {
    root: Link,
}

// SAFETY: the nodes are reached only through `&mut IntervalTree` or `&IntervalTree`, so a thread
// that may use the tree may use them; the contract of `insert` keeps all other code away.
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
        // SAFETY: the node is valid, and the tree's alone (`new`); it is written by `with` alone.
        unsafe { self.0.read() }
    }

    fn with(self, change: impl FnOnce(&mut Node)) {
        let mut node = self.get();
        change(&mut node);
        // SAFETY: as above; `with` runs under `&mut IntervalTree`.
        unsafe { self.0.write(node) }
    }
}

fn max_end(link: Link) -> usize {
    link.map_or(0, |node| node.get().max_end)
}

fn height(link: Link) -> u32 {
    link.map_or(0, |node| node.get().height)
}

fn key(node: Linked) -> (usize, usize) {
    (node.get().start, node.0.as_ptr() as usize)
}

/// Recomputes a node's height and largest end from its children, which are up to date.
fn update(node: Linked) {
    let Node { left, right, .. } = node.get();
    let below = max_end(left).max(max_end(right));
    let height = 1 + height(left).max(height(right));
    node.with(|node| {
        node.max_end = below.max(node.end);
        node.height = height;
    });
}

/// Makes the right child the parent, and returns it.
fn rotate_left(node: Linked, right: Linked) -> Linked {
    let between = right.get().left;
    node.with(|node| node.right = between);
    update(node);
    right.with(|right| right.left = Some(node));
    update(right);
    right
}

/// Makes the left child the parent, and returns it.
fn rotate_right(node: Linked, left: Linked) -> Linked {
    let between = left.get().right;
    node.with(|node| node.left = between);
    update(node);
    left.with(|left| left.right = Some(node));
    update(left);
    left
}

/// Balances a tree whose two sides are balanced, and differ by at most two in height. Returns its
/// root.
fn balance(node: Linked) -> Linked {
    update(node);
    let Node { left, right, .. } = node.get();
    match (left, right) {
        (Some(left), _) if height(Some(left)) > height(right) + 1 => {
            let Node {
                left: outer,
                right: inner,
                ..
            } = left.get();
            let left = match inner {
                Some(inner) if height(Some(inner)) > height(outer) => rotate_left(left, inner),
                _ => left,
            };
            rotate_right(node, left)
        }
        (_, Some(right)) if height(Some(right)) > height(left) + 1 => {
            let Node {
                left: inner,
                right: outer,
                ..
            } = right.get();
            let right = match inner {
                Some(inner) if height(Some(inner)) > height(outer) => rotate_right(right, inner),
                _ => right,
            };
            rotate_left(node, right)
        }
        _ => node,
    }
}

impl IntervalTree {
    pub(super) const fn new() -> IntervalTree {
        IntervalTree { root: None }
    }

    /// Replaces `old` by `new` in the parent, or as the root if there is no parent.
    fn relink(&mut self, parent: Link, old: Linked, new: Link) {
        match parent {
            None => self.root = new,
            Some(parent) => parent.with(|parent| match parent.left == Some(old) {
                true => parent.left = new,
                false => parent.right = new,
            }),
        }
    }

    /// Balances the nodes of a path, from its end up to the root.
    fn balance_up(&mut self, mut path: Path) {
        while let Some(node) = path.pop() {
            let top = balance(node);
            if top != node {
                self.relink(path.last().copied(), node, Some(top));
            }
        }
    }

    /// Inserts the range `start..end`.
    ///
    /// # Safety
    ///
    /// The node is in no tree. Until it was removed it stays where it is, and only this tree
    /// reaches it.
    pub(super) unsafe fn insert(&mut self, new: NonNull<Node>, start: usize, end: usize) {
        // SAFETY: as the caller promises.
        let new = unsafe { Linked::new(new) };
        new.with(|node| {
            *node = Node {
                start,
                end,
                max_end: end,
                left: None,
                right: None,
                height: 1,
            }
        });
        let mut path = Path::new();
        let mut at = self.root;
        let mut is_left = false;
        while let Some(node) = at {
            path.push(node);
            is_left = key(new) < key(node);
            let Node { left, right, .. } = node.get();
            at = if is_left { left } else { right };
        }
        match path.last() {
            None => self.root = Some(new),
            Some(&parent) => parent.with(|parent| match is_left {
                true => parent.left = Some(new),
                false => parent.right = Some(new),
            }),
        }
        self.balance_up(path);
    }

    /// Removes a node.
    ///
    /// # Safety
    ///
    /// The node is in this tree.
    pub(super) unsafe fn remove(&mut self, old: NonNull<Node>) {
        // SAFETY: it is in this tree until the call has completed.
        let old = unsafe { Linked::new(old) };
        let mut path = Path::new();
        let mut at = self.root;
        while let Some(node) = at.filter(|node| *node != old) {
            path.push(node);
            let Node { left, right, .. } = node.get();
            at = if key(old) < key(node) { left } else { right };
        }
        let parent = path.last().copied();
        let Node { left, right, .. } = old.get();
        match (left, right) {
            (Some(_), Some(right)) => {
                // The next node in the order replaces the removed one.
                let place = path.len();
                path.push(old);
                let mut next = right;
                while let Some(before) = next.get().left {
                    path.push(next);
                    next = before;
                }
                if next != right {
                    let last = path.last().copied();
                    self.relink(last, next, next.get().right);
                    next.with(|next| next.right = Some(right));
                }
                next.with(|next| next.left = left);
                self.relink(parent, old, Some(next));
                path[place] = next;
            }
            (one, other) => self.relink(parent, old, one.or(other)),
        }
        self.balance_up(path);
    }

    /// Returns true if a range of the tree shares a byte with `start..end`.
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
            // If the left side reaches past `start` and has no overlap, its farthest range begins
            // at or after `end`, and so does everything to the right.
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
                    // SAFETY: the model says that node `i` is in no tree, and the boxes stay where
                    // they are.
                    (0, None) => { unsafe { tree.insert(at[i], start, start + len) }; model[i] = Some((start, start + len)); }
                    // SAFETY: the model says that node `i` is in the tree.
                    (1, Some(_)) => { unsafe { tree.remove(at[i]) }; model[i] = None; }
                    _ => {}
                }
                let found = model.iter().flatten().any(|&(a, b)| a < start + len && start < b);
                prop_assert_eq!(tree.overlaps(start, start + len), found);
                checked(tree.root);
            }
        }
    }

    /// Returns the height. Asserts that the heights of every node's sides differ by at most one.
    fn checked(link: Link) -> u32 {
        let Some(node) = link else { return 0 };
        let Node { left, right, .. } = node.get();
        let (low, high) = (checked(left), checked(right));
        assert!(low.abs_diff(high) <= 1, "{low} and {high}");
        assert_eq!(node.get().height, 1 + low.max(high));
        assert_eq!(
            node.get().max_end,
            node.get().end.max(max_end(left)).max(max_end(right))
        );
        1 + low.max(high)
    }

    /// Returns a hash of the node's address. A caller that knows the hash can add nodes sorted by
    /// it.
    fn hash(node: &Node) -> u64 {
        (std::ptr::from_ref(node) as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn it_stays_shallow_in_whatever_order_ranges_come_and_go() {
        const MANY: usize = 20_000;
        let mut nodes: Vec<Node> = (0..MANY).map(|_| Node::new()).collect();
        let sorted: Vec<usize> = (0..MANY).collect();
        let mut hashed = sorted.clone();
        hashed.sort_by_key(|&at| hash(&nodes[at]));
        let start = nodes.as_mut_ptr();
        let reversed = sorted.iter().rev().copied().collect();
        for order in [sorted, reversed, hashed] {
            let mut tree = IntervalTree::new();
            let node = |number: usize| {
                // SAFETY: within the vector, which does not move until the tree is gone.
                NonNull::new(unsafe { start.add(order[number]) }).unwrap()
            };
            for number in 0..MANY {
                // SAFETY: each node is put in once.
                unsafe { tree.insert(node(number), number * 10, number * 10 + 5) };
            }
            assert!(checked(tree.root) <= 1 + 144 * MANY.ilog2() / 100);
            assert!(tree.overlaps(9994, 9999) && !tree.overlaps(9995, 10_000));
            for number in (0..MANY).filter(|number| number % 64 != 7) {
                // SAFETY: it was put in.
                unsafe { tree.remove(node(number)) };
            }
            assert!(checked(tree.root) <= 1 + 144 * (MANY / 64).ilog2() / 100);
            assert!(tree.overlaps(70, 71) && !tree.overlaps(80, 700));
        }
    }
}
