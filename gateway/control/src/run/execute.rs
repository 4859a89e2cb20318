//! Executes the commands of signals and the admin API. A reload continues in `reload.rs`, an upgrade in `successor.rs`.

use super::access_log_writer::AccessLog;
use super::commands::{Command, PendingCommand, Reply};
use super::reload::Asked;
use super::{Running, inspection, recording};
use crate::log;
use crate::metrics::status::OldProcessStatus;
use crate::upgrade::remaining::RemainingFile;
use crate::vpn::{Steer, Vpn};
use sealane_proxy::{Message, QuicSuccessor};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Running {
    /// Executes a command, or starts to.
    pub(super) fn execute(&mut self, pending: PendingCommand) {
        match pending.command.clone() {
            Command::Drain => {
                self.say_stopping(self.config.drain_timeout.max(self.config.drain_upgraded_timeout));
                pending.reply(self.drain(None));
            }
            Command::Quit => {
                self.say_stopping(Duration::ZERO);
                self.draining = true;
                let zero = Duration::ZERO;
                self.lanes.send_all(|| Message::Drain { limit: zero, upgraded: zero, successor: None });
                pending.reply(Ok(String::new()));
            }
            Command::Reopen => {
                let access_log = self.log.as_ref().is_some_and(AccessLog::reopen);
                let tunnel_log = self.vpn.as_ref().is_some_and(Vpn::reopen_log);
                pending.reply(Ok(reopened(access_log, tunnel_log).to_owned()));
            }
            Command::Reload | Command::ReloadChanged | Command::Upgrade => self.load(Asked::Command(pending)),
            Command::Renew(name) => {
                let renewed = self.automatic.renew(name);
                tokio::spawn(async move { pending.answer(renewed.await) });
            }
            Command::Inspect { limit, older_than } => {
                let asked = self.lanes.inspect(limit, older_than);
                tokio::spawn(async move { pending.answer(inspection::answer(asked, limit).await) });
            }
            Command::Record(request) => recording::start(&request, pending, |recording| self.lanes.record(recording)),
            Command::Steer(steering) => {
                let Some(door) = self.vpn.as_ref().map(Vpn::door) else {
                    return pending.answer(Err("this gateway has no [tunnel]".to_owned()));
                };
                let what = match steering.what {
                    Steer::Kick { .. } => "disconnected",
                    Steer::Message(_) => "sent a message",
                };
                let whom = steering.whom.clone();
                tokio::spawn(async move {
                    let done = door.steer(*steering).await;
                    let line = |n| format!("{whom} was {what} ({n} connection{})", if n == 1 { "" } else { "s" });
                    pending.answer(done.map(line));
                });
            }
            Command::ReadUdp => {
                self.listeners.read_udp();
                let generation = self.published.newest().generation + 1;
                pending.reply(match self.listeners.snapshot(&self.config, &self.ring, generation) {
                    Ok(snapshot) => {
                        self.publish(snapshot);
                        Ok(String::new())
                    }
                    Err(e) => Err(format!("cannot start HTTP/3 in this process: {e:#}")),
                });
            }
            Command::Succeeded(result) => {
                let reply = match result {
                    Ok((pid, read_no_more)) => {
                        self.notifier.main_process(pid);
                        // The path of the admin socket is the successor's now.
                        self.admin.leave();
                        self.listeners.leave_unix();
                        let successor = self.successor_channel.take().map(|(channel, not_read)| {
                            if let Err(e) = self.lanes.listen_to(channel.clone(), self.listeners.ids()) {
                                log::warn!(
                                    "cannot receive QUIC packets from the new process ({e}): the open HTTP/3 \
                                     connections of this process are lost"
                                );
                            }
                            QuicSuccessor { channel, read_no_more, not_read }
                        });
                        self.drain(successor)
                            .map(|_| format!("process {pid} serves now; this process finishes its open requests"))
                    }
                    Err(e) => {
                        self.status.upgrade_failed();
                        Err(format!("not upgraded: {e}; this process continues"))
                    }
                };
                match self.upgrading.take() {
                    Some(asked) => asked.reply(reply),
                    None => pending.reply(reply),
                }
            }
        }
    }

    /// Once. After an upgrade it is the successor that serves, so the service does not stop.
    fn say_stopping(&self, drain: Duration) {
        if !self.draining {
            self.notifier.stopping(drain);
        }
    }

    fn drain(&mut self, successor: Option<QuicSuccessor>) -> Reply {
        self.draining = true;
        self.has_successor |= successor.is_some();
        // A successor renews from now on.
        self.automatic.stop();
        self.stapling.stop();
        self.metrics.set_draining();
        let (limit, upgraded) = (self.config.drain_timeout, self.config.drain_upgraded_timeout);
        self.lanes.send_all(|| Message::Drain { limit, upgraded, successor: successor.clone() });
        let end = SystemTime::now() + limit.max(upgraded);
        self.drains_until = Some(end.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        self.note_remaining();
        let longer = match upgraded > limit {
            true => format!(", and upgraded connections for at most {} s", upgraded.as_secs()),
            false => String::new(),
        };
        Ok(format!(
            "finishing open requests for at most {} s{longer}; a second signal (SIGTERM, Ctrl-C) stops the gateway \
             immediately",
            limit.as_secs()
        ))
    }

    /// Tells the process that serves now what this one still finishes, and the service manager what is left.
    pub(super) fn note_remaining(&mut self) {
        let own = self.drains_until.map(|until| self.metrics.remaining(until));
        if let (Some(file), Some(own)) = (&self.remaining, own) {
            file.write(Some(own));
        }
        if self.has_successor {
            // The service is the successor's.
            return;
        }
        let others = self.remaining.as_ref().map(RemainingFile::of_others).unwrap_or_default();
        let sentence = |one: OldProcessStatus| {
            let (n, pid) = (one.upgraded, one.pid);
            (n > 0).then(|| format!("; process {pid} has {n} upgraded connection{}", if n == 1 { "" } else { "s" }))
        };
        let said: String = own.into_iter().chain(others).filter_map(sentence).collect();
        if said != self.said_remaining {
            self.notifier.status(&(self.status.sentence() + &said));
            self.said_remaining = said;
        }
    }
}

/// The answer to `reopen-logs`. The files are opened later, by the threads that write them.
fn reopened(access_log: bool, tunnel_log: bool) -> &'static str {
    match (access_log, tunnel_log) {
        (true, true) => {
            "the gateway now reopens the access log and the tunnel's log; if this fails, the gateway's own log says so"
        }
        (true, false) => "the gateway now reopens the access log; if this fails, the gateway's own log says so",
        (false, true) => "the gateway now reopens the tunnel's log; if this fails, the gateway's own log says so",
        (false, false) => "there is no log file to reopen",
    }
}
