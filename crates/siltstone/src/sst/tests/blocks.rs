//! Tests of single blocks: against their description, and there and back.

use std::cmp::Reverse;

use super::{any_model, below};
use crate::io::Rng;
use crate::key::{Kind, SeqNo, Trailer};
use crate::options::Compression;
use crate::sst::block::{BlockBuilder, Layout, packed, unpack};
use crate::sst::compress::{Compressor, PACKED, TAG_LZ4, decompress};

/// A block as `docs/format/sst.md` describes it, in the plainest way; `cut` bytes of each trailer left out.
fn plain_block(entries: &[(Vec<u8>, Trailer, Vec<u8>)], cut: usize) -> Vec<u8> {
    let prefix = entries.iter().map(|(key, ..)| key.clone()).reduce(|mut a, b| {
        let alike = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        a.truncate(alike);
        a
    });
    let prefix = prefix.unwrap();
    let base = if cut == 0 { 0 } else { entries.iter().map(|(_, trailer, _)| trailer.0).min().unwrap() };
    let (mut block, mut offsets, mut heads) = (Vec::new(), Vec::new(), Vec::new());
    for (key, trailer, value) in entries {
        let suffix = &key[prefix.len()..];
        let head = [suffix.first().copied().unwrap_or(0), suffix.get(1).copied().unwrap_or(0)];
        heads.extend(u16::from_be_bytes(head).to_le_bytes());
        offsets.extend(u16::try_from(block.len()).unwrap().to_le_bytes());
        block.extend([u8::try_from(suffix.len()).unwrap(), u8::try_from(value.len()).unwrap()]);
        block.extend(&(trailer.0 - base).to_le_bytes()[..8 - cut]);
        block.extend(suffix);
        block.extend(value);
    }
    block.extend(&prefix);
    block.extend(offsets);
    block.extend(heads);
    if cut > 0 {
        block.extend(base.to_le_bytes());
    }
    block.extend(u32::try_from(prefix.len()).unwrap().to_le_bytes());
    block.extend((u32::try_from(entries.len()).unwrap() | u32::try_from(cut).unwrap() << 27).to_le_bytes());
    block
}

#[test]
fn blocks_are_as_the_format_says_and_those_of_version_1_can_be_read() {
    let mut rng = Rng::new(5);
    for spread in 0..=56 {
        let least = rng.below(1 << (56 - spread).min(20));
        let entries: Vec<_> = (0..1 + below(&mut rng, 20))
            .map(|n| {
                let seq = SeqNo(least + (u64::from(n % 3 == 1) << spread).saturating_sub(1));
                let (kind, len) = if rng.one_in(4) { (Kind::Delete, 0) } else { (Kind::Put, below(&mut rng, 100)) };
                (format!("key{n:03}").into_bytes(), Trailer::new(seq, kind), vec![rng.next_u64().to_le_bytes()[0]; len])
            })
            .collect();
        let mut builder = BlockBuilder::default();
        let mut written = vec![7];
        for (key, trailer, value) in &entries {
            assert!(builder.add(key, *trailer, value, usize::MAX));
        }
        let bound = builder.bytes();
        builder.finish(&mut written);
        let trailers = || entries.iter().map(|(_, trailer, _)| trailer.0);
        let apart = trailers().max().unwrap() - trailers().min().unwrap();
        let most_cut = (0..=8).rev().find(|cut| *cut == 0 || apart < 1 << (8 * (8 - cut))).unwrap();
        assert!(written[1..] == plain_block(&entries, most_cut), "spread {spread}");
        assert!(written.len() - 1 <= bound && bound <= written.len() + 8, "spread {spread}: {bound}");
        for cut in 0..=most_cut {
            let block = plain_block(&entries, cut);
            let layout = Layout::parse(&block).unwrap();
            assert_eq!(layout.check(&block), Ok(()), "spread {spread}, {cut} bytes cut");
            for (i, (key, trailer, value)) in entries.iter().enumerate() {
                let entry = layout.entry(&block, i).unwrap();
                let suffix = &key[layout.prefix(&block).len()..];
                assert_eq!((entry.suffix(&block), entry.trailer, entry.value(&block)), (suffix, *trailer, &value[..]));
            }
        }
    }
}

#[test]
fn what_a_packed_block_leaves_out_is_made_anew() {
    let mut rng = Rng::new(6);
    let mut compressor = Compressor::new(Compression::Lz4);
    let (mut wide, mut compressed) = (0, 0);
    for round in 0..400 {
        let (mut builder, mut block) = (BlockBuilder::default(), Vec::new());
        // Values of more than 64 KiB: wide offsets.
        let style = round % 5;
        for ((key, Reverse(trailer)), value) in any_model(&mut rng, style, 1 + round % 40, round % 3 == 0) {
            assert!(builder.add(&key, Trailer(trailer), &value, usize::MAX));
        }
        builder.finish(&mut block);
        let layout = Layout::parse(&block).unwrap();
        let (front, back) = packed(&block).unwrap();
        let is_wide = front.len() - layout.prefix(&block).len() >= 1 << 16;
        let entry_bytes = if is_wide { 6 } else { 4 };
        wide += usize::from(is_wide);
        assert_eq!(front.len() + back.len() + layout.count() * entry_bytes, block.len());
        let mut again = [front, back].concat();
        let packed_len = again.len();
        again.resize(block.len(), 0xaa);
        assert_eq!(unpack(&mut again, packed_len), Some(()));
        assert!(again == block, "round {round}");
        // A claim that does not fit.
        for (len, packed_len) in
            [(block.len() + 2, packed_len), (block.len() - 2, packed_len), (block.len(), packed_len - 1)]
        {
            again.clear();
            again.extend([front, back].concat());
            again.resize(len, 0);
            assert_eq!(unpack(&mut again, packed_len.min(len)), None);
        }
        // As it is written now, and as before version 3.
        let mut written = block.clone();
        let tag = compressor.compress(&mut written, 0, &mut Vec::new());
        let mut whole = u32::try_from(block.len()).unwrap().to_le_bytes().to_vec();
        whole.extend(lz4_flex::block::compress(&block));
        for (tag, payload) in [(TAG_LZ4, &whole), (tag, &written)] {
            let mut read = vec![0; block.len()];
            assert!(decompress(tag, payload, &mut read).is_ok() && read == block, "round {round}, tag {tag}");
        }
        assert!(tag == 0 || tag == TAG_LZ4 | PACKED);
        compressed += usize::from(tag != 0);
    }
    assert!((20..380).contains(&wide) && (20..=400).contains(&compressed), "{wide} wide, {compressed} compressed");
}
