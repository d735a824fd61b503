//! Bytes from users. They need not be UTF-8, and there may be millions of pieces.

use std::sync::Arc;

use crate::range::IndexSet;

/// Bytes that need not be UTF-8: arguments, paths, environment values.
pub type ByteText = Box<[u8]>;

/// Texts stored back to back in one buffer: per-task entries (`HQ_ENTRY`), or the values of a
/// parameter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entries {
    data: Arc<[u8]>,
    /// The end offset of each entry in `data`, which is smaller than 4 GiB.
    ends: Arc<[u32]>,
}

impl Entries {
    /// Creates entries with the given lengths, stored back to back in `data`.
    ///
    /// Returns `None` if the lengths do not add up to the size of `data`, or reach 4 GiB.
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

    /// Returns a list with only this entry.
    #[must_use]
    pub fn only(&self, index: u32) -> Option<Self> {
        let entry = self.get(index)?;
        Self::new(entry, [entry.len() as u64])
    }

    /// Returns the same list with empty texts in place of the entries at `indices`.
    #[must_use]
    pub fn without(&self, indices: &IndexSet) -> Self {
        let all = (0_u32..).map_while(|index| Some((index, self.get(index)?)));
        let kept = all.map(|(index, text)| if indices.contains(index) { &[] } else { text });
        let kept: Vec<&[u8]> = kept.collect();
        let mut end = 0;
        let ends = kept.iter().map(|text| {
            // The texts are no longer than before, so the sum fits.
            end += u32::try_from(text.len()).unwrap_or_default();
            end
        });
        Self {
            ends: ends.collect(),
            data: kept.concat().into(),
        }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the total size of all entries in bytes.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Returns the entry of the task with this index.
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
