//! The content codings that responses can get (`compression`): the integration `sealane-compression`, where this program is built with it.

use sealane_http::coding::Codecs;
use std::sync::Arc;

/// The codings that this program has.
pub(crate) fn codecs() -> Option<Arc<dyn Codecs>> {
    #[cfg(feature = "compression")]
    return Some(Arc::new(sealane_compression::Libraries));
    #[cfg(not(feature = "compression"))]
    None
}
