//! Reads the configuration again, for a reload or a successor, and takes it into use.

use super::commands::{Command, PendingCommand, Reply};
use super::successor::NO_UPGRADE_NOW;
use super::watch::{Look, Watched};
use super::{Running, go_by};
use crate::certificates::watch::{FileSet, FileWatch};
use crate::config::{Config, Origin, Warning};
use crate::dns;
use crate::log::{self, LogSettings};
use crate::resolve::{self, Places};
use anyhow::Result;
use sealane_sys::privileges;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A configuration that was read beside everything else that control does.
pub(super) struct Loaded {
    config: Result<(Config, Vec<Warning>), String>,
    /// The files that one with errors names: when they come, it is read again.
    wanted: Vec<PathBuf>,
    /// The files as they were before and after.
    before: Look,
    after: Look,
}

/// Reads a configuration again, for a reload of what is `running` here, or for a successor. Nothing here waits without a limit,
/// and heartbeats and commands go on meanwhile.
async fn load(origin: Origin, files: Vec<PathBuf>, running: Option<Places>) -> Loaded {
    // As the files are before they are read: what changes meanwhile has changed since.
    let before = Look::bounded(files.clone()).await;
    let mut config = resolve::load(&origin).await;
    let refused = match (&config, &running) {
        (Ok((read, _)), Some(running)) => Some(resolve::admin_refused(read, running)),
        _ => None,
    };
    if let Some(refused) = refused {
        config = refused.await.and(config);
    }
    // Of files that were read, it is known which state was read.
    let read = config.as_mut().map_or_else(|_| HashMap::new(), |(config, _)| std::mem::take(&mut config.prints));
    let before = before.with(Look::of_read(read));
    let wanted = config.as_ref().err().map_or_else(Vec::new, |e| e.files.clone());
    let named = config.as_ref().map_or(&wanted, |(config, _)| &config.files);
    let sets = config.as_ref().map_or_else(|_| Vec::new(), |(config, _)| FileSet::of(config));
    let paths = sets.iter().flat_map(FileSet::all).chain(named).cloned();
    let after = Look::bounded(files.into_iter().chain(paths).collect()).await;
    if let (Ok((config, warnings)), Some(_)) = (&mut config, running) {
        warnings.extend(resolve::names(config, dns::LOAD_LIMIT).await);
    }
    Loaded { config: config.map_err(|e| e.to_string()), wanted, before, after }
}

impl Running {
    /// Starts to read the configuration again, for a reload or an upgrade; [`Running::loaded`] goes on. One at a time.
    pub(super) fn load(&mut self, pending: PendingCommand) {
        if self.loading.is_some() {
            // A signal while one like it waits already asks for nothing more.
            let same = |g: &PendingCommand| {
                matches!(g.command, Command::Upgrade) == matches!(pending.command, Command::Upgrade)
            };
            if pending.is_awaited() || !self.waiting.iter().any(same) {
                self.waiting.push_back(pending);
            }
            return;
        }
        let upgrade = matches!(pending.command, Command::Upgrade);
        match (upgrade, self.draining, &self.config.origin) {
            (false, true, _) => return pending.reply(Err("not reloaded: the gateway is stopping".to_owned())),
            (false, false, _) => self.notifier.reloading(),
            // It starts with the same arguments again.
            (true, _, Origin::CommandLine(_)) => return self.upgrade(pending, None),
            (true, true, _) => return pending.reply(Err(NO_UPGRADE_NOW.to_owned())),
            (true, false, Origin::File(_)) => {}
        }
        self.loading = Some(pending);
        let (origin, files) = (self.config.origin.clone(), self.looked_at());
        let running = (!upgrade).then(|| Places::of(&self.config));
        let tell = self.tell_loaded.clone();
        tokio::spawn(async move {
            // Nobody takes it only when the process ends.
            let _ = tell.send(load(origin, files, running).await).await;
        });
    }

    /// Goes on with what a configuration was read for.
    pub(super) fn loaded(&mut self, loaded: Loaded) {
        let Some(pending) = self.loading.take() else { return };
        match (&pending.command, loaded.config) {
            // What the configuration's errors are is said on the standard error; the asker gets them too.
            (Command::Reload, config) => {
                let reply = self.reload(Loaded { config, ..loaded });
                pending.reply(reply);
            }
            // A configuration that is wrong is found here, where it costs nothing.
            (_, Err(e)) => {
                self.status.upgrade_failed();
                pending.reply(Err(format!("not upgraded: the configuration is wrong:\n{e}")));
            }
            (_, Ok((config, _))) => self.upgrade(pending, Some(&config)),
        }
        while let (None, Some(next)) = (&self.loading, self.waiting.pop_front()) {
            self.load(next);
        }
    }

