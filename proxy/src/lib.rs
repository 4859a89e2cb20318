//! sealane-proxy
