//! Random operations against a simple model, with replays; and single stories.
