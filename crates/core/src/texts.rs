//! Bytes from users, which need not be UTF-8, and may be millions of pieces.

use std::sync::Arc;

/// Bytes that need not be UTF-8: arguments, paths, environment values.
pub type ByteText = Box<[u8]>;

/// Texts back to back in one buffer: per-task entries (`HQ_ENTRY`), values of a parameter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entries {
    data: Arc<[u8]>,
    /// End offset of each entry in `data`, which is smaller than 4 GiB.
    ends: Arc<[u32]>,
}

impl Entries {
    /// Entries with the given lengths, back to back in `data`.
    ///
    /// `None` if the lengths do not add up to the size of `data`, or reach 4 GiB.
    #[must_use]
    pub fn new(data: impl Into<Arc<[u8]>>, lengths: impl IntoIterator<Item = u64>) -> Option<Self> {
        let data = data.into();
        let lengths = lengths.into_iter();
        let mut end = 0u32;
        let mut ends = Vec::with_capacity(lengths.size_hint().0);
        for length in lengths {
            end = end.checked_add(u32::try_from(length).ok()?)?;
            ends.push(end);
        }
        (end as usize == data.len()).then(|| Self {
            data,
            ends: ends.into(),
        })
    }

    /// One of them alone.
    #[must_use]
    pub fn only(&self, index: u32) -> Option<Self> {
        let entry = self.get(index)?;
        Self::new(entry, [entry.len() as u64])
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all entries.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Entry of the task with this index.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&[u8]> {
        let index = index as usize;
        let end = *self.ends.get(index)? as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        self.data.get(start..end)
    }
}
