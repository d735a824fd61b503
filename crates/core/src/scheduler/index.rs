//! An index of ready requests by their amounts. It finds the requests that fit on a worker without
//! scanning all of them.
//!
//! The index is a tree of request variants. The path from the root first determines the weight,
//! then the set of resources, and then each amount with increasing precision. A node is therefore a
//! box that contains the requests below it. If the lower corner of a box does not fit, a search
//! skips the whole box. The upper corner bounds the value of the requests in the box. A search
//! visits the most urgent requests first, and the most valuable ones among these. It costs O(found
//! × depth) if requests differ in one or two amounts. In other cases, a limit on its steps bounds
//! the cost.
//!
//! The index contains neither task counts nor workers. The caller skips requests that are no longer
//! ready.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::pack::{Bin, SHARE_UNIT, value_of, weights_of_shares};
use crate::class::{Class, Demand, Offer, QueueKey, ResourceId, VariantDemand};

/// The number of requests at which a leaf is split. A linear scan of fewer requests is fast.
const LEAF_MAX: usize = 32;
/// The maximum depth of the tree. Amounts are exact long before that, unless a request names dozens
/// of resources.
const PATH_MAX: usize = 64;
/// The number of bits of an amount that each step determines.
const BITS_PER_STEP: u32 = 4;

/// A property that distinguishes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dimension {
    Weight,
    /// The requested units of a resource.
    Units(ResourceId),
    /// A request for the whole pool of a resource.
    Whole(ResourceId),
    /// The minimum remaining lifetime of the worker.
    Time,
}

/// The inclusive range of one dimension within a node.
#[derive(Clone, Copy, Debug)]
struct Range {
    dimension: Dimension,
    least: u64,
    most: u64,
}

/// A step from a node to its child.
#[derive(Clone, Copy, Debug)]
struct Step {
    digit: u64,
    /// The range that the step narrows, or `None` if the step completes the set of resources.
    range: Option<Range>,
    /// Whether the digit stands for the next resource or for the end of the set.
    names_resource: bool,
}

/// The digit for the end of the set of resources. The digit for a resource is twice its number,
/// plus one if the request takes the whole pool.
const LAST_RESOURCE: u64 = u64::MAX;

type Requests = BTreeMap<(QueueKey, u32), Arc<Class>>;

#[derive(Clone, Debug)]
enum Body {
    Leaf(Requests),
    Inner {
        children: BTreeMap<u64, Node>,
        /// Whether the digits of the children name resources.
        by_resource: bool,
    },
}

#[derive(Clone, Debug)]
struct Node {
    ranges: Box<[Range]>,
    /// Whether the set of resources in `ranges` is complete.
    is_named: bool,
    /// The number of requests of each priority.
    priorities: BTreeMap<Reverse<i32>, u32>,
    /// The total number of requests.
    len: u32,
    body: Body,
}

/// An index of ready requests by their amounts.
#[derive(Clone, Debug)]
pub(crate) struct RequestIndex {
    root: Node,
    known: BTreeSet<QueueKey>,
    /// For each resource, the total number of units that the first variants of all requests take,
    /// and the number of requests for the whole resource.
    asked: BTreeMap<ResourceId, (u128, u64)>,
}

impl Default for RequestIndex {
    fn default() -> Self {
        Self {
            root: Node::empty(Box::default(), false),
            known: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }
}

impl RequestIndex {
    /// Adds a queue, unless it is already present.
    pub(super) fn insert(&mut self, key: QueueKey, class: &Arc<Class>) {
        if !self.known.insert(key) {
            return;
        }
        self.count_asked(class, true);
        for (variant, number) in class.variants.iter().zip(0_u32..) {
            // Multi-node tasks take whole workers, so their amounts do not matter.
            if variant.n_nodes == 0 {
                self.insert_variant((key, number), variant, class);
            }
        }
    }

    /// Removes a queue, if it is present.
    pub(super) fn remove(&mut self, key: QueueKey, class: &Class) {
        if !self.known.remove(&key) {
            return;
        }
        self.count_asked(class, false);
        for (variant, number) in class.variants.iter().zip(0_u32..) {
            // Only single-node variants were added.
            if variant.n_nodes == 0 {
                self.remove_variant((key, number), variant);
            }
        }
    }

