//! Changes to the base.
