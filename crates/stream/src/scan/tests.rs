//! Tests that every intact block is found, wherever the file is damaged.

use proptest::prelude::*;

use super::*;
use crate::format::{BlockKind, Channel, Key};

const MARK: [u8; 8] = *b"\x01mark\x02\x03\x04";

fn file_header() -> FileHeader {
    FileHeader {
        mark: MARK,
        worker: 7,
        created_unix_ns: 1_700_000_000_000_000_000,
        server_uid: "AbCdEf".into(),
        host: "node1".into(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    header: BlockHeader,
    payload: Vec<u8>,
    start: usize,
    end: usize,
}

fn write_all(blocks: &[(BlockKind, Key, i64, Vec<u8>)]) -> (Vec<u8>, Vec<Written>) {
    let mut bytes = file_header().encode().to_vec();
    let mut written = Vec::new();
    for (kind, key, unix_ns, payload) in blocks {
        let start = bytes.len();
        let header = BlockHeader {
            kind: *kind,
            key: *key,
            unix_ns: *unix_ns,
            length: u32::try_from(payload.len()).expect("short"),
            payload_checksum: checksum(payload),
        };
        bytes.extend(header.encode(MARK));
        bytes.extend(payload);
        written.push(Written {
            header,
            payload: payload.clone(),
            start,
            end: bytes.len(),
        });
    }
    (bytes, written)
}

/// Returns all blocks with an intact payload.
fn read_all(bytes: &[u8]) -> Vec<(BlockHeader, Vec<u8>)> {
    let Ok(mut scanner) = Scanner::open(bytes).expect("memory") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    while let Some(block) = scanner.next_block().expect("memory") {
        let mut payload = Vec::new();
        let BlockHeader {
            length,
            payload_checksum,
            ..
        } = block.header;
        if scanner
            .read_payload(block.payload_at, length, payload_checksum, &mut payload)
            .expect("memory")
        {
            found.push((block.header, payload));
        }
    }
    found
}

fn kinds() -> impl Strategy<Value = BlockKind> {
    prop_oneof![
        Just(BlockKind::Start),
        Just(BlockKind::Data(Channel::Stdout)),
        Just(BlockKind::Data(Channel::Stderr)),
        Just(BlockKind::End),
        Just(BlockKind::Abandoned),
    ]
}

fn keys() -> impl Strategy<Value = Key> {
    any::<[u32; 3]>().prop_map(|[job, task, instance]| Key {
        job,
        task,
        instance,
    })
}

type Blocks = Vec<(BlockKind, Key, i64, Vec<u8>)>;

fn blocks() -> impl Strategy<Value = Blocks> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        // Output that looks like the format itself.
        Just(MARK.to_vec()),
        Just(file_header().encode().to_vec()),
    ];
    prop::collection::vec((kinds(), keys(), any::<i64>(), payload), 0..8)
}

fn expected(written: &[Written]) -> Vec<(BlockHeader, Vec<u8>)> {
    written
        .iter()
        .map(|block| (block.header, block.payload.clone()))
        .collect()
}

proptest! {
    // Each case tries every position of its file.
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn blocks_survive_a_round_trip(blocks in blocks()) {
        let (bytes, written) = write_all(&blocks);
        prop_assert_eq!(read_all(&bytes), expected(&written));
        prop_assert_eq!(FileHeader::decode(&bytes), Ok(file_header()));
    }

    #[test]
    fn a_cut_file_gives_every_whole_block(blocks in blocks()) {
        let (bytes, written) = write_all(&blocks);
        for length in 0..=bytes.len() {
            let whole: Vec<_> = written.iter().filter(|b| b.end <= length).cloned().collect();
            prop_assert_eq!(read_all(&bytes[..length]), expected(&whole), "cut at {}", length);
        }
    }

    #[test]
    fn a_flipped_byte_costs_one_block(blocks in blocks(), flip in 1u8..) {
        let (mut bytes, written) = write_all(&blocks);
        for position in 0..bytes.len() {
            bytes[position] ^= flip;
            let whole: Vec<_> = written
                .iter()
                .filter(|b| !(b.start..b.end).contains(&position))
                .cloned()
                .collect();
            prop_assert_eq!(read_all(&bytes), expected(&whole), "flipped at {}", position);
            bytes[position] ^= flip;
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(tail in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut bytes = file_header().encode().to_vec();
        bytes.extend(tail);
        prop_assert_eq!(read_all(&bytes), Vec::new());
    }
}

#[test]
fn long_names_are_cut_at_a_character() {
    let long = FileHeader {
        server_uid: "é".repeat(40),
        host: "h".repeat(500),
        ..file_header()
    };
    let read = FileHeader::decode(&long.encode()).expect("valid");
    assert_eq!(read.server_uid, "é".repeat(32));
    assert_eq!(read.host.len(), 128);
}
