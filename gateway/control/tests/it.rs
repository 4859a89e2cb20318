//! The configuration from files on disk, and the services around the lanes over real sockets.

mod it {
    pub mod audit;
    pub mod automatic;
    pub mod certificates;
    pub mod errors;
    pub mod files;
    #[cfg(feature = "fips")]
    pub mod fips;
    pub mod fleet;
    pub mod good;
    pub mod includes;
    pub mod names;
    pub mod origin;
    pub mod surroundings;
    pub mod tunnel;
    pub mod vpn;
}
