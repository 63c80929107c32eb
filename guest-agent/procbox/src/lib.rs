//! Process sandboxes: launcher, supervisor and init, one confined tree per sandbox.
