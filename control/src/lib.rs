//! sealane-control