    /// Returns the weight of a share of each resource. The result is that of
    /// [`super::pack::resource_weights`] with the same number of tasks for each request.
    pub(super) fn resource_weights(&self, offers: &[Offer]) -> Vec<u64> {
        let shares = offers.iter().zip(0..).map(|(offer, number)| {
            let asked = self.asked.get(&ResourceId(number)).copied();
            let (units, wholes) = asked.unwrap_or_default();
            // The worker may not have this resource, so the divisor could be 0.
            let share = units.saturating_mul(SHARE_UNIT.into()) / u128::from(offer.units.max(1));
            let wholes = wholes.saturating_mul(SHARE_UNIT);
            u64::try_from(share)
                .unwrap_or(u64::MAX)
                .saturating_add(wholes)
        });
        weights_of_shares(shares.collect())
    }

    /// Converts the index to a form that can be freed in steps.
    pub(super) fn into_deferred_free(self) -> DeferredFree {
        DeferredFree {
            nodes: vec![self.root],
            known: self.known,
        }
    }

    fn count_asked(&mut self, class: &Class, is_more: bool) {
        // The first variant is preferred and represents the request.
        for demand in class.variants.first().iter().flat_map(|v| &v.demands) {
            let (units, wholes) = self.asked.entry(demand.resource).or_default();
            let count = u64::from(demand.units.is_none());
            let more = u128::from(demand.units.unwrap_or(0));
            if is_more {
                (*units, *wholes) = (units.saturating_add(more), *wholes + count);
            } else {
                (*units, *wholes) = (units.saturating_sub(more), wholes.saturating_sub(count));
            }
        }
    }

    fn insert_variant(&mut self, at: (QueueKey, u32), demand: &VariantDemand, class: &Arc<Class>) {
        let path = path(demand);
        let mut node = &mut self.root;
        let mut depth = 0;
        loop {
            node.count_priority(at.0.priority);
            // All requests at the end of a path are equal, so they stay in one leaf.
            if depth < path.len() {
                node.branch_if_full(depth);
            }
            match &mut node.body {
                Body::Leaf(requests) => {
                    requests.insert(at, Arc::clone(class));
                    return;
                }
                Body::Inner { children, .. } => {
                    let step = path[depth];
                    let (ranges, is_named) = (&node.ranges, node.is_named);
                    let child = children.entry(step.digit);
                    node = child.or_insert_with(|| Node::below(ranges, is_named, step));
                    depth += 1;
                }
            }
        }
    }

    fn remove_variant(&mut self, at: (QueueKey, u32), demand: &VariantDemand) {
        let path = path(demand);
        let mut node = &mut self.root;
        for step in path.into_iter().map(Some).chain([None]) {
            node.forget_priority(at.0.priority);
            match (&mut node.body, step) {
                (Body::Leaf(requests), _) => {
                    requests.remove(&at);
                    return;
                }
                (Body::Inner { children, .. }, Some(step)) => {
                    // Removing the last request of a child removes the child, so that searches do
                    // not visit empty boxes.
                    if children.get(&step.digit).is_none_or(|node| node.len <= 1) {
                        children.remove(&step.digit);
                        return;
                    }
                    let Some(child) = children.get_mut(&step.digit) else {
                        return;
                    };
                    node = child;
                }
                (Body::Inner { .. }, None) => return,
            }
        }
    }
}

/// The remains of an index that is no longer needed.
#[derive(Clone, Debug)]
pub(super) struct DeferredFree {
    nodes: Vec<Node>,
    known: BTreeSet<QueueKey>,
}

impl DeferredFree {
    /// Frees up to `left` requests. Returns whether all of them have been freed.
    pub(super) fn free(&mut self, left: &mut usize) -> bool {
        while *left > 0
            && let Some(node) = self.nodes.pop()
        {
            *left -= 1;
            match node.body {
                // Depth first, so that the list of nodes stays short.
                Body::Inner { children, .. } => self.nodes.extend(children.into_values()),
                Body::Leaf(mut requests) => {
                    while *left > 0 && requests.pop_first().is_some() {
                        *left -= 1;
                    }
                    if !requests.is_empty() {
                        let body = Body::Leaf(requests);
                        self.nodes.push(Node {
                            body,
                            ..Node::empty(Box::default(), false)
                        });
                    }
                }
            }
        }
        while *left > 0 && self.known.pop_first().is_some() {
            *left -= 1;
        }
        self.nodes.is_empty() && self.known.is_empty()
    }
}

impl Node {
    fn empty(ranges: Box<[Range]>, is_named: bool) -> Self {
        Self {
            ranges,
            is_named,
            priorities: BTreeMap::new(),
            len: 0,
            body: Body::Leaf(Requests::new()),
        }
    }

