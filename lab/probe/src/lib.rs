//! sealane-lab-probe