    /// Takes a configuration in that was read again. All or nothing: an error leaves everything as it was.
    fn reload(&mut self, loaded: Loaded) -> Reply {
        if self.draining {
            return Err("not reloaded: the gateway is stopping".to_owned());
        }
        self.wanted = loaded.wanted;
        let result = loaded.config.map_err(anyhow::Error::msg).and_then(|(config, said)| self.try_reload(config, said));
        // A file may have come after the configuration was read.
        let is_missing = |file: &&PathBuf| loaded.before.is_missing(file) || loaded.after.is_missing(file);
        let missing: Vec<PathBuf> = self.wanted.iter().filter(is_missing).cloned().collect();
        // What has been looked at, good or bad, is not looked at again until it changes again.
        self.watched = match self.config.reload_on_change {
            true => Some(Watched::new(self.named_files(), &loaded.before, &loaded.after)),
            // The operator has asked for this configuration, and only a file is missing.
            false if !missing.is_empty() => Some(Watched::new(missing.clone(), &loaded.before, &loaded.after)),
            false => None,
        };
        // After an error the certificates are those of before, and so is what is known of their files.
        if result.is_ok() {
            self.files = FileWatch::start(FileSet::of(&self.config), &loaded.before, &loaded.after);
        }
        let reply = match result {
            Ok(notes) if notes.is_empty() => Ok("reloaded".to_owned()),
            Ok(notes) => Ok(format!("reloaded; some changes need more than a reload:\n{}", notes.join("\n"))),
            Err(e) if missing.is_empty() => Err(format!("not reloaded; the running configuration stays:\n{e:#}")),
            Err(e) => {
                let missing: Vec<String> = missing.iter().map(|file| file.display().to_string()).collect();
                let missing = missing.join(", ");
                Err(format!(
                    "not reloaded; the running configuration stays:\n{e:#}\n\
                     the gateway tries to reload again when a missing file appears: {missing}"
                ))
            }
        };
        self.status.reloaded(&reply);
        self.notifier.ready(&self.status.sentence());
        reply
    }

    /// The files whose changes matter.
    fn named_files(&self) -> Vec<PathBuf> {
        self.config.files.iter().chain(&self.wanted).cloned().collect()
    }

    /// What is looked at before and after a configuration is read.
    fn looked_at(&self) -> Vec<PathBuf> {
        let sets = FileSet::of(&self.config);
        sets.iter().flat_map(FileSet::all).cloned().chain(self.named_files()).collect()
    }

    /// Returns the settings that take effect later, for the response to the command.
    fn try_reload(&mut self, mut config: Config, warnings: Vec<Warning>) -> Result<Vec<String>> {
        for warning in warnings {
            log::warn!("{warning}");
        }
        let mut notes = Vec::new();
        for (name, differs) in [
            ("lanes", config.lanes != self.config.lanes),
            ("[admin] listen", config.admin != self.config.admin),
            ("[admin] socket", config.admin_socket != self.config.admin_socket),
            ("[log] access", config.access_log != self.config.access_log),
            ("[log] rotation", config.rotation != self.config.rotation),
            ("user", config.user != self.config.user),
        ] {
            if differs {
                // Only root can change to another user, and a successor starts as the user of this process.
                let only_start = name == "user" && !privileges::is_root();
                let until = if only_start { "start" } else { "start or upgrade" };
                notes.push(format!("{name} keeps its value until the next {until}"));
            }
        }
        config.lanes = self.config.lanes;
        config.admin = self.config.admin;
        config.admin_socket.clone_from(&self.config.admin_socket);
        config.access_log = self.config.access_log.clone();
        config.rotation = self.config.rotation;
        config.user.clone_from(&self.config.user);
        self.stapling.enter_new(&mut config);
        self.ring.set_lifetime(config.ticket_lifetime);
        if self.automatic.changes(&config) {
            // Its orders end.
            self.listeners.set_challenges(Arc::default());
        }
        let generation = self.published.newest().generation + 1;
        let snapshot = go_by(&mut self.ring, &config).and_then(|()| self.fleet.configure(&config)).and_then(|()| {
            self.listeners.set_shared_tickets(self.fleet.tickets());
            self.traces.configure(&config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.snapshot(&config, &self.ring, generation)
        });
        if snapshot.is_err() {
            // All or nothing: what was opened is closed again, and what was set on sockets that stay is as it was.
            self.ring.set_lifetime(self.config.ticket_lifetime);
            let _ = go_by(&mut self.ring, &self.config).and_then(|()| self.fleet.configure(&self.config));
            self.listeners.set_shared_tickets(self.fleet.tickets());
            self.traces.configure(&self.config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.forget_unused(&self.config);
            let as_before = self.listeners.snapshot(&self.config, &self.ring, generation);
            // The link to the store is a new one, and lanes must hear of it.
            if let (true, Ok(as_before)) = (config.store != self.config.store, as_before) {
                self.publish(as_before);
            }
        }
        let snapshot = snapshot?;
        log::start(LogSettings {
            // A level that was set at run time stays until the file has another than before.
            level: if config.log.level == self.config.log.level { log::level() } else { config.log.level },
            ..config.log
        });
        self.listeners.forget_unused(&config);
        self.upstreams.apply(&config);
        self.publish(snapshot);
        match (&self.vpn, config.tunnel.take()) {
            (Some(vpn), Some(settings)) => {
                notes.extend(vpn.obstacle(&settings));
                vpn.reload((*settings).into());
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                notes.push("adding or removing [tunnel] takes effect at the next start".to_owned())
            }
        }
        self.admin.answer_to(&config.admin_names);
        self.config = config;
        self.status.configured(&self.config, &self.listeners, generation);
        self.automatic.configure(&self.config);
        self.status.automatic(self.automatic.reporter());
        self.stapling.reconfigure(&self.config);
        self.status.stapling(self.stapling.reporter());
        self.status.lists(self.stapling.list_reporter());
        self.status.fleet(self.fleet.reporter());
        self.status.traces(self.traces.reporter());
        self.telemetry.configure(&self.config, &self.metrics, &self.status);
        self.status.telemetry(self.telemetry.reporter());
        Ok(notes)
    }
}
