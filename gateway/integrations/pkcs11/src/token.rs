//! Tokens: their signing threads, and a session for each of these.

use crate::failure::Failure;
use crate::module::Module;
use cryptoki::context::Pkcs11;
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::RawAuthPin;
use sealane_config::TokenUri;
use sealane_tls::remote::Work;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use zeroize::Zeroizing;

/// Threads that sign at the same time, for each token.
const THREADS: usize = 8;
/// Signatures that wait for a token, beside those that are being made.
const QUEUE: usize = 256;

/// Those that are in use.
static TOKENS: Mutex<Vec<Weak<Token>>> = Mutex::new(Vec::new());

thread_local! {
    /// Of a signing thread.
    static SESSION: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// A token with its signing threads. They end once it is dropped.
#[derive(Debug)]
pub(crate) struct Token {
    access: Access,
    queue: SyncSender<Work>,
}

/// How a token is reached.
struct Access {
    module: Arc<Module>,
    uri: TokenUri,
    pin: Option<Zeroizing<Vec<u8>>>,
    /// The token has refused the PIN: it is not tried again.
    pin_refused: AtomicBool,
}

impl std::fmt::Debug for Access {
    /// Without the PIN.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("uri", &self.uri).finish_non_exhaustive()
    }
}

/// A session of a signing thread.
struct Open {
    session: Session,
    /// In which life of the module it was opened.
    life: u64,
    keys: Vec<(KeyName, ObjectHandle)>,
}

/// Which private key of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    pub object: Option<String>,
    pub id: Option<Vec<u8>>,
    pub kind: KeyType,
}

/// What of a URI says which token, and how.
fn same_token(a: &TokenUri, b: &TokenUri) -> bool {
    let parts = |uri: &TokenUri| {
        (
            uri.module.clone(),
            uri.token.clone(),
            uri.manufacturer.clone(),
            uri.model.clone(),
            uri.serial.clone(),
            uri.slot,
        )
    };
    parts(a) == parts(b)
}

impl Token {
    /// Finds a token among those in use, or starts threads for it.
    pub fn open(uri: &TokenUri, pin: Option<Zeroizing<Vec<u8>>>) -> Result<Arc<Self>, Failure> {
        let module = Module::load(&uri.module)?;
        let mut tokens = TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|token| token.strong_count() > 0);
        let known = tokens.iter().filter_map(Weak::upgrade);
        let mut known = known.filter(|token| same_token(&token.access.uri, uri) && token.access.pin == pin);
        if let Some(token) = known.next() {
            // Somebody asks for another attempt.
            token.access.pin_refused.store(false, Ordering::Relaxed);
            return Ok(token);
        }
        let (queue, work) = sync_channel::<Work>(QUEUE);
        let work = Arc::new(Mutex::new(work));
        for _ in 0..THREADS {
            let work = work.clone();
            let thread = std::thread::Builder::new().name("pkcs11".to_owned());
            thread.spawn(move || serve(&work)).map_err(|e| Failure::Call(format!("no thread can be started: {e}")))?;
        }
        let access = Access { module, uri: uri.clone(), pin, pin_refused: AtomicBool::new(false) };
        let token = Arc::new(Self { access, queue });
        tokens.push(Arc::downgrade(&token));
        Ok(token)
    }

    /// Has one of the threads do some work. False if too much waits. Never waits.
    pub fn submit(&self, work: Work) -> bool {
        self.queue.try_send(work).is_ok()
    }

    /// Signs. Called by a signing thread of this token.
    pub fn sign(&self, key: &KeyName, mechanism: &Mechanism, data: &[u8]) -> Result<Vec<u8>, Failure> {
        SESSION.with_borrow_mut(|open| {
            let (first, life) = self.access.sign(open, key, mechanism, data);
            match first {
                // Perhaps only the session is lost, perhaps all that the module knows.
                Err(failure) if failure.may_pass() => match self.access.sign(open, key, mechanism, data).0 {
                    Err(failure) if failure.may_pass() => {
                        self.access.module.restart(life);
                        self.access.sign(open, key, mechanism, data).0
                    }
                    second => second,
                },
                other => other,
            }
        })
    }
}

