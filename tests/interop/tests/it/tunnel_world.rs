//! The network namespaces of the tunnel's tests, which the soak test uses as well.

pub(crate) use sealane_interop::tunnel_world::{End, INSIDE, SECOND, SERVER, Stock, World, count, said};
