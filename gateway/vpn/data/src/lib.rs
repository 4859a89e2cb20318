//! The tunnel's data channel, off the slow path.
//!
//! Control (TLS, authentication, negotiation, rekeying) lives elsewhere; what it needs of a data plane is the narrow
//! interface of [`plane`]: peers, keys, counters, events. Two planes have it: [`user`] works wherever there is a TUN,
//! [`kernel`] where Linux has `ovpn`.

mod fields;
pub mod filter;
#[doc(hidden)]
pub mod fuzzing;
mod handed;
pub mod kernel;
pub mod plane;
pub mod user;

pub use handed::{HandOver, Prepared};

use plane::{Plane, Sink};
use std::io;
use std::sync::Arc;
use user::{Config, Sockets};

/// Which plane to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The kernel's where it is there and does what the configuration asks as user space does it; else user space.
    #[default]
    Auto,
    /// User space.
    User,
    /// The kernel's, or none.
    Kernel,
}

/// A plane that has begun.
pub struct Started {
    /// It.
    pub plane: Box<dyn Plane>,
    /// Why it is not the kernel's, where that was wanted if possible.
    pub not_kernel: Option<String>,
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started").field("kind", &self.plane.kind()).field("not_kernel", &self.not_kernel).finish()
    }
}

/// Starts the plane of choice in the calling thread's network namespace. Control asks [`Plane::supports`] before it
/// negotiates what not every plane can do.
pub fn start(choice: Choice, config: &Config, sockets: Sockets, sink: Arc<dyn Sink>) -> io::Result<Started> {
    let mut not_kernel = None;
    if choice != Choice::User {
        let differs = kernel::differs(config).filter(|_| choice == Choice::Auto);
        let started = match differs {
            Some(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
            None => kernel::KernelPlane::start(config, &sockets, sink.clone()),
        };
        match started {
            Ok(plane) => return Ok(Started { plane: Box::new(plane), not_kernel }),
            Err(e) if choice == Choice::Auto && e.kind() == io::ErrorKind::Unsupported => {
                not_kernel = Some(e.to_string());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Started { plane: Box::new(user::UserPlane::start(config, sockets, sink)?), not_kernel })
}
