//! Which CPUs the servers get, and which the load.

use anyhow::{Context, bail};

use crate::options::Options;

/// The division of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// For what is measured.
    pub server: Vec<usize>,
    /// For the load.
    pub client: Vec<usize>,
    /// For backends.
    pub backend: Vec<usize>,
}

impl Cores {
    /// As the options say, or half to the servers and the rest to the load; the backend has the last of the rest for
    /// itself where there are two.
    pub fn divide(options: &Options) -> anyhow::Result<Self> {
        let allowed = allowed()?;
        for cpu in options.server_cpus.iter().chain(&options.client_cpus) {
            if !allowed.contains(cpu) {
                bail!("this process may not use CPU {cpu}");
            }
        }
        Ok(Self::split(&allowed, &options.server_cpus, &options.client_cpus))
    }

    fn split(allowed: &[usize], server: &[usize], client: &[usize]) -> Self {
        let server = match (server, client) {
            ([], []) => allowed[..allowed.len().div_ceil(2)].to_vec(),
            ([], client) => {
                let left: Vec<usize> = allowed.iter().copied().filter(|c| !client.contains(c)).collect();
                if left.is_empty() { allowed.to_vec() } else { left }
            }
            (server, _) => server.to_vec(),
        };
        let mut client: Vec<usize> = if client.is_empty() {
            allowed.iter().copied().filter(|c| !server.contains(c)).collect()
        } else {
            client.to_vec()
        };
        if client.is_empty() {
            client.clone_from(&server);
        }
        let backend = match client.len() {
            1 => client.clone(),
            _ => client.pop().into_iter().collect(),
        };
        Self { server, client, backend }
    }

    /// Whether load and servers are on CPUs of their own.
    pub fn apart(&self) -> bool {
        !self.client.iter().any(|c| self.server.contains(c))
    }

    /// In words, for the report.
    pub fn text(&self) -> String {
        format!(
            "servers on CPU {}, load on {}, backend on {}",
            list(&self.server),
            list(&self.client),
            list(&self.backend)
        )
    }
}

/// Runs `then` with the calling thread, and what it starts, bound to `cpus`.
pub fn pinned<T>(cpus: &[usize], then: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = rustix::thread::sched_getaffinity(None).context("CPU affinity")?;
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|c| **c < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("cannot use CPU {}", list(cpus)))?;
    let result = then();
    rustix::thread::sched_setaffinity(None, &before).context("CPU affinity")?;
    Ok(result)
}

/// The CPUs that this process may use.
pub fn allowed() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("CPU affinity")?;
    let list: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect();
    if list.is_empty() {
        bail!("no CPU may be used");
    }
    Ok(list)
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_divided_by_their_size() {
        let split = |n: usize| Cores::split(&(0..n).collect::<Vec<_>>(), &[], &[]);
        assert_eq!(split(1), Cores { server: vec![0], client: vec![0], backend: vec![0] });
        assert!(!split(1).apart());
        assert_eq!(split(2), Cores { server: vec![0], client: vec![1], backend: vec![1] });
        assert_eq!(split(4), Cores { server: vec![0, 1], client: vec![2], backend: vec![3] });
        assert_eq!(split(8).client, [4, 5, 6]);
        let own = Cores::split(&[0, 1, 2, 3], &[3], &[0, 1]);
        assert_eq!((own.server, own.client, own.backend), (vec![3], vec![0], vec![1]));
        assert_eq!(Cores::split(&[0, 1], &[], &[1]).server, [0]);
    }

    #[test]
    fn affinity_is_given_back() {
        let before = allowed().unwrap();
        let inside = pinned(&before[..1], || allowed().unwrap()).unwrap();
        assert_eq!(inside, before[..1]);
        assert_eq!(allowed().unwrap(), before);
    }
}
