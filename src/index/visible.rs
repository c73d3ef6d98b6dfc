//! What a principal may see, as a set of visibility classes.
//!
//! A class is the interned set of namespaces that may see a document; whoever calls decides which classes a principal sees.
//! Not here: namespaces, grants, principals (`route::filter`).

use std::sync::Arc;

/// A set of visibility classes. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Visible {
    /// Every class.
    All,
    /// The classes listed, ascending, each once.
    Some(Arc<[u32]>),
}

impl Visible {
    /// Sees everything.
    pub fn all() -> Self {
        Self::All
    }

    /// Sees the given classes, in any order.
    pub fn of(classes: impl IntoIterator<Item = u32>) -> Self {
        let mut classes: Vec<u32> = classes.into_iter().collect();
        classes.sort_unstable();
        classes.dedup();
        Self::Some(classes.into())
    }

    /// Whether a document of this class may be seen.
    pub fn contains(&self, class: u32) -> bool {
        match self {
            Self::All => true,
            Self::Some(classes) => classes.binary_search(&class).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_repeats_do_not_matter() {
        let visible = Visible::of([7, 3, 7]);
        assert_eq!(visible, Visible::of([3, 7]));
        assert!(visible.contains(3) && visible.contains(7) && !visible.contains(5));
        assert!(Visible::all().contains(5) && !Visible::of([]).contains(5));
    }
}
