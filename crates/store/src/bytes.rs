//! Reads big-endian integers of SQLite's file formats. A read past the end returns `None`.

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Reads two bytes as a size or position.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(usize::from(u16::from_be_bytes(bytes.try_into().ok()?)))
}
