//! Modules and stages for tests.