/// Works until the token is dropped.
fn serve(work: &Mutex<Receiver<Work>>) {
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(next) => next(),
            Err(_) => return close(),
        }
    }
}

/// Closes this thread's session.
fn close() {
    if let Some(open) = SESSION.take() {
        let _ = open.session.close();
    }
}

impl Access {
    /// Signs once. The second result: the life of the module that was used.
    fn sign(
        &self,
        open: &mut Option<Open>,
        key: &KeyName,
        mechanism: &Mechanism,
        data: &[u8],
    ) -> (Result<Vec<u8>, Failure>, u64) {
        let life = self.module.life();
        // A session of an earlier life has ended; its number may be that of another one by now.
        drop(open.take_if(|open| open.life != *life));
        let signed = self.sign_in(open, *life, key, mechanism, data);
        if signed.is_err()
            && let Some(failed) = open.take()
        {
            let _ = failed.session.close();
        }
        (signed, *life)
    }

    fn sign_in(
        &self,
        open: &mut Option<Open>,
        life: u64,
        key: &KeyName,
        mechanism: &Mechanism,
        data: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let open = match open {
            Some(open) => open,
            none => none.insert(Open { session: self.session()?, life, keys: Vec::new() }),
        };
        let handle = match open.keys.iter().find(|(name, _)| name == key) {
            Some((_, handle)) => *handle,
            None => {
                let found = find(&open.session, key)?;
                open.keys.push((key.clone(), found));
                found
            }
        };
        Ok(open.session.sign(mechanism, handle, data)?)
    }

    /// Opens a session and logs in.
    fn session(&self) -> Result<Session, Failure> {
        let context = &self.module.context;
        let slot = self.slot(context)?;
        let info = context.get_token_info(slot)?;
        // Closed by hand: one of an earlier life must not be.
        let session = context.open_ro_session_no_drop(slot)?;
        if info.login_required()
            && let Err(failure) = self.log_in(&session)
        {
            let _ = session.close();
            return Err(failure);
        }
        Ok(session)
    }

    fn log_in(&self, session: &Session) -> Result<(), Failure> {
        let pin = self.pin.as_ref().ok_or(Failure::NoPin)?;
        if self.pin_refused.load(Ordering::Relaxed) {
            return Err(Failure::WrongPin);
        }
        match session.login_with_raw(UserType::User, &RawAuthPin::new(Box::new(pin.to_vec()))) {
            // One session logs all in.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
            Err(e) => {
                let failure = Failure::from(e);
                self.pin_refused.store(failure == Failure::WrongPin, Ordering::Relaxed);
                Err(failure)
            }
        }
    }

    fn slot(&self, context: &Pkcs11) -> Result<Slot, Failure> {
        let uri = &self.uri;
        let mut labels = Vec::new();
        let mut found = Vec::new();
        for slot in context.get_slots_with_token()? {
            let Ok(info) = context.get_token_info(slot) else { continue };
            if !info.token_initialized() {
                continue;
            }
            labels.push(format!("\"{}\"", info.label()));
            let fits = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
            if fits(&uri.token, info.label())
                && fits(&uri.manufacturer, info.manufacturer_id())
                && fits(&uri.model, info.model())
                && fits(&uri.serial, info.serial_number())
                && uri.slot.is_none_or(|wanted| wanted == slot.id())
            {
                found.push(slot);
            }
        }
        match found[..] {
            [slot] => Ok(slot),
            [] => Err(Failure::NoToken(labels)),
            _ => Err(Failure::SeveralTokens(found.len())),
        }
    }
}

fn find(session: &Session, key: &KeyName) -> Result<ObjectHandle, Failure> {
    let mut wanted = vec![Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::KeyType(key.kind)];
    wanted.extend(key.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes())));
    wanted.extend(key.id.clone().map(Attribute::Id));
    let found = session.find_objects(&wanted)?;
    match found[..] {
        [handle] => Ok(handle),
        [] => Err(Failure::NoKey),
        _ => Err(Failure::SeveralKeys(found.len())),
    }
}
