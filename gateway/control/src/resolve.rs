//! A configuration meets its surroundings: its files are read with the help of those who use them, names of servers
//! become addresses, and what this machine would refuse is reported. The second stage, between [`config`](crate::config) and the snapshots.

use crate::config::{
    AccessLogTarget, Config, Diagnostic, Errors, Files, Found, NamedServer, Origin, Severity, Warning, plain,
};
use crate::dns;
use crate::vpn::settings::PARTS;
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

impl Config {
    /// Reads and checks a file, and everything that it names.
    ///
    /// Errors are all that are wrong with it, each with its place; displayed, they are ready to be printed.
    pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
        Self::read_file(path, Files::Read(Some(PARTS)))
    }

    /// Reads everything again from where it came from.
    pub fn reload(origin: &Origin) -> Result<(Config, Vec<Warning>), Errors> {
        match origin {
            Origin::File(path) => Self::load(path),
            Origin::CommandLine(args) => Self::from_command_line(args),
        }
    }

    /// Resolves the names of servers, for at most `limit`. A name that does not resolve keeps the addresses that were
    /// known last; without any its servers are down until it resolves, which is a warning, too.
    pub async fn resolve(&mut self, limit: Duration) -> Vec<Warning> {
        let hosts: BTreeSet<String> = self.names.iter().map(|n| n.host.clone()).collect();
        let answers = dns::resolve_all(self.resolver, hosts, limit).await;
        let mut warnings = Vec::new();
        for NamedServer { host, place } in &self.names {
            let Some(Err(e)) = answers.get(host) else { continue };
            let why = plain(e);
            let known = dns::last_known(host);
            let (message, help) = match &known {
                Some(_) => (format!("\"{host}\" does not resolve now: {why}"), "the addresses known last are used"),
                None => (
                    format!("\"{host}\" does not resolve: {why}"),
                    "the server is down until it does; \"resolver\" says who is asked",
                ),
            };
            warnings.push(place.diagnostic(Severity::Warning, message, Some(help.to_owned())));
            if let Some(addresses) = known {
                self.resolved.insert(host.clone(), Found { addresses, ttl: Some(Duration::ZERO) });
            }
        }
        self.resolved.extend(answers.into_iter().filter_map(|(host, found)| Some((host, found.ok()?))));
        warnings
    }

    /// [`Config::resolve`] for those who have nothing else to do meanwhile.
    pub fn resolve_and_wait(&mut self, limit: Duration) -> std::io::Result<Vec<Warning>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let warnings = runtime.block_on(self.resolve(limit));
        // Lookups that hang are not waited for.
        runtime.shutdown_background();
        Ok(warnings)
    }

    /// What this machine, as it is now, would refuse when the gateway starts, and `check` says: addresses that are not
    /// its own, a file in the admin socket's place, a log that cannot be written.
    pub fn refused_here(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (address, place) in &self.listens {
            if let Err(e) = crate::sockets::has_address(*address) {
                found.push(place.diagnostic(Severity::Error, e.to_string(), None));
            }
        }
        if let Some((socket, place)) = self.admin_socket.as_ref().zip(self.admin_socket_place.as_ref())
            && std::fs::symlink_metadata(socket).is_ok_and(|meta| !meta.file_type().is_socket())
        {
            let message = format!("{} is there and is no socket", socket.display());
            let help = "remove it, or choose another path".to_owned();
            found.push(place.diagnostic(Severity::Error, message, Some(help)));
        }
        // A warning: another user may serve.
        if let (AccessLogTarget::File(log), Some(place)) = (&self.access_log, &self.access_log_place)
            && !crate::user::may_write(log)
        {
            let message = format!("this user cannot write {}", log.display());
            let help = "whoever serves must: give the file, or its folder, to that user".to_owned();
            found.push(place.diagnostic(Severity::Warning, message, Some(help)));
        }
        found
    }
}
