//! Modules: shared libraries that are loaded once, and initialised again when their tokens are lost.
//!
//! Many modules look for tokens only when they are initialised, and lose their connection for good when a service restarts. To
//! initialise a module again ends all its sessions; each session knows in which *life* of its module it was opened.

use crate::failure::Failure;
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use sealane_log as log;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// A module is not initialised again sooner than that.
const REST: Duration = Duration::from_secs(1);

/// All that were loaded: a library is never unloaded.
static MODULES: Mutex<Option<HashMap<PathBuf, Arc<Module>>>> = Mutex::new(None);

/// A shared library.
#[derive(Debug)]
pub(crate) struct Module {
    pub context: Pkcs11,
    path: PathBuf,
    /// How often it was initialised again. Calls hold it for reading.
    life: RwLock<u64>,
    last: Mutex<Instant>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn initialize(context: &Pkcs11) -> Result<(), Error> {
    match context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        other => other,
    }
}

impl Module {
    /// Loads a module, or finds it among those that were loaded.
    pub fn load(path: &Path) -> Result<Arc<Self>, Failure> {
        let mut modules = locked(&MODULES);
        let modules = modules.get_or_insert_default();
        if let Some(known) = modules.get(path) {
            return Ok(known.clone());
        }
        if cfg!(target_feature = "crt-static") {
            return Err(Failure::Static);
        }
        // The loader's words for a missing file are those for a broken one.
        if !path.exists() {
            return Err(Failure::Module(format!("{}: no such file", path.display())));
        }
        let context = Pkcs11::new(path).map_err(|e| Failure::Module(e.to_string()))?;
        initialize(&context).map_err(|e| Failure::Module(Failure::from(e).to_string()))?;
        let path = path.to_path_buf();
        let module = Self { context, path: path.clone(), life: RwLock::new(0), last: Mutex::new(Instant::now()) };
        let module = Arc::new(module);
        modules.insert(path, module.clone());
        Ok(module)
    }

    /// The module's life. It does not end before the guard is dropped.
    pub fn life(&self) -> RwLockReadGuard<'_, u64> {
        self.life.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Initialises the module again, unless another thread has since this life, or somebody uses the module now.
    pub fn restart(&self, seen: u64) {
        let Ok(mut life) = self.life.try_write() else { return };
        let mut last = locked(&self.last);
        if *life != seen || last.elapsed() < REST {
            return;
        }
        *last = Instant::now();
        let _ = self.context.clone().finalize();
        match initialize(&self.context) {
            Ok(()) => *life += 1,
            Err(e) => log::debug!("{}: C_Initialize: {}", self.path.display(), Failure::from(e)),
        }
    }
}
