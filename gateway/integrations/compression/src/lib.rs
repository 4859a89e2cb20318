//! The content codings zstd, br and gzip, by libraries: what [`Codecs`] asks for.
//!
//! An encoder's memory depends neither on the body nor on the level: windows and tables have fixed sizes, and the levels that would
//! need larger ones are not offered.

use brotli::CompressorWriter;
use flate2::{Compress, Compression, FlushCompress, Status};
use sealane_http::coding::{Codecs, Coding, EncodeError, Encoder, Then};
use std::io::Write;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, zstd_sys};

/// zstd's window: 128 KiB.
const ZSTD_WINDOW_LOG: u32 = 17;
/// zstd's tables: at most 256 KiB and 128 KiB.
const ZSTD_TABLE_LOGS: (u32, u32) = (16, 15);
/// What a context of zstd holds at most with these, at the highest level on offer: tables, window, input and output, and what it needs
/// for itself.
const ZSTD_MEMORY: usize = 2 << 20;

/// Brotli's window: 128 KiB.
const BROTLI_WINDOW_LOG: u32 = 17;
/// Bytes that brotli puts out at a time.
const BROTLI_BUFFER: usize = 8 * 1024;
/// What an encoder of brotli holds at most, at the highest level on offer: ring buffer, hash table, commands.
const BROTLI_MEMORY: usize = 3 << 20;

/// Deflate's window, as gzip has it: 32 KiB.
const GZIP_WINDOW_LOG: u8 = 15;
/// What an encoder of gzip holds: window, tables, and what waits to be put out.
const GZIP_MEMORY: usize = 320 << 10;

/// Room that is made for output at a time.
const CHUNK: usize = 16 * 1024;

/// All codings.
#[derive(Debug)]
pub struct Libraries;

impl Codecs for Libraries {
    fn encoder(&self, coding: Coding, level: u8) -> Option<Box<dyn Encoder>> {
        Some(match coding {
            Coding::Zstd => Box::new(Zstd::new(level)?),
            Coding::Brotli => Box::new(Brotli(Some(CompressorWriter::new(
                Vec::new(),
                BROTLI_BUFFER,
                level.into(),
                BROTLI_WINDOW_LOG,
            )))),
            Coding::Gzip => Box::new(Gzip(Compress::new_gzip(Compression::new(level.into()), GZIP_WINDOW_LOG))),
        })
    }
}

struct Zstd(CCtx<'static>);

impl Zstd {
    fn new(level: u8) -> Option<Self> {
        let mut context = CCtx::try_create()?;
        let (hash, chain) = ZSTD_TABLE_LOGS;
        let parameters = [
            CParameter::CompressionLevel(level.into()),
            CParameter::WindowLog(ZSTD_WINDOW_LOG),
            CParameter::HashLog(hash),
            CParameter::ChainLog(chain),
            // Clients find out by it that a body is damaged or cut off behind a whole block.
            CParameter::ChecksumFlag(true),
        ];
        parameters.into_iter().try_for_each(|parameter| context.set_parameter(parameter).map(drop)).ok()?;
        Some(Self(context))
    }
}

impl Encoder for Zstd {
    fn encode(&mut self, data: &[u8], then: Then, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        use zstd_sys::ZSTD_EndDirective as End;
        let end = match then {
            Then::GoOn => End::ZSTD_e_continue,
            Then::Flush => End::ZSTD_e_flush,
            Then::Finish => End::ZSTD_e_end,
        };
        let mut input = InBuffer::around(data);
        loop {
            out.reserve(CHUNK);
            let at = out.len();
            let left = self.0.compress_stream2(&mut OutBuffer::around_pos(out, at), &mut input, end);
            let left = left.map_err(|_| EncodeError)?;
            // While it goes on, what is left is only a guess at what it would like to have next.
            if input.pos() == data.len() && (left == 0 || then == Then::GoOn && out.len() < out.capacity()) {
                return Ok(());
            }
        }
    }

    fn memory(&self) -> usize {
        self.0.sizeof().max(ZSTD_MEMORY)
    }

    fn reset(&mut self) -> bool {
        self.0.reset(ResetDirective::SessionOnly).is_ok()
    }
}

/// Empty once the body is whole.
struct Brotli(Option<CompressorWriter<Vec<u8>>>);

impl Encoder for Brotli {
    fn encode(&mut self, data: &[u8], then: Then, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let writer = self.0.as_mut().ok_or(EncodeError)?;
        std::mem::swap(writer.get_mut(), out);
        let written = writer.write_all(data).and_then(|()| match then {
            Then::GoOn => Ok(()),
            Then::Flush | Then::Finish => writer.flush(),
        });
        std::mem::swap(writer.get_mut(), out);
        if let Some(writer) = self.0.take_if(|_| then == Then::Finish) {
            // The library ends a body where its writer is taken apart.
            out.append(&mut writer.into_inner());
        }
        written.map_err(|_| EncodeError)
    }

    fn memory(&self) -> usize {
        BROTLI_MEMORY
    }

    fn reset(&mut self) -> bool {
        false
    }
}

struct Gzip(Compress);

impl Encoder for Gzip {
    fn encode(&mut self, data: &[u8], then: Then, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let flush = match then {
            Then::GoOn => FlushCompress::None,
            Then::Flush => FlushCompress::Sync,
            Then::Finish => FlushCompress::Finish,
        };
        let mut rest = data;
        loop {
            out.reserve(CHUNK);
            let before = self.0.total_in();
            let status = self.0.compress_vec(rest, out, flush).map_err(|_| EncodeError)?;
            let used = usize::try_from(self.0.total_in() - before).map_err(|_| EncodeError)?;
            rest = rest.get(used..).ok_or(EncodeError)?;
            let is_out = match then {
                Then::Finish => status == Status::StreamEnd,
                // Less than there was room for: there is no more.
                Then::GoOn | Then::Flush => rest.is_empty() && out.len() < out.capacity(),
            };
            if is_out {
                return Ok(());
            }
        }
    }

    fn memory(&self) -> usize {
        GZIP_MEMORY
    }

    fn reset(&mut self) -> bool {
        self.0.reset();
        true
    }
}

#[cfg(test)]
mod tests;