    /// Creates a child without requests.
    fn below(ranges: &[Range], is_named: bool, step: Step) -> Self {
        let mut ranges = ranges.to_vec();
        if let Some(range) = step.range {
            let known = ranges
                .iter_mut()
                .find(|known| known.dimension == range.dimension);
            match known {
                // Each digit narrows a dimension further, so only its last range matters.
                Some(known) => *known = range,
                None => ranges.push(range),
            }
        }
        Self::empty(ranges.into(), is_named || step.range.is_none())
    }

    fn count_priority(&mut self, priority: Reverse<i32>) {
        *self.priorities.entry(priority).or_default() += 1;
        self.len += 1;
    }

    fn forget_priority(&mut self, priority: Reverse<i32>) {
        if let Some(count) = self.priorities.get_mut(&priority) {
            self.len -= 1;
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&priority);
            }
        }
    }

    /// Turns a full leaf into a node with children.
    fn branch_if_full(&mut self, depth: usize) {
        let Body::Leaf(requests) = &mut self.body else {
            return;
        };
        // A linear scan of a few requests is faster than a tree.
        if requests.len() < LEAF_MAX {
            return;
        }
        let requests = std::mem::take(requests);
        let mut children: BTreeMap<u64, Self> = BTreeMap::new();
        let mut by_resource = false;
        for (at, class) in requests {
            let variant = class.variants.get(at.1 as usize);
            let Some(step) = variant.and_then(|variant| path(variant).get(depth).copied()) else {
                continue;
            };
            by_resource = step.names_resource;
            let child = children
                .entry(step.digit)
                .or_insert_with(|| Self::below(&self.ranges, self.is_named, step));
            child.count_priority(at.0.priority);
            if let Body::Leaf(requests) = &mut child.body {
                requests.insert(at, class);
            }
        }
        self.body = Body::Inner {
            children,
            by_resource,
        };
    }

    /// Returns whether the lower corner of the box fits.
    fn may_fit(&self, view: &View<'_>) -> bool {
        self.ranges.iter().all(|range| match range.dimension {
            Dimension::Weight => true,
            Dimension::Units(resource) => view.available(resource) >= range.least.max(1),
            Dimension::Whole(resource) => {
                let total = view.total(resource);
                total > 0 && view.available(resource) == total
            }
            Dimension::Time => range.least <= view.time_left_ns,
        })
    }

    /// Returns an upper bound on the value of the requests in this box.
    fn value_max(&self, view: &View<'_>) -> u64 {
        let mut weight = u64::from(u32::MAX);
        let mut share = 0_u64;
        for range in &self.ranges {
            let units = match range.dimension {
                Dimension::Weight => {
                    weight = range.most;
                    continue;
                }
                Dimension::Time => continue,
                Dimension::Units(resource) => (resource, range.most.min(view.available(resource))),
                Dimension::Whole(resource) => (resource, view.total(resource)),
            };
            // Until the set is complete, other resources may add any share. They are counted below.
            if self.is_named {
                share = share.saturating_add(view.share(units.0, units.1));
            }
        }
        // A request may take everything that is free.
        if !self.is_named {
            let all = (0..view.bin.offers.len()).map(|slot| {
                let resource = ResourceId(u32::try_from(slot).unwrap_or(u32::MAX));
                view.share(resource, view.available(resource))
            });
            share = all.fold(0, u64::saturating_add);
        }
        value_of(share).saturating_mul(weight).max(1)
    }
}

/// The properties of a worker that a search needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'v> {
    /// The resources, the available amounts, and the weights of shares.
    pub(super) bin: Bin<'v>,
    /// The remaining lifetime of the worker.
    pub(super) time_left_ns: u64,
}

