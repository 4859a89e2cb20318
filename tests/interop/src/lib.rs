//! sealane-interop
