//! What can go wrong with a token, in words for operators.

use cryptoki::error::{Error, RvError};
use std::fmt;
use std::path::Path;

/// Why a key in a token cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// This program cannot load modules.
    Static,
    /// The module cannot be loaded, or does not start.
    Module(String),
    /// No token is like that; the labels of those that there are.
    NoToken(Vec<String>),
    /// Several tokens are like that.
    SeveralTokens(usize),
    /// The token needs a PIN, and none is configured.
    NoPin,
    /// The token refuses the PIN.
    WrongPin,
    /// The token refuses every PIN.
    Locked,
    /// The token has no such private key.
    NoKey,
    /// The token has several such private keys.
    SeveralKeys(usize),
    /// The key cannot be one that TLS uses.
    Unsupported(&'static str),
    /// The key does not belong to the certificate.
    OtherKey,
    /// The certificate cannot be read.
    Certificate,
    /// The token has not responded in time.
    TimedOut,
    /// A call of the module failed.
    Call(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Pkcs11(RvError::PinIncorrect | RvError::PinLenRange | RvError::PinInvalid, _) => Self::WrongPin,
            Error::Pkcs11(RvError::PinLocked, _) => Self::Locked,
            // The words of the standard for each code are a paragraph.
            Error::Pkcs11(code, function) => Self::Call(format!("C_{function:?} failed with {code:?}")),
            other => Self::Call(other.to_string()),
        }
    }
}

impl Failure {
    /// Whether another attempt with a new session may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Call(_) | Self::NoToken(_) | Self::NoKey | Self::Module(_))
    }

    /// What to do about it. `pin`: the file of the PIN.
    pub fn help(&self, module: &Path, pin: Option<&str>) -> Option<String> {
        let module = module.display();
        Some(match self {
            Self::Static => "use a program that is linked with the system's C library, as in the packages".to_owned(),
            Self::Module(_) => "correct \"module-path\", or install the package of the token's module".to_owned(),
            Self::NoToken(found) if found.is_empty() => {
                format!("connect the token, and look for it: pkcs11-tool --module {module} --list-token-slots")
            }
            Self::NoToken(found) => format!("correct the URI; the module has {}", found.join(", ")),
            Self::SeveralTokens(_) => "add serial= or slot-id= to the URI".to_owned(),
            Self::NoPin => {
                "write the PIN to a file that only the gateway can read, and set \"passphrase_file\" to its path"
                    .to_owned()
            }
            Self::WrongPin => format!(
                "write the user's PIN as the first line of {}; tokens lock after a few wrong PINs",
                pin.unwrap_or("the file in \"passphrase_file\"")
            ),
            Self::Locked => "set a new user PIN with the tool of the token's vendor".to_owned(),
            Self::NoKey | Self::SeveralKeys(_) => {
                format!("look at the token's keys: pkcs11-tool --module {module} --login --list-objects --type privkey")
            }
            Self::Unsupported(_) => "use an RSA key, or an ECDSA key on P-256 or P-384".to_owned(),
            Self::OtherKey => {
                "set \"object\" or \"id\" to the key of this certificate, or issue a certificate for this key"
                    .to_owned()
            }
            Self::Certificate => return None,
            Self::TimedOut => "is the token connected, and does its service run?".to_owned(),
            Self::Call(_) => format!("try the token: pkcs11-tool --module {module} --login --test"),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("this program is linked statically, and cannot load PKCS#11 modules"),
            Self::Module(why) => write!(f, "the PKCS#11 module cannot be used: {why}"),
            Self::NoToken(_) => f.write_str("the module has no such token"),
            Self::SeveralTokens(count) => write!(f, "{count} tokens of the module fit the URI"),
            Self::NoPin => f.write_str("the token needs a PIN"),
            Self::WrongPin => f.write_str("the token refuses the PIN"),
            Self::Locked => f.write_str("the token is locked after too many wrong PINs"),
            Self::NoKey => f.write_str("the token has no such private key of the certificate's type"),
            Self::SeveralKeys(count) => write!(f, "{count} private keys of the token fit the URI"),
            Self::Unsupported(what) => write!(f, "{what} in tokens are not supported"),
            Self::OtherKey => f.write_str("the key does not belong to the certificate"),
            Self::Certificate => f.write_str("the certificate cannot be read"),
            Self::TimedOut => f.write_str("the token has not responded in time"),
            Self::Call(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Failure {}