impl View<'_> {
    fn available(&self, resource: ResourceId) -> u64 {
        let units = self.bin.available.get(resource.0 as usize).copied();
        u64::try_from(units.unwrap_or(0)).unwrap_or(0)
    }

    fn total(&self, resource: ResourceId) -> u64 {
        let offer = self.bin.offers.get(resource.0 as usize);
        offer.map_or(0, |offer| offer.units)
    }

    fn share(&self, resource: ResourceId, units: u64) -> u64 {
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        self.bin.share(resource.0 as usize, units)
    }
}

/// The order of requests: by priority, then by value, then by age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    priority: i32,
    value: u64,
    class: Reverse<u32>,
}

/// A work item of a search.
#[derive(Clone, Debug)]
enum Item<'i> {
    /// A node, or the part of a leaf that follows the given request.
    Node(&'i Node, Option<(QueueKey, u32)>),
    Request(QueueKey, u32, &'i Arc<Class>),
}

#[derive(Clone, Debug)]
struct Ranked<'i>(Rank, Item<'i>);

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Ranked<'_> {}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// A search for requests that fit. The available amounts may decrease between calls of
/// [`Search::next`].
#[derive(Clone, Debug)]
pub(super) struct Search<'i> {
    heap: BinaryHeap<Ranked<'i>>,
}

impl<'i> Search<'i> {
    pub(super) fn new(index: &'i RequestIndex) -> Self {
        let mut heap = BinaryHeap::new();
        let first = index.root.priorities.first_key_value();
        if let Some((priority, _)) = first {
            let rank = Rank {
                priority: priority.0,
                value: u64::MAX,
                class: Reverse(0),
            };
            heap.push(Ranked(rank, Item::Node(&index.root, None)));
        }
        Self { heap }
    }

    /// Returns the next request that may fit and its variant. Returns `None` if there are no more,
    /// or if the steps are used up. The caller checks whether fractions of items fit.
    pub(super) fn next(
        &mut self,
        view: &View<'_>,
        steps: &mut u32,
    ) -> Option<(QueueKey, u32, &'i Arc<Class>)> {
        while *steps > 0 {
            let Ranked(_, item) = self.heap.pop()?;
            *steps -= 1;
            match item {
                Item::Request(key, number, class) => return Some((key, number, class)),
                Item::Node(node, after) if node.may_fit(view) => {
                    self.open(node, after, view, steps);
                }
                // The available amounts have decreased since the push, so nothing below this node
                // fits.
                Item::Node(..) => {}
            }
        }
        None
    }

    fn open(
        &mut self,
        node: &'i Node,
        after: Option<(QueueKey, u32)>,
        view: &View<'_>,
        steps: &mut u32,
    ) {
        match &node.body {
            Body::Leaf(requests) => self.open_leaf(node, requests, after, view, steps),
            Body::Inner {
                children,
                by_resource: true,
            } if children.len() > view.bin.offers.len() * 2 => {
                // All other digits stand for resources that the worker does not have.
                let digits = (0..view.bin.offers.len() as u64 * 2).chain([LAST_RESOURCE]);
                for child in digits.filter_map(|digit| children.get(&digit)) {
                    self.push_node(child, view, steps);
                }
            }
            Body::Inner { children, .. } => {
                for child in children.values() {
                    self.push_node(child, view, steps);
                }
            }
        }
    }

    /// Visits a leaf with many equal requests in parts.
    fn open_leaf(
        &mut self,
        node: &'i Node,
        requests: &'i Requests,
        after: Option<(QueueKey, u32)>,
        view: &View<'_>,
        steps: &mut u32,
    ) {
        let from = after.map_or(Unbounded, Excluded);
        let mut rest = requests.range((from, Unbounded));
        let mut last = None;
        for ((key, number), class) in rest.by_ref().take(LEAF_MAX) {
            *steps = steps.saturating_sub(1);
            last = Some((*key, *number));
            let Some(demand) = class.variants.get(*number as usize) else {
                continue;
            };
            // A box that may fit can contain requests that do not fit.
            if demand.min_time_ns <= view.time_left_ns && view.bin.has_room(demand) {
                let rank = Rank {
                    priority: key.priority.0,
                    value: view.bin.value(demand),
                    class: Reverse(key.class.0),
                };
                self.heap
                    .push(Ranked(rank, Item::Request(*key, *number, class)));
            }
        }
        // The rest of the leaf is ranked by its most urgent request and its highest possible value.
        if let Some(((key, _), _)) = rest.next() {
            let rank = Rank {
                priority: key.priority.0,
                value: node.value_max(view),
                class: Reverse(key.class.0),
            };
            self.heap.push(Ranked(rank, Item::Node(node, last)));
        }
    }

