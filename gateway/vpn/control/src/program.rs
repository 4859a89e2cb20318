//! Programs that the tunnel starts: the check of passwords, and what hears of events.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::ExitStatus;
use tokio::process::{Child, ChildStdin, Command};

/// A program in a process group of its own. Dropped before it has ended, it is killed with all that it has started.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    /// There until it has ended: then the number may be another's.
    group: Option<Pid>,
}

impl Program {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { child, group })
    }

    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.group = None;
        Ok(status)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // There is nobody left, or all are ours.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;

    #[test]
    fn what_a_program_has_started_ends_with_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            // The output is open for as long as one of the two is there.
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & echo started; wait"]).stdout(Stdio::piped());
            let mut program = Program::start(&mut command).expect("there is a shell");
            let mut output = program.child.stdout.take().expect("it is piped");
            let mut said = [0; 8];
            output.read_exact(&mut said).await.expect("it says so");
            drop(program);
            let mut rest = Vec::new();
            let end = tokio::time::timeout(Duration::from_secs(60), output.read_to_end(&mut rest)).await;
            assert!(end.is_ok_and(|end| end.is_ok()), "the program's own program goes on");
        });
    }
}
