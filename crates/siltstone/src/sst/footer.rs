//! The footer: the last 96 bytes of every version's files. Where the other parts lie, and whether this software may read them.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::num::to_u64;
use crate::sst::codec::{BlockHandle, TRAILER_BYTES, crc, u32_at, u64_at};

/// The version that this software writes. It reads all before.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The size of a footer.
pub(crate) const FOOTER_BYTES: usize = 96;
/// The last eight bytes of a file.
const MAGIC: &[u8; 8] = b"SLTSTSST";
/// Features that a reader must know to read the file; none yet.
const KNOWN_FEATURES: u64 = 0;

/// The parts of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Footer {
    /// Length 0 if there is no filter.
    pub(crate) filter: BlockHandle,
    pub(crate) top_index: BlockHandle,
    pub(crate) properties: BlockHandle,
    /// Data blocks, with trailers and padding, lie before this.
    pub(crate) data_end: u64,
}

impl Footer {
    /// The bytes.
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        let numbers = [
            self.filter.offset,
            self.filter.len,
            self.top_index.offset,
            self.top_index.len,
            self.properties.offset,
            self.properties.len,
            self.data_end,
            KNOWN_FEATURES,
        ];
        for (i, number) in numbers.iter().enumerate() {
            out[8 * i..8 * i + 8].copy_from_slice(&number.to_le_bytes());
        }
        // 64..80: reserved, zero.
        out[84..88].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[88..].copy_from_slice(MAGIC);
        let sum = Footer::sum(&out);
        out[80..84].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The checksum: over everything but itself.
    fn sum(bytes: &[u8; FOOTER_BYTES]) -> u32 {
        let mut covered = *bytes;
        covered[80..84].fill(0);
        crc(&covered)
    }

    /// Reads the footer at the end of a file of `file_bytes` and checks that its parts lie one after another.
    pub(crate) fn decode(bytes: &[u8; FOOTER_BYTES], file_bytes: u64, path: &Path) -> Result<Footer> {
        let at = file_bytes - to_u64(FOOTER_BYTES);
        let damage = |what: &str| Error::corruption(path, at, what);
        if &bytes[88..] != MAGIC {
            return Err(damage("no table, or its end is missing (magic number)"));
        }
        if u32_at(bytes, 80) != Some(Footer::sum(bytes)) {
            return Err(damage("footer checksum does not match"));
        }
        let number = |i: usize| u64_at(bytes, 8 * i).unwrap_or(0);
        let version = u32_at(bytes, 84).unwrap_or(0);
        if version == 0 || version > FORMAT_VERSION || number(7) & !KNOWN_FEATURES != 0 {
            let what = format!("table format {version}, features {:#x}: written by a newer version", number(7));
            return Err(Error::new(ErrorKind::Unsupported, what).at(path).at_offset(at));
        }
        let footer = Footer {
            filter: BlockHandle { offset: number(0), len: number(1) },
            top_index: BlockHandle { offset: number(2), len: number(3) },
            properties: BlockHandle { offset: number(4), len: number(5) },
            data_end: number(6),
        };
        if footer.is_consistent(at) { Ok(footer) } else { Err(damage("footer names parts that cannot be")) }
    }

    fn is_consistent(&self, footer_at: u64) -> bool {
        let filter_end = if self.filter.len == 0 { Some(self.filter.offset) } else { self.filter.end() };
        let trailer = to_u64(TRAILER_BYTES);
        self.data_end > trailer
            && self.filter.offset == self.data_end
            && filter_end.is_some_and(|end| end < self.top_index.offset)
            && self.top_index.end() == Some(self.properties.offset)
            && self.properties.end() == Some(footer_at)
    }

    /// Where the index partitions begin.
    pub(crate) fn partitions_at(&self) -> u64 {
        if self.filter.len == 0 { self.filter.offset } else { self.filter.end().unwrap_or(self.filter.offset) }
    }
}