    fn push_node(&mut self, node: &'i Node, view: &View<'_>, steps: &mut u32) {
        *steps = steps.saturating_sub(1);
        let Some((priority, _)) = node.priorities.first_key_value() else {
            return;
        };
        // Boxes that cannot fit are not pushed, so each of them costs only one step.
        if node.may_fit(view) {
            let rank = Rank {
                priority: priority.0,
                value: node.value_max(view),
                class: Reverse(0),
            };
            self.heap.push(Ranked(rank, Item::Node(node, None)));
        }
    }
}

/// Returns the path to a request. Paths with a common prefix continue with the same kind of step.
fn path(variant: &VariantDemand) -> Vec<Step> {
    let mut steps = Vec::new();
    let weight = u64::from(variant.weight);
    steps.push(octave(Dimension::Weight, weight));
    steps.extend((0..u64::BITS).map_while(|nth| digits(Dimension::Weight, weight, nth)));
    let mut demands: Vec<&Demand> = variant.demands.iter().collect();
    demands.sort_by_key(|demand| demand.resource);
    let mut amounts = Vec::new();
    for demand in demands {
        let number = u64::from(demand.resource.0) * 2;
        match demand.units {
            None => steps.push(Step {
                digit: number + 1,
                range: Some(Range {
                    dimension: Dimension::Whole(demand.resource),
                    least: 0,
                    most: u64::MAX,
                }),
                names_resource: true,
            }),
            Some(units) => {
                let dimension = Dimension::Units(demand.resource);
                steps.push(Step {
                    digit: number,
                    range: Some(Range {
                        dimension,
                        least: 0,
                        most: u64::MAX,
                    }),
                    names_resource: true,
                });
                steps.push(octave(dimension, units));
                amounts.push((dimension, units));
            }
        }
    }
    steps.push(Step {
        digit: LAST_RESOURCE,
        range: None,
        names_resource: true,
    });
    steps.push(octave(Dimension::Time, variant.min_time_ns));
    amounts.push((Dimension::Time, variant.min_time_ns));
    // The precision of all amounts grows evenly, because long, narrow boxes exclude fewer requests.
    for nth in 0..u64::BITS.div_ceil(BITS_PER_STEP) {
        let digits = |(dimension, amount): &(_, _)| digits(*dimension, *amount, nth);
        steps.extend(amounts.iter().filter_map(digits));
    }
    steps.truncate(PATH_MAX);
    steps
}

/// Returns the step that determines the number of bits of an amount.
const fn octave(dimension: Dimension, amount: u64) -> Step {
    let bits = u64::BITS - amount.leading_zeros();
    let least = if bits == 0 { 0 } else { 1 << (bits - 1) };
    let most = if bits == 0 {
        0
    } else {
        u64::MAX >> (u64::BITS - bits)
    };
    Step {
        digit: bits as u64,
        range: Some(Range {
            dimension,
            least,
            most,
        }),
        names_resource: false,
    }
}

/// Returns the step that determines the next bits of an amount, or `None` if it is already exact.
fn digits(dimension: Dimension, amount: u64, nth: u32) -> Option<Step> {
    let unknown = (u64::BITS - amount.leading_zeros()).saturating_sub(1 + nth * BITS_PER_STEP);
    if unknown == 0 {
        return None;
    }
    let shift = unknown.saturating_sub(BITS_PER_STEP);
    let least = amount >> shift << shift;
    Some(Step {
        digit: (amount >> shift) & ((1 << (unknown - shift)) - 1),
        range: Some(Range {
            dimension,
            least,
            most: least | ((1 << shift) - 1),
        }),
        names_resource: false,
    })
}

#[cfg(test)]
mod tests;
