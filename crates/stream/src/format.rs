//! Encodes and decodes the bytes of a stream file. All numbers are little-endian.
//!
//! A file starts with two equal copies of its header, followed by blocks without gaps. A block is a
//! header with its own checksum, followed by the payload. See `docs/streaming.md`.

/// First bytes of each copy of the file header.
const MAGIC: [u8; 8] = *b"hqstream";

/// Version of the format.
const VERSION: u32 = 1;

/// Length of one copy of the file header.
const COPY_LEN: usize = 256;

/// Length of both copies, and position of the first block.
pub(crate) const FILE_HEADER_LEN: usize = 2 * COPY_LEN;

/// Length of a block's header.
pub(crate) const BLOCK_HEADER_LEN: usize = 48;

/// Maximum bytes of a payload. The writer never exceeds it, so a larger number means damage.
pub(crate) const PAYLOAD_MAX: u32 = 1 << 20;

/// Maximum bytes of the server's uid and the host's name; longer ones are cut.
const UID_MAX: usize = 64;
const HOST_MAX: usize = 128;

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Neither copy of the file header is intact.
    #[error("it does not begin with the header of a stream file")]
    NoHeader,
    /// A later version of hq wrote the file.
    #[error("it has version {0} of the format, expected at most {VERSION}")]
    Version(u32),
}

/// Origin of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Random for each file. Each block starts with it, so output of tasks is never taken for a
    /// block.
    pub mark: [u8; 8],
    /// Id of the worker that writes the file.
    pub worker: u32,
    /// Time of creation, in nanoseconds since 1970.
    pub created_unix_ns: i64,
    /// Uid of the server that sent the tasks.
    pub server_uid: String,
    /// Host name of the worker.
    pub host: String,
}

impl FileHeader {
    /// Encodes both copies.
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

    /// Decodes either copy.
    ///
    /// # Errors
    ///
    /// If neither copy is intact, or a later version wrote the file.
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

/// Job, task and instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Job.
    pub job: u32,
    /// Task of that job.
    pub task: u32,
    /// Instance of that task; the highest one counts.
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
    /// Both channels, by index.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }
}

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The instance is about to start.
    Start,
    /// The payload is output of this channel.
    Data(Channel),
    /// The instance has ended; all its output precedes this block.
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

/// Header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Kind of content.
    pub kind: BlockKind,
    /// Instance of the block.
    pub key: Key,
    /// Time at which the worker read the output, in nanoseconds since 1970 by its clock.
    pub unix_ns: i64,
    /// Length of the payload in bytes, at most 1 MiB.
    pub length: u32,
    /// CRC-32 of the payload.
    pub payload_checksum: u32,
}

impl BlockHeader {
    /// Encodes the header for a file with this mark.
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

    /// Decodes a header from the start of `bytes`; `None` if there is none.
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

/// Checksum of a payload.
pub(crate) fn checksum(payload: &[u8]) -> u32 {
    crc32fast::hash(payload)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Text, cut at a character boundary and padded with NUL.
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
