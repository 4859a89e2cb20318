//! sealane-sys
