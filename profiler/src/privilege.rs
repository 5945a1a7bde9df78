//! What this process may do, and giving up what it no longer needs.
