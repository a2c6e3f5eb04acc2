//! The database fails at any point, COMMIT included.
