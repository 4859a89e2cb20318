//! sealane-lab-load
