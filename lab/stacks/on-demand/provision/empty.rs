//! Nothing: the dependency is fetched for what it carries, not compiled.
