//! Scenarios of fetching: one script of answers each.
