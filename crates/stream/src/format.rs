//! Encodes and decodes the bytes of a stream file. All numbers are little-endian.
//!
//! A file starts with two identical copies of its header, followed by blocks without gaps. A block
//! consists of a header with its own checksum and the payload. See `docs/streaming.md`.

/// The first bytes of each copy of the file header.
const MAGIC: [u8; 8] = *b"hqstream";

/// The version of the format.
const VERSION: u32 = 1;

/// The length of one copy of the file header.
const COPY_LEN: usize = 256;

/// The length of both copies, which is also the position of the first block.
pub(crate) const FILE_HEADER_LEN: usize = 2 * COPY_LEN;

/// The length of a block header.
pub(crate) const BLOCK_HEADER_LEN: usize = 48;

/// The maximum size of a payload in bytes. The writer never exceeds it, so a larger number means
/// that the file is damaged.
pub(crate) const PAYLOAD_MAX: u32 = 1 << 20;

/// The maximum lengths of the server's uid and the host name in bytes. Longer ones are truncated.
const UID_MAX: usize = 64;
const HOST_MAX: usize = 128;

/// The reason why bytes are not a valid file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Neither copy of the file header is intact.
    #[error("it does not begin with the header of a stream file")]
    NoHeader,
    /// A later version of hq wrote the file.
    #[error("it has version {0} of the format, expected at most {VERSION}")]
    Version(u32),
}

/// The origin of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Random for each file. Each block starts with it, so task output is never mistaken for a
    /// block.
    pub mark: [u8; 8],
    /// The id of the worker that writes the file.
    pub worker: u32,
    /// When the file was created, in nanoseconds since 1970.
    pub created_unix_ns: i64,
    /// The uid of the server that sent the tasks.
    pub server_uid: String,
    /// The host name of the worker.
    pub host: String,
}

impl FileHeader {
    /// Encodes both copies of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; FILE_HEADER_LEN] {
        let mut copy = [0; COPY_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            copy[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&self.mark);
        put(&self.worker.to_le_bytes());
        put(&self.created_unix_ns.to_le_bytes());
        put(&text_field::<UID_MAX>(&self.server_uid));
        put(&text_field::<HOST_MAX>(&self.host));
        let checksum = crc32fast::hash(&copy[..COPY_LEN - 4]);
        copy[COPY_LEN - 4..].copy_from_slice(&checksum.to_le_bytes());
        let mut both = [0; FILE_HEADER_LEN];
        both[..COPY_LEN].copy_from_slice(&copy);
        both[COPY_LEN..].copy_from_slice(&copy);
        both
    }

    /// Decodes the first intact copy of the header.
    ///
    /// # Errors
    ///
    /// If neither copy is intact or a later version of hq wrote the file.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut copies = bytes.chunks_exact(COPY_LEN).take(2);
        copies
            .find_map(Self::decode_copy)
            .unwrap_or(Err(FormatError::NoHeader))
    }

    fn decode_copy(copy: &[u8]) -> Option<Result<Self, FormatError>> {
        let checksum = u32_at(copy, COPY_LEN - 4)?;
        if copy.get(..8)? != MAGIC || checksum != crc32fast::hash(copy.get(..COPY_LEN - 4)?) {
            return None;
        }
        let version = u32_at(copy, 8)?;
        if version != VERSION {
            return Some(Err(FormatError::Version(version)));
        }
        Some(Ok(Self {
            mark: copy.get(12..20)?.try_into().ok()?,
            worker: u32_at(copy, 20)?,
            created_unix_ns: i64::from_le_bytes(copy.get(24..32)?.try_into().ok()?),
            server_uid: field_text(copy.get(32..32 + UID_MAX)?),
            host: field_text(copy.get(32 + UID_MAX..32 + UID_MAX + HOST_MAX)?),
        }))
    }
}

/// Identifies an instance of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The id of the job.
    pub job: u32,
    /// The id of the task in that job.
    pub task: u32,
    /// The number of the instance. Only the output of the highest one is current.
    pub instance: u32,
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Channel {
    /// Both channels, in the order of their indices.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Returns 0 for standard output and 1 for standard error.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }
}

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The instance is about to start.
    Start,
    /// The payload is output of this channel.
    Data(Channel),
    /// The instance has ended. All its output precedes this block.
    End,
    /// The instance did not start on this worker after all.
    Abandoned,
}

impl BlockKind {
    const fn code(self) -> u8 {
        match self {
            Self::Start => 1,
            Self::Data(Channel::Stdout) => 2,
            Self::Data(Channel::Stderr) => 3,
            Self::End => 4,
            Self::Abandoned => 5,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Start,
            2 => Self::Data(Channel::Stdout),
            3 => Self::Data(Channel::Stderr),
            4 => Self::End,
            5 => Self::Abandoned,
            _ => return None,
        })
    }
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The kind of the block.
    pub kind: BlockKind,
    /// The instance that the block belongs to.
    pub key: Key,
    /// When the worker read the output, in nanoseconds since 1970 by the worker's clock.
    pub unix_ns: i64,
    /// The length of the payload in bytes, at most 1 MiB.
    pub length: u32,
    /// The CRC-32 of the payload.
    pub payload_checksum: u32,
}

impl BlockHeader {
    /// Encodes the header for a file with the given mark.
    #[must_use]
    pub fn encode(&self, mark: [u8; 8]) -> [u8; BLOCK_HEADER_LEN] {
        let mut bytes = [0; BLOCK_HEADER_LEN];
        bytes[0..8].copy_from_slice(&mark);
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12] = self.kind.code();
        bytes[16..20].copy_from_slice(&self.key.job.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.key.task.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.instance.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.payload_checksum.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.unix_ns.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..44]);
        bytes[44..48].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header at the start of `bytes`. Returns `None` if there is none.
    #[must_use]
    pub fn decode(bytes: &[u8], mark: [u8; 8]) -> Option<Self> {
        let bytes = bytes.get(..BLOCK_HEADER_LEN)?;
        if bytes[..8] != mark || u32_at(bytes, 44)? != crc32fast::hash(&bytes[..44]) {
            return None;
        }
        let length = u32_at(bytes, 8)?;
        let kind = BlockKind::from_code(bytes[12])?;
        (length <= PAYLOAD_MAX).then_some(Self {
            kind,
            key: Key {
                job: u32_at(bytes, 16)?,
                task: u32_at(bytes, 20)?,
                instance: u32_at(bytes, 24)?,
            },
            unix_ns: i64::from_le_bytes(bytes[32..40].try_into().ok()?),
            length,
            payload_checksum: u32_at(bytes, 28)?,
        })
    }
}

/// Returns the checksum of a payload.
pub(crate) fn checksum(payload: &[u8]) -> u32 {
    crc32fast::hash(payload)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Encodes text, truncated at a character boundary and padded with NUL.
fn text_field<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut field = [0; LEN];
    let length = text.floor_char_boundary(LEN);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

fn field_text(field: &[u8]) -> String {
    let length = field.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&field[..length.unwrap_or(field.len())]).into_owned()
}
