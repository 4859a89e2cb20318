//! A tunnel between the orderly end of one process and the start of the next: the service manager keeps it
//! (sd_notify(3), `FDSTORE=1`), and packets wait in the kernel's queues.
//!
//! What is kept is one end of a socket pair in whose buffer the tunnel's descriptors lie, two of them files in memory
//! with what is to be known. Who reads them has them, and nobody can read them a second time: so no packet id is issued
//! twice, whatever becomes of the process that has read them. An end that is not orderly keeps nothing.

use crate::log;
use crate::run::systemd::Notifier;
use crate::upgrade::handover::take_descriptors;
use crate::vpn::handover::{Handed, HandoverState};
use crate::vpn::settings::Settings;
use crate::vpn::{SharedPort, Vpn};
use anyhow::{Context as _, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use sealane_sys::inherit::{MAX_DESCRIPTORS, send_descriptors};
use sealane_tunnel::HandOver;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// What the service manager calls it.
pub const NAME: &str = "sealane-tunnel";
/// As in an upgrade: either file, and all descriptors.
const MAX_BYTES: u64 = 1 << 30;
const MAX_KEPT: usize = 1 << 20;

/// At the end: leaves a running tunnel with the service manager, where that keeps descriptors. Blocks for some seconds
/// at most.
pub fn store(vpn: &Vpn, notifier: &Notifier) {
    if !notifier.keeps() || vpn.has_ended() {
        return;
    }
    match try_to_keep(vpn, notifier) {
        Ok(()) => log::info!("tunnel: the sessions are stored in systemd for the next start"),
        Err(e) => log::warn!("tunnel: the sessions cannot be stored, so clients must connect again: {e:#}"),
    }
}

fn try_to_keep(vpn: &Vpn, notifier: &Notifier) -> Result<()> {
    let Handed { state, outcome } = vpn.door().hand_over()?;
    let kept = put(&state).and_then(|end| Ok(notifier.keep(NAME, end.as_fd())?));
    // Not kept: it goes on here for as long as it takes to tell its clients.
    let _ = outcome.send(kept.is_ok());
    kept
}

/// At the start: goes on with what was kept, or begins anew where nothing was, or where the settings do not fit it.
pub fn start(settings: Settings, kept: Option<UnixStream>, notifier: &Notifier, port: &SharedPort) -> Result<Vpn> {
    if let Some(end) = kept {
        // It is empty from now on; the next one is to have its place.
        let state = take(&end);
        notifier.keep_no_more(NAME);
        let prepared = state.and_then(|state| Vpn::prepare(settings.clone(), state));
        match prepared.and_then(|prepared| prepared.start(port)) {
            Ok(vpn) => return Ok(vpn),
            Err(e) => log::warn!("tunnel: the stored state cannot be used, so clients must connect again: {e:#}"),
        }
    }
    Vpn::start(settings, port)
}

/// Puts everything into the buffer of a socket pair and returns the end to read it from.
fn put(state: &HandoverState) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // What does not fit is an error: nobody reads yet.
    ours.set_nonblocking(true)?;
    let files = [file(&state.control)?, file(&state.plane.bytes)?];
    let all: Vec<BorrowedFd<'_>> =
        files.iter().map(AsFd::as_fd).chain(state.plane.descriptors.iter().map(AsFd::as_fd)).collect();
    (&ours).write_all(&u32::try_from(all.len())?.to_be_bytes())?;
    for some in all.chunks(MAX_DESCRIPTORS) {
        send_descriptors(&ours, b"+", some).context("the tunnel has too many connections")?;
    }
    Ok(theirs.into())
}

/// Takes everything out again.
fn take(mut end: &UnixStream) -> Result<HandoverState> {
    // All of it is there, or will never come.
    end.set_nonblocking(true)?;
    let mut count = [0; 4];
    end.read_exact(&mut count).context("the stored state is empty: another process has taken it")?;
    let count = u32::from_be_bytes(count) as usize;
    if !(2..=MAX_KEPT).contains(&count) {
        bail!("the stored state has {count} descriptors, which cannot be right");
    }
    let mut descriptors = take_descriptors(end, count)?;
    let rest = descriptors.split_off(2);
    let mut bytes = Vec::new();
    for file in descriptors.into_iter().map(File::from) {
        let mut read = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut read)?;
        bytes.push(read);
    }
    let (plane, control) = (bytes.pop().unwrap_or_default(), bytes.pop().unwrap_or_default());
    Ok(HandoverState { control, plane: HandOver { bytes: plane, descriptors: rest } })
}

/// A file in memory, to be read from its beginning.
fn file(bytes: &[u8]) -> Result<File> {
    let mut file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_taken_once() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut descriptors: Vec<OwnedFd> = (0..5).map(|_| File::open("/dev/null").unwrap().into()).collect();
        descriptors.push(there.into());
        let plane = HandOver { bytes: vec![7; 100_000], descriptors };
        let end = put(&HandoverState { control: b"control".to_vec(), plane }).unwrap();
        let end = UnixStream::from(end);
        let HandoverState { control, plane } = take(&end).unwrap();
        assert_eq!((control.as_slice(), plane.bytes.len(), plane.descriptors.len()), (&b"control"[..], 100_000, 6));
        // Each in its place.
        let mut there = UnixStream::from(plane.descriptors.into_iter().next_back().unwrap());
        there.write_all(b"!").unwrap();
        let mut said = [0; 1];
        here.read_exact(&mut said).unwrap();
        assert_eq!(said, *b"!");
        assert!(take(&end).is_err());
    }

    #[test]
    fn what_is_no_tunnel_is_refused() {
        for bytes in [&b""[..], b"\0\0", b"\0\0\0\x01+", b"\xff\xff\xff\xff", b"\0\0\0\x02++"] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(take(&theirs).is_err(), "{bytes:?}");
        }
    }
}
