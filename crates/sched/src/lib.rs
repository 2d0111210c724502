//! Policies over virtual time: which path runs next. Pure.
